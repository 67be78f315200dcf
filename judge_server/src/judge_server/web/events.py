"""An operation's changes as server-sent events. Knows the form of a stream; refuses to know where changes come from."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from judge_server.ports import UnknownOperation
from trainer_client.wire.operations import Operation

log = logging.getLogger("adjudge")

EVENTS = "text/event-stream"
HEARTBEAT_S = 15.0
"""Seconds without an event after which a comment says that the connection lives."""

_HEARTBEAT = b": still here\n\n"

EVENT: dict[str, Any] = {
    "type": "object",
    "description": "One event of the stream. Its data is an `Operation`, as JSON in one line.",
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


async def event_stream(changes: AsyncIterator[Operation]) -> AsyncIterator[bytes]:
    """Events, and comments where none comes for a while; ends early where the store is away, to be asked again."""
    coming = asyncio.ensure_future(anext(changes, None))
    try:
        yield _HEARTBEAT
        while True:
            done, _ = await asyncio.wait({coming}, timeout=HEARTBEAT_S)
            if not done:
                yield _HEARTBEAT
                continue
            operation = coming.result()
            if operation is None:
                return
            yield f"id: {operation.revision}\nevent: operation\ndata: {operation.model_dump_json()}\n\n".encode()
            coming = asyncio.ensure_future(anext(changes, None))
    except (ConnectionError, UnknownOperation) as error:
        log.warning("events end early: %s", error)
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
