"""The outermost layer of HTTP: a request id and the headers of safety on everything, and limits on the body."""

import re
import secrets
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from judge_server.errors import InvalidRequest, TooLarge, TooSlow
from judge_server.telemetry.about import bind_log_context
from judge_server.web.bodies import BoundedBody
from judge_server.web.headers import HTML_PAGES, add_headers
from judge_server.web.problems import invalid_request, problem_response
from trainer_client.wire import FieldError

_CALLER_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class BoundaryMiddleware:
    """ASGI middleware. A caller's `X-Request-Id` is kept if it is plain; else the request gets one."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, body_timeout_s: float = 30.0) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        caller_id = headers.get("x-request-id", "")
        request_id = caller_id if _CALLER_REQUEST_ID.fullmatch(caller_id) else f"req_{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = request_id
        bind_log_context(request_id=request_id)
        body = BoundedBody(receive, max_bytes=self._max_body_bytes, body_timeout_s=self._body_timeout_s)
        sender = _ResponseSender(send, scope["path"], request_id)
        try:
            _refuse_nul(scope)
            content_length = headers.get("content-length", "")
            if content_length.isascii() and content_length.isdigit():
                body.refuse_above_limit(int(content_length))
            await self._app(scope, body, sender.send)
        except (InvalidRequest, TooLarge, TooSlow) as error:
            if sender.started:
                raise
            await problem_response(error, request_id)(scope, receive, sender.send)


def _refuse_nul(scope: Scope) -> None:
    """Refuse the character NUL in a path or query: no name has it, and no database keeps it."""
    for field, value in (("path", scope["path"].encode()), ("query", unquote_to_bytes(scope.get("query_string", b"")))):
        if b"\0" in value:
            message = "the character NUL (%00) is in no name; leave it out"
            raise invalid_request((FieldError(field=field, message=message),))


class _ResponseSender:
    """One answer on its way out; a page's head waits for its HTML, whose scripts its policy names."""

    def __init__(self, send: Send, path: str, request_id: str) -> None:
        self._send, self._path, self._request_id = send, path, request_id
        self._head: Message | None = None
        self.started = False

    async def send(self, message: Message) -> None:
        """Pass a message on, with the headers that everything has."""
        if message["type"] == "http.response.start":
            self.started = True
            if self._path in HTML_PAGES and message["status"] == 200:
                self._head = message
                return
            await self._send(self._with_headers(message))
            return
        if self._head is not None:
            await self._send(self._with_headers(self._head, message.get("body", b"")))
            self._head = None
        await self._send(message)

    def _with_headers(self, message: Message, page: bytes | None = None) -> Message:
        headers = MutableHeaders(scope=message)
        headers["X-Request-Id"] = self._request_id
        if message["status"] == TooSlow.status:
            headers["Connection"] = "close"
        add_headers(headers, self._path, page)
        return message
