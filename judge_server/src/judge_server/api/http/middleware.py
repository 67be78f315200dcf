"""What every process that serves HTTP checks first: the host without keys, and the size and duration of bodies.

`BoundaryMiddleware` also adds the request id and the security headers.
"""

import asyncio
import ipaddress
import secrets
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from judge_server.api.http.problems import problem_response
from judge_server.api.http.responses import HTML_PAGES, add_headers
from judge_server.errors import Forbidden, InvalidRequest, TooLarge, TooSlow, invalid_request
from judge_server.observability.logs import bind_log_context, safe_id
from trainer_client.wire import FieldError

MIN_BYTES_PER_SECOND = 64 * 1024
"""The minimum average rate of a body, after the one-time allowance of `body_timeout_s`."""


class BoundedBody:
    """The `receive` of a request, which rejects a body that is too large or arrives too slowly.

    Args:
        receive: the server's `receive`.
        max_bytes: the maximum size of the body.
        body_timeout_s: the maximum time in seconds between two messages. The whole body must arrive within this time
            plus one second for each `min_bytes_per_second` bytes.

    Raises:
        TooLarge, TooSlow: when it is called.
    """

    def __init__(
        self,
        receive: Receive,
        *,
        max_bytes: int,
        body_timeout_s: float,
        min_bytes_per_second: int = MIN_BYTES_PER_SECOND,
    ) -> None:
        self._receive = receive
        self._min_bytes_per_second = min_bytes_per_second
        self._max_bytes = max_bytes
        self._body_timeout_s = body_timeout_s
        self._started_at: float | None = None
        self._received = 0
        self._complete = False

    async def __call__(self) -> Message:
        """Receive the next message; after the body, wait without limit for the caller to disconnect."""
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._seconds_left()):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(
                f"the body arrived too slowly: {self._received} bytes so far; send it within {self._body_timeout_s:g} "
                f"s plus 1 s for each {self._min_bytes_per_second} bytes, or raise ADJUDGE_CLIENT_TIMEOUT_S on the "
                "server"
            ) from None
        self._received += len(message.get("body", b""))
        self.refuse_above_limit(self._received)
        self._complete = not message.get("more_body", False)
        return message

    def refuse_above_limit(self, size: int) -> None:
        """Raise `TooLarge` if a body of this size exceeds the limit."""
        if size > self._max_bytes:
            raise TooLarge(
                f"the body is larger than the {self._max_bytes} bytes allowed; send fewer groups at once, "
                "or raise ADJUDGE_MAX_BODY_BYTES on the server"
            )

    def _seconds_left(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._started_at is None:
            self._started_at = now
        until = self._started_at + self._body_timeout_s + self._received / self._min_bytes_per_second
        return min(self._body_timeout_s, until - now)


class BoundaryMiddleware:
    """ASGI middleware that bounds bodies and adds the request id and the security headers to every response.

    A caller's `X-Request-Id` is used if it consists of plain characters; otherwise the request gets a new id.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, body_timeout_s: float = 30.0) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _drop_quoted_cookies(scope)
        headers = Headers(scope=scope)
        request_id = safe_id(headers.get("x-request-id")) or f"req_{secrets.token_hex(8)}"
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


def _drop_quoted_cookies(scope: Scope) -> None:
    """Remove cookies with a quoted value, which Adjudge sets none of.

    FastAPI reads the cookies of every request, and `http.cookies` of Python before 3.11.10 and 3.12.6 unquotes one of
    60 KB in minutes.
    """
    scope["headers"] = [
        (name, b";".join(one for one in value.split(b";") if b'"' not in one) if name == b"cookie" else value)
        for name, value in scope["headers"]
    ]


def _refuse_nul(scope: Scope) -> None:
    """Reject the character NUL in a path or query: no name contains it, and the database cannot store it."""
    for field, value in (("path", scope["path"].encode()), ("query", unquote_to_bytes(scope.get("query_string", b"")))):
        if b"\0" in value:
            message = "the character NUL (%00) is not allowed; remove it"
            raise invalid_request((FieldError(field=field, message=message),))


class _ResponseSender:
    """Sends one response. The head of an HTML page is held back until its body, since the policy names its scripts."""

    def __init__(self, send: Send, path: str, request_id: str) -> None:
        self._send, self._path, self._request_id = send, path, request_id
        self._head: Message | None = None
        self.started = False

    async def send(self, message: Message) -> None:
        """Send a message, with the common headers if it is the head."""
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


def require_loopback_host(headers: Headers) -> None:
    """Reject a request without a key whose `Host` is not a loopback host; a request without `Host` passes.

    Otherwise a web page could point its own host name at 127.0.0.1 and read the responses (DNS rebinding); the browser
    then sends the page's host name.

    Raises:
        Forbidden: `Host` is neither `localhost` nor a loopback address.
    """
    host = headers.get("host")
    if host is None or is_loopback(_name_of(host)):
        return
    raise Forbidden(
        f"Without a key this service answers to localhost and 127.0.0.1, and not to {host[:100]!r}. Use one of those "
        "names, or send an API key: adjudge keys create --scope score"
    )


def is_loopback(name: str) -> bool:
    """Whether a host name or address always refers to the local machine."""
    name = name.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """The host name in a `Host` header, without the port or the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
