"""An operation's changes as server-sent events. Knows the form of a stream; refuses to know where changes come from."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from judge_server.ports import UnknownOperation
from trainer_client.wire.operations import Operation

log = logging.getLogger("adjudge")

EVENT_STREAM_MEDIA_TYPE = "text/event-stream"
SHUTDOWN_STATE_KEY = "stopping"
"""The name under which a request's state may have an `asyncio.Event`: the server that took it begins to stop."""

SSE_HEARTBEAT_INTERVAL_S = 15.0
"""Seconds without an event after which a comment says that the connection lives."""

_HEARTBEAT = b": still here\n\n"

EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "One event of the stream. Its data is an `ArithmeticOperation`, as JSON in one line.",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"const": "operation"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/Operation"},
        },
    },
}
"""What the OpenAPI document says of each event."""


async def event_stream(changes: AsyncIterator[Operation], stopping: asyncio.Event) -> AsyncIterator[bytes]:
    """Events, and comments where none comes for a while.

    Ends early where the store is away, and when the server begins to stop: whoever follows asks again, of another one.
    """
    next_change = asyncio.ensure_future(anext(changes, None))
    shutdown = asyncio.ensure_future(stopping.wait())
    try:
        yield _HEARTBEAT
        while not stopping.is_set():
            done, _ = await asyncio.wait(
                {next_change, shutdown}, timeout=SSE_HEARTBEAT_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
            )
            if next_change not in done:
                yield _HEARTBEAT
                continue
            operation = next_change.result()
            if operation is None:
                return
            yield f"id: {operation.revision}\nevent: operation\ndata: {operation.model_dump_json()}\n\n".encode()
            next_change = asyncio.ensure_future(anext(changes, None))
    except (ConnectionError, UnknownOperation) as error:
        log.warning("events end early: %s", error)
    finally:
        next_change.cancel()
        shutdown.cancel()
        await asyncio.gather(next_change, shutdown, return_exceptions=True)
