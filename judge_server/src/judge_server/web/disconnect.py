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
