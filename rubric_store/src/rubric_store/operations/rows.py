"""Operations and their chunks, as workers and the store exchange them.

An operation is split into chunks of inputs. A worker holds a lease on its chunk, so that a worker that dies delays the
chunk no longer than the lease. A chunk is finished exactly once, with all its results.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue

from trainer_client.wire.operations import OperationKind, OperationState
from trainer_client.wire.verdicts import Usage

ChunkState = Literal["queued", "running", "waiting", "done", "failed"]
"""`waiting` is the state of the final chunk until all others have ended."""


MAX_ATTEMPTS = 5
"""How often a chunk is attempted before it fails; attempts that could not reach the service do not count. With pauses
of 15 seconds in all, they outlast an engine's restart; a chunk that kills its worker stops after this many."""


class ChunkRef(NamedTuple):
    """The identity of a chunk: its index `chunk` in an operation, from 0."""

    project_id: str
    operation_id: str
    chunk: int


class NewChunk(NamedTuple):
    """A chunk to store. `inputs` is the number of its inputs; `body` is JSON in the format of the operation's kind."""

    inputs: int
    body: JsonValue


class Submission(NamedTuple):
    """The idempotency key of a submission, and the digest of the request as it was received."""

    key: str
    asked: bytes


class NewOperation(NamedTuple):
    """An operation to store. The same `submission` creates it only once.

    With `has_final_chunk`, one more chunk, without inputs, is processed after all others have ended.
    """

    id: str
    project_id: str
    kind: OperationKind
    request: dict[str, Any]
    chunks: Sequence[NewChunk]
    created_at: datetime
    submission: Submission | None = None
    has_final_chunk: bool = False


class LeasedChunk(NamedTuple):
    """A chunk under a lease. `attempt` counts from 1; `body` is None for the final chunk."""

    ref: ChunkRef
    kind: OperationKind
    request: dict[str, Any]
    body: Any
    inputs: int
    attempt: int
    owner: str

    @property
    def last_attempt(self) -> bool:
        """Whether this is the chunk's last attempt."""
        return self.attempt >= MAX_ATTEMPTS


class ChunkOutcome(NamedTuple):
    """The outcome of a chunk.

    Attributes:
        results: one object per result, in the order of the inputs.
        usage: the cost of judging.
        counts: what to add to the operation's progress, by field; `done` defaults to the number of the chunk's inputs.
        discarded: inputs without a result, by reason.
        summary: the summary of the whole operation, from the final chunk.
    """

    results: Sequence[Mapping[str, JsonValue]] = ()
    usage: Usage = Usage()
    counts: Mapping[str, int] = {}
    discarded: Mapping[str, int] = {}
    summary: dict[str, JsonValue] | None = None


class OperationCounts(NamedTuple):
    """Counts over all projects of a store.

    Attributes:
        operations: operations by kind and state, including ended ones that are still stored.
        chunks: chunks of operations that have not ended, by kind and state.
        oldest_due_at: when the longest-waiting chunk became due; None if none waits.
    """

    operations: Mapping[tuple[OperationKind, OperationState], int]
    chunks: Mapping[tuple[OperationKind, ChunkState], int]
    oldest_due_at: datetime | None
