"""Logs and traces of HTTP requests: one access line per request, and a log context for its work.

A line contains the route, never the path or the query, because callers control those. Probes and scrapes are not
logged.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from opentelemetry import propagate
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from judge_server.observability.logs import EXTRA_FIELDS, bind_log_context, current_log_context, log_context, safe_id
from judge_server.observability.tracing import OPERATION_ID, set_span_attributes, tracer

UNLOGGED_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/internal/v1/judge"})
"""The paths that monitoring requests every few seconds."""

FASTAPI_TELEMETRY_OFF: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""Settings that disable FastAPI's own telemetry, which records the messages of exceptions and which the versions that
vLLM supports do not have."""

log = logging.getLogger("adjudge.access")
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
                _describe(span, scope, status)
            size += len(message.get("body", b""))
            await send(message)

        with log_context(operation_id=safe_id(Headers(scope=scope).get(OPERATION_ID))), _span(scope) as span:
            try:
                await self._app(scope, receive, send_counted)
            except Exception:
                status = status or 500
                error_log.exception("request %s failed", current_log_context().get("request_id", "without an id"))
                _describe(span, scope, status)
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
    log.info(
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
