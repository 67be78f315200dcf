"""OpenTelemetry spans, and trace propagation to other processes.

A span has ids, counts and kinds of failures, and never a text. If the process exports no spans, one costs about a
microsecond. The process configures the SDK, exporters and sampling: see `adjudge_services.process`.

Requests to other processes carry ids and the current span in headers: `X-Request-Id` and `X-Operation-Id`, and
`traceparent` and `tracestate` of W3C Trace Context.
"""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import httpx2
from opentelemetry import propagate, trace
from opentelemetry.trace import INVALID_SPAN, Link, ProxyTracerProvider, Span, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from judge_server.errors import ServiceError
from judge_server.observability.logs import EXTRA_FIELDS, current_log_context

P = ParamSpec("P")
T = TypeVar("T")

TRACER_NAME = "adjudge"
REQUEST_ID, OPERATION_ID = "X-Request-Id", "X-Operation-Id"

log = logging.getLogger("adjudge.client")

_NO_SPAN = nullcontext(INVALID_SPAN)


def tracer() -> Tracer | None:
    """The tracer; None if the process exports no spans."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else provider.get_tracer(TRACER_NAME)


def span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, /, *, links: Sequence[Link] = (), **attributes: AttributeValue
) -> AbstractContextManager[Span]:
    """Open a child span over the block, with attributes named `adjudge.…`.

    An exception marks the span as failed with the exception's type; cancellation does not.
    """
    active_tracer = tracer()
    return _NO_SPAN if active_tracer is None else _start_span(active_tracer, name, kind, links, attributes)


def traced(name: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Decorate a coroutine function with a span over each call."""

    def decorate(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(work)
        async def recorded(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return await work(*args, **kwargs)

        return recorded

    return decorate


def set_span_attributes(target_span: Span, /, **attributes: AttributeValue | None) -> None:
    """Add attributes to a span, ignoring None."""
    if target_span.is_recording():
        target_span.set_attributes(
            {f"adjudge.{name}": value for name, value in attributes.items() if value is not None}
        )


def mark_span_failed(target_span: Span, kind: str) -> None:
    """Mark a span as failed, by the kind of failure."""
    target_span.set_attribute("error.type", kind)
    target_span.set_status(StatusCode.ERROR, kind)


@contextmanager
def _start_span(
    active_tracer: Tracer, name: str, kind: SpanKind, links: Sequence[Link], attributes: dict[str, AttributeValue]
) -> Iterator[Span]:
    named = {f"adjudge.{key}": value for key, value in attributes.items()}
    with active_tracer.start_as_current_span(
        name, kind=kind, links=links, attributes=named, record_exception=False, set_status_on_exception=False
    ) as new_span:
        try:
            yield new_span
        except Exception as error:
            mark_span_failed(new_span, error.type if isinstance(error, ServiceError) else type(error).__name__)
            raise


def propagation_headers() -> dict[str, str]:
    """Headers with the ids and the span of this task, for requests to other processes."""
    ids = current_log_context()
    names = {REQUEST_ID: "request_id", OPERATION_ID: "operation_id"}
    return {header: ids[name] for header, name in names.items() if name in ids} | span_headers()


def span_headers() -> dict[str, str]:
    """Headers with the current span; empty if the process exports no spans."""
    headers: dict[str, str] = {}
    if tracer() is not None:
        propagate.inject(headers)
    return headers


def span_links(headers: Mapping[str, str]) -> tuple[Link, ...]:
    """A link to the span in the headers, if they have one."""
    context = trace.get_current_span(propagate.extract(headers)).get_span_context()
    return (Link(context),) if context.is_valid else ()


class TracingTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that adds a request id, which both sides log, and the propagation headers of the task."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        ids = current_log_context()
        request_id = f"{ids.get('operation_id', 'req')}.{ids.get('chunk', '')}.{secrets.token_hex(4)}"
        target, started_at = f"{request.method} {request.url.path}", time.perf_counter()
        fields: dict[str, Any] = {"request_id": request_id, "method": request.method, "path": request.url.path}
        try:
            with span(request.method, SpanKind.CLIENT, request_id=request_id) as client_span:
                request.headers.update(propagation_headers() | {REQUEST_ID: request_id})
                response = await self._transport.handle_async_request(request)
                client_span.set_attribute("http.response.status_code", response.status_code)
                if response.status_code >= 400:
                    mark_span_failed(client_span, str(response.status_code))
        except httpx2.HTTPError as error:
            log.warning(
                "sent %s: no response (%s), request id %s",
                target,
                type(error).__name__,
                request_id,
                extra={EXTRA_FIELDS: fields},
            )
            raise
        fields |= {"status": response.status_code, "ms": round((time.perf_counter() - started_at) * 1000, 1)}
        log.info(
            "sent %s: %d in %.1f ms, request id %s",
            target,
            response.status_code,
            fields["ms"],
            request_id,
            extra={EXTRA_FIELDS: fields},
        )
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()
