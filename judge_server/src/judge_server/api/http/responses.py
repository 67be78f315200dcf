"""Security headers of every response, and cancellation of the work for callers that disconnect.

There is no CORS header, so pages of other origins cannot read responses. There is no HSTS header either: the proxy that
terminates TLS has to set it.

If a caller disconnects, the work on its request is cancelled and its calls leave the queue and the engine.
"""

import asyncio
import logging
import re
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.types import Receive, Scope, Send

from judge_server.scheduling.time_sharing import TimeSlicer

log = logging.getLogger("adjudge")

T = TypeVar("T")

NDJSON = "application/x-ndjson"
"""The media type of an answer of one JSON object a line."""

HTML_PAGES = frozenset({"/docs", "/docs/oauth2-redirect", "/redoc"})
"""The HTML pages; every other response is for programs."""

STATIC_FOLDER = "/static-offline-docs/"
"""The folder of the pages' scripts and styles."""

CLIENT_CLOSED_REQUEST = 499
"""The status that the log shows for a request whose caller disconnected; the caller does not receive it."""

_SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
_DENY_ALL_POLICY = "default-src 'none'; frame-ancestors 'none'"
_INLINE_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL)


def add_headers(headers: MutableHeaders, path: str, page: bytes | None = None) -> None:
    """Add the security headers of a path to a response; headers that a route has set stay.

    Responses must not be cached, because they require a key; only the pages' scripts and styles may be. `page` is the
    HTML of a page, whose inline scripts the policy allows by digest.
    """
    for name, value in _SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Content-Security-Policy", _DENY_ALL_POLICY if page is None else _policy_of(page))
    if not path.startswith(STATIC_FOLDER):
        headers.setdefault("Cache-Control", "no-store")


def _policy_of(page: bytes) -> str:
    """The policy of a page: its own inline scripts and what this service serves. Its scripts create inline styles."""
    inline = (b64encode(sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(page) if script.strip())
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in inline)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self' data:; connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


class ClientDisconnected(Exception):
    """The caller closed the connection before the response was ready."""


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, and cancel it if the caller disconnects. The request's body must have been read.

    Raises:
        ClientDisconnected: the caller disconnected.
    """
    work_task = asyncio.ensure_future(work)
    disconnect_task = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({work_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        if work_task.done():
            return work_task.result()
        log.info("request %s: the caller disconnected; its work is cancelled", request.state.request_id)
        raise ClientDisconnected
    finally:
        disconnect_task.cancel()
        if not work_task.done():
            work_task.cancel()
            await asyncio.gather(work_task, disconnect_task, return_exceptions=True)


class BlocksResponse(Response):
    """A JSON response that is sent block by block, as fast as the caller reads, so that no step copies all of it."""

    media_type = "application/json"

    def __init__(self, blocks: Sequence[bytes]) -> None:  # at least one
        super().__init__()
        self.headers["content-length"] = str(sum(map(len, blocks)))
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the start and the blocks."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = len(self._blocks) - 1
        for place, block in enumerate(self._blocks):
            await send({"type": "http.response.body", "body": block, "more_body": place < last})


async def encode_json(
    message: BaseModel,
    *,
    exclude_unset: bool = False,
    take_apart: bool = False,
    responses_at_once: int = 64,
    block_bytes: int = 2**17,
) -> list[bytes]:
    """Encode a message as `model_dump_json` does.

    A message with more than `responses_at_once` responses is encoded in slices, so that other requests run, and in
    blocks of about `block_bytes`, since copying one of 128 KiB takes well below a millisecond. With `take_apart`, each
    response is removed from it once it is encoded: freed at once at the end, 50,000 verdicts would hold the event loop
    for 25 ms.
    """

    def encode(part: BaseModel) -> bytes:
        return part.model_dump_json(exclude_unset=exclude_unset).encode()

    groups = (message,) if hasattr(message, "responses") else getattr(message, "groups", ())
    if sum([len(group.responses) for group in groups]) <= responses_at_once:
        return [encode(message)]
    del groups
    blocks = _Blocks(block_bytes)
    await _encode_lists(message, encode, TimeSlicer(), blocks, take_apart)
    return blocks.finish()


class _Blocks:
    """Joins small parts to blocks of `size` bytes or more."""

    def __init__(self, size: int) -> None:
        self._block_bytes = size
        self._blocks: list[bytes] = []
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size >= self._block_bytes:
            self._join()

    def finish(self) -> list[bytes]:
        if self._parts:
            self._join()
        return self._blocks

    def _join(self) -> None:
        self._blocks.append(b"".join(self._parts))
        self._parts.clear()
        self._size = 0


async def _encode_lists(
    message: BaseModel, encode: Callable[[BaseModel], bytes], slicer: TimeSlicer, blocks: _Blocks, take_apart: bool
) -> None:
    name = next((name for name in ("groups", "responses") if name in type(message).model_fields), None)
    if name is None:
        await slicer.yield_if_due()
        blocks.add(encode(message))
        return
    empty = f'"{name}":['.encode()
    before, _, after = encode(message.model_copy(update={name: ()})).partition(empty)
    blocks.add(before + empty)
    items = deque(getattr(message, name))
    if take_apart:
        message.__dict__[name] = ()
    while items:
        await _encode_lists(items.popleft(), encode, slicer, blocks, take_apart)
        if items:
            blocks.add(b",")
    blocks.add(after)


def client_closed_response() -> Response:
    """The response for a caller that disconnected."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
