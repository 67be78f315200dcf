"""OpenTelemetry spans, and trace propagation to other processes.

Spans by OpenTelemetry's API: where a process exports none they cost about a microsecond each, and are nothing.

A span holds ids, counts and kinds of failures, and never a text. The SDK, what it exports and what it samples are the
process's business: see `adjudge_services.process`.

What one process tells another of the work it is asked for: ids and the current span, in headers.

`X-Request-Id` and `X-Operation-Id` are ours; `traceparent` and `tracestate` are W3C Trace Context.
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
_NO_SPAN = nullcontext(INVALID_SPAN)


def tracer() -> Tracer | None:
    """What makes spans; None where nobody takes them."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else provider.get_tracer(TRACER_NAME)


def span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, /, *, links: Sequence[Link] = (), **attributes: AttributeValue
) -> AbstractContextManager[Span]:
    """A span over the block, below the one that is current. Attributes are named `adjudge.…`.

    What the block raises marks it as failed, by its kind; being cancelled is no failure.
    """
    active_tracer = tracer()
    return _NO_SPAN if active_tracer is None else _start_span(active_tracer, name, kind, links, attributes)


def traced(name: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """A span over each call of a coroutine function."""

    def decorate(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(work)
        async def recorded(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return await work(*args, **kwargs)

        return recorded

    return decorate


def set_span_attributes(target_span: Span, /, **attributes: AttributeValue | None) -> None:
    """Add what is known only now; None is left out."""
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


REQUEST_ID, OPERATION_ID = "X-Request-Id", "X-Operation-Id"

log = logging.getLogger("adjudge.client")


def propagation_headers() -> dict[str, str]:
    """Headers for whoever is asked to do some of this task's work."""
    about = current_log_context()
    names = {REQUEST_ID: "request_id", OPERATION_ID: "operation_id"}
    return {header: about[name] for header, name in names.items() if name in about} | span_headers()


def span_headers() -> dict[str, str]:
    """The current span, in headers; none where no spans are made."""
    headers: dict[str, str] = {}
    if tracer() is not None:
        propagate.inject(headers)
    return headers


def span_links(headers: Mapping[str, str]) -> tuple[Link, ...]:
    """A link to the span that such headers name, if they do."""
    context = trace.get_current_span(propagate.extract(headers)).get_span_context()
    return (Link(context),) if context.is_valid else ()


class TracingTransport(httpx2.AsyncBaseTransport):
    """Sends requests with an id each, which both sides log, and with what the task works on that sends them."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        about = current_log_context()
        request_id = f"{about.get('operation_id', 'req')}.{about.get('chunk', '')}.{secrets.token_hex(4)}"
        what, began = f"{request.method} {request.url.path}", time.perf_counter()
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
                "asked %s: no answer (%s), as %s", what, type(error).__name__, request_id, extra={EXTRA_FIELDS: fields}
            )
            raise
        fields |= {"status": response.status_code, "ms": round((time.perf_counter() - began) * 1000, 1)}
        log.info(
            "asked %s: %d in %.1f ms, as %s",
            what,
            response.status_code,
            fields["ms"],
            request_id,
            extra={EXTRA_FIELDS: fields},
        )
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()
