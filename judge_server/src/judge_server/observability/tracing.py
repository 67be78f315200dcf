"""OpenTelemetry spans, and trace propagation to other processes.

A span has ids, counts and kinds of failures, and never a text. If the process exports no spans, one costs about a
microsecond. The process configures the SDK, exporters and sampling: see `adjudge_services.process`.

Requests to other processes carry ids and the current span in headers: `X-Request-Id` and `X-Operation-Id`, and
`traceparent` and `tracestate` of W3C Trace Context.

Each HTTP request gets one access line, a span, and a log context for its work.
"""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from http import HTTPStatus
from typing import Any, ParamSpec, TypeVar

import httpx2
from opentelemetry import propagate, trace
from opentelemetry.trace import INVALID_SPAN, Link, ProxyTracerProvider, Span, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from judge_server.errors import ServiceError
from judge_server.observability.logs import EXTRA_FIELDS, bind_log_context, current_log_context, log_context, safe_id

UNLOGGED_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/internal/v1/judge"})
"""The paths that monitoring requests every few seconds."""

FASTAPI_TELEMETRY_OFF: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""Settings that disable FastAPI's own telemetry, which records the messages of exceptions and which the versions that
vLLM supports do not have."""

access_log = logging.getLogger("adjudge.access")
error_log = logging.getLogger("adjudge")


class RequestLoggingMiddleware:
    """ASGI middleware that logs and traces requests; it is the outermost of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, size = time.perf_counter(), 0, 0

        async def send_counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                _bind_path_context(scope)
                _describe(request_span, scope, status)
            size += len(message.get("body", b""))
            await send(message)

        with log_context(operation_id=safe_id(Headers(scope=scope).get(OPERATION_ID))), _span(scope) as request_span:
            try:
                await self._app(scope, receive, send_counted)
            except Exception:
                status = status or 500
                error_log.exception("request %s failed", current_log_context().get("request_id", "without an id"))
                _describe(request_span, scope, status)
                raise
            finally:
                if scope["path"] not in UNLOGGED_PATHS:
                    _log(scope, status, (time.perf_counter() - began) * 1000, size)


@contextmanager
def _span(scope: Scope) -> Iterator[Span]:
    """A span over one request, a child of the caller's span; it gets its name when the route is known."""
    active_tracer = None if scope["path"] in UNLOGGED_PATHS else tracer()
    if active_tracer is None:
        yield INVALID_SPAN
        return
    with active_tracer.start_as_current_span(
        scope["method"],
        context=propagate.extract(Headers(scope=scope)),
        kind=SpanKind.SERVER,
        attributes={"http.request.method": scope["method"], "url.scheme": scope["scheme"]},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def _describe(span: Span, scope: Scope, status: int) -> None:
    if not span.is_recording():
        return
    span.update_name(f"{scope['method']} {_route(scope)}")
    span.set_attributes({"http.route": _route(scope), "http.response.status_code": status})
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)
    set_span_attributes(span, **current_log_context())


def _log(scope: Scope, status: int, milliseconds: float, size: int) -> None:
    method, route = scope["method"], _route(scope)
    fields = {"method": method, "route": route, "status": status, "ms": round(milliseconds, 1), "bytes": size}
    access_log.info(
        "%s %s: %s in %.1f ms, %d bytes",
        method,
        route,
        status or "no answer",
        milliseconds,
        size,
        extra={EXTRA_FIELDS: fields},
    )


def _route(scope: Scope) -> str:
    framework: dict[str, Any] = scope.get("fastapi") or {}  # has the prefixes of nested routers
    route: Any = framework.get("effective_route_context") or scope.get("route")
    return getattr(route, "path_format", None) or getattr(route, "path", None) or "(no route)"


def _bind_path_context(scope: Scope) -> None:
    parameters = scope.get("path_params", {})
    bind_log_context(run=parameters.get("run"))
    if _route(scope).startswith("/v1/operations/{id}"):
        bind_log_context(operation_id=safe_id(parameters.get("id")))


P = ParamSpec("P")
T = TypeVar("T")

TRACER_NAME = "adjudge"
REQUEST_ID, OPERATION_ID = "X-Request-Id", "X-Operation-Id"

client_log = logging.getLogger("adjudge.client")

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
            client_log.warning(
                "sent %s: no response (%s), request id %s",
                target,
                type(error).__name__,
                request_id,
                extra={EXTRA_FIELDS: fields},
            )
            raise
        fields |= {"status": response.status_code, "ms": round((time.perf_counter() - started_at) * 1000, 1)}
        client_log.info(
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
