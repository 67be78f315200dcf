"""A caller who hangs up wants no answer: what is done for it stops, and its calls leave the queue and the engine."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel

log = logging.getLogger("adjudge")

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499
"""What the log shows of a request whose caller left; the caller sees nothing."""


class CallerLeft(Exception):
    """The connection was closed before the answer was ready."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, and cancel it if the caller disconnects. The request's body must have been read.

    Raises:
        CallerLeft: the caller disconnected.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        log.info("request %s: the caller left, its work is cancelled", request.state.request_id)
        raise CallerLeft
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def answered(request: Request, work: Coroutine[Any, Any, BaseModel]) -> Response:
    """The response with the message that the work makes; raises `CallerLeft` as `while_connected` does."""
    answer = await while_connected(request, work)
    return Response(answer.model_dump_json(), media_type="application/json")


def nobody_to_answer() -> Response:
    """The response to a caller who left."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
