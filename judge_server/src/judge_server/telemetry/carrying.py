"""What one process tells another of the work it is asked for: ids and the current span, in headers.

`X-Request-Id` and `X-Operation-Id` are ours; `traceparent` and `tracestate` are W3C Trace Context.
"""

import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any

import httpx2
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind

from judge_server.telemetry.about import current_log_context
from judge_server.telemetry.logs import EXTRA_FIELDS
from judge_server.telemetry.spans import mark_span_failed, span, tracer

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
