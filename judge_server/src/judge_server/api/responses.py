"""Security headers for every response, and callers that disconnect before theirs.

Headers that every answer carries, so that no browser takes it for what it is not.

Knows paths of pages and what such a page loads. There is no CORS header: pages of other origins get nothing. Nor is
there HSTS, which only what speaks TLS may promise: the proxy in front.

A caller who hangs up wants no answer: what is done for it stops, and its calls leave the queue and the engine.
"""

import asyncio
import logging
import re
from base64 import b64encode
from collections.abc import Coroutine
from hashlib import sha256
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders

HTML_PAGES = frozenset({"/docs", "/docs/oauth2-redirect", "/redoc"})
"""The pages for people; all else is for programs."""

STATIC_FOLDER = "/static-offline-docs/"
"""Where the pages' scripts and styles are."""

_SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
_DENY_ALL_POLICY = "default-src 'none'; frame-ancestors 'none'"
_INLINE_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL)


def add_headers(headers: MutableHeaders, path: str, page: bytes | None = None) -> None:
    """Add to an answer's headers what its path calls for, beside what a route has set; `page` is the page's HTML.

    Answers are kept nowhere, but for the pages' scripts and styles: they hold what only a key opens.
    """
    for name, value in _SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Content-Security-Policy", _DENY_ALL_POLICY if page is None else _policy_of(page))
    if not path.startswith(STATIC_FOLDER):
        headers.setdefault("Cache-Control", "no-store")


def _policy_of(page: bytes) -> str:
    """What the page itself holds and what this service serves, and nothing else; styles are made by its scripts."""
    inline = (b64encode(sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(page) if script.strip())
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in inline)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self' data:; connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


log = logging.getLogger("adjudge")

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499
"""What the log shows of a request whose caller left; the caller sees nothing."""


class ClientDisconnected(Exception):
    """The connection was closed before the answer was ready."""


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, and cancel it if the caller disconnects. The request's body must have been read.

    Raises:
        CallerLeft: the caller disconnected.
    """
    work_task = asyncio.ensure_future(work)
    disconnect_task = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({work_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        if work_task.done():
            return work_task.result()
        log.info("request %s: the caller left, its work is cancelled", request.state.request_id)
        raise ClientDisconnected
    finally:
        disconnect_task.cancel()
        work_task.cancel()
        await asyncio.gather(work_task, disconnect_task, return_exceptions=True)


async def respond_while_connected(request: Request, work: Coroutine[Any, Any, BaseModel]) -> Response:
    """The response with the message that the work makes; raises `ClientDisconnected` as `run_while_connected` does."""
    answer = await run_while_connected(request, work)
    return Response(answer.model_dump_json(), media_type="application/json")


def client_closed_response() -> Response:
    """The response to a caller who left."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
