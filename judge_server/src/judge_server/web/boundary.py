"""The outermost layer of HTTP: a request id on everything, and a limit on what a body may weigh."""

import re
import secrets
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from judge_server.errors import TooLarge
from judge_server.web.problems import problem_response

_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Boundary:
    """ASGI middleware. A caller's `X-Request-Id` is kept if it is plain; else the request gets one."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if _ACCEPTABLE_ID.fullmatch(asked) else f"req_{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = request_id
        sent = False

        async def send_with_id(message: Message) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            announced = headers.get("content-length", "")
            if announced.isascii() and announced.isdigit():
                self._refuse_above_limit(int(announced))
            await self._app(scope, self._counted(receive), send_with_id)
        except TooLarge as error:
            if sent:
                raise
            await problem_response(error, request_id)(scope, receive, send_with_id)

    def _counted(self, receive: Receive) -> Receive:
        total = 0

        async def receive_counted() -> MutableMapping[str, Any]:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            self._refuse_above_limit(total)
            return message

        return receive_counted

    def _refuse_above_limit(self, size: int) -> None:
        if size > self._max_body_bytes:
            raise TooLarge(
                f"the body is larger than the {self._max_body_bytes} bytes allowed; send fewer groups at once, "
                "or raise ADJUDGE_MAX_BODY_BYTES on the server"
            )
