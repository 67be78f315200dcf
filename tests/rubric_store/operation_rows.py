"""Operations to store, and chunks of them to claim."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rubric_store import SQLOperations
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk, NewChunk, NewOperation, Submission
from trainer_client.wire.operations import Operation
from trainer_client.wire.verdicts import Usage

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 60.0
SUBMISSION = Submission("key", b"what was asked for")


class FixedClockOperations(SQLOperations):
    """Operations in a database whose clock stands at `at`, whatever the callers' clocks say."""

    def __init__(self, url: str) -> None:
        self.at = NOW
        super().__init__(url, keep_days=30, clock=lambda: self.at)


def later(seconds: float) -> datetime:
    """The time this many seconds after `NOW`."""
    return NOW + timedelta(seconds=seconds)


def new(id_: str = "op-1", chunks: int = 2, project_id: str = "p", created: float = 0, **more: Any) -> NewOperation:
    """An operation with chunks of three inputs each."""
    request = more.pop("request", {"run": "r"})
    bodies = [NewChunk(3, {"numbers": [chunk], "text": "\0 and \U0001f600"}) for chunk in range(chunks)]
    return NewOperation(id_, project_id, "score", request, bodies, later(created), **more)


def outcome(*results: Any, calls: int = 5) -> ChunkOutcome:
    """An outcome with these results and their cost."""
    return ChunkOutcome([{"result": one} for one in results], Usage(judge_calls=calls, seconds_judging=0.5))


async def claimed(store: FixedClockOperations, chunk: int, owner: str = "w", at: float | None = None) -> LeasedChunk:
    """Claim a chunk of `op-1`, if given at this many seconds after `NOW`."""
    if at is not None:
        store.at = later(at)
    work = await store.claim(ChunkRef("p", "op-1", chunk), owner, LEASE_S)
    assert work is not None
    return work


async def state_of(store: SQLOperations) -> Operation:
    """The current `op-1`."""
    operation = await store.get("p", "op-1")
    assert operation is not None
    return operation
