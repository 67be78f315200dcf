"""Security headers of every response, and cancellation of the work for callers that disconnect.

There is no CORS header, so pages of other origins cannot read responses. There is no HSTS header either: the proxy that
terminates TLS has to set it.

If a caller disconnects, the work on its request is cancelled and its calls leave the queue and the engine.
"""

import asyncio
import logging
import re
from base64 import b64encode
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders

from judge_server.time_sharing import TimeSlicer, run_in_thread

log = logging.getLogger("adjudge")

T = TypeVar("T")

HTML_PAGES = frozenset({"/docs", "/docs/oauth2-redirect", "/redoc"})
"""The HTML pages; every other response is for programs."""

STATIC_FOLDER = "/static-offline-docs/"
"""The folder of the pages' scripts and styles."""

CLIENT_CLOSED_REQUEST = 499
"""The status that the log shows for a request whose caller disconnected; the caller does not receive it."""

_RESPONSES_AT_ONCE = 64
"""A message with at most so many responses is encoded at once."""

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


async def respond_while_connected(request: Request, work: Coroutine[Any, Any, BaseModel]) -> Response:
    """Respond with the message that the work returns; raises `ClientDisconnected` as `run_while_connected` does."""

    async def encoded() -> bytes:
        return await encode_json(await work)

    return Response(await run_while_connected(request, encoded()), media_type="application/json")


async def encode_json(message: BaseModel, *, exclude_unset: bool = False) -> bytes:
    """Encode a message as `model_dump_json` does; one with many responses in slices, so that other requests run."""

    def encode(part: BaseModel) -> bytes:
        return part.model_dump_json(exclude_unset=exclude_unset).encode()

    groups = (message,) if hasattr(message, "responses") else getattr(message, "groups", ())
    if sum([len(group.responses) for group in groups]) <= _RESPONSES_AT_ONCE:
        return encode(message)
    parts: list[bytes] = []
    await _encode_lists(message, encode, TimeSlicer(), parts)
    return await run_in_thread(b"".join, parts)


async def _encode_lists(
    message: BaseModel, encode: Callable[[BaseModel], bytes], slicer: TimeSlicer, parts: list[bytes]
) -> None:
    name = next((name for name in ("groups", "responses") if name in type(message).model_fields), None)
    if name is None:
        await slicer.yield_if_due()
        parts.append(encode(message))
        return
    empty = f'"{name}":['.encode()
    before, _, after = encode(message.model_copy(update={name: ()})).partition(empty)
    parts.append(before + empty)
    for place, item in enumerate(getattr(message, name)):
        if place:
            parts.append(b",")
        await _encode_lists(item, encode, slicer, parts)
    parts.append(after)


def client_closed_response() -> Response:
    """The response for a caller that disconnected."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
