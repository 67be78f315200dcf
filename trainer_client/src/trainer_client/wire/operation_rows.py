"""What crosses between those who work on operations and the store that keeps them: chunks, leases, outcomes.

An operation is split into chunks, each of some inputs. A chunk is worked on under a lease, so that a worker that dies
holds it up no longer than that; and it is finished once, with all its results, whoever finishes it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue

from trainer_client.wire.answers import Usage
from trainer_client.wire.operations import OperationKind, OperationState

ChunkState = Literal["queued", "running", "waiting", "done", "failed"]
"""`waiting` is the chunk that finishes an operation, until all others have ended."""

MAX_ATTEMPTS = 5
"""How often a chunk is begun before it is given up; attempts that found no service to ask are not counted."""

WILL_RETRY_HEADER = "Adjudge-Will-Try-Again"
"""A header of what a worker asks: `true` where it will ask again if verdicts fail that another attempt may mend."""


class ChunkRef(NamedTuple):
    """Which chunk: the `chunk`th of an operation, from 0."""

    project_id: str
    operation_id: str
    chunk: int


class NewChunk(NamedTuple):
    """Some inputs of an operation; `body` is what its kind makes of them, in JSON."""

    inputs: int
    body: JsonValue


class Submission(NamedTuple):
    """What its submitter calls a submission, and a digest of all that was asked for in it, as it came."""

    key: str
    asked: bytes


class NewOperation(NamedTuple):
    """An operation to be kept; under the same `submission` it is made once.

    `finishes` says whether one more chunk, without inputs, is worked on when all others have ended.
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
    """A chunk under a lease: `attempt` counts from 1, `body` is None for the chunk that finishes an operation."""

    ref: ChunkRef
    kind: OperationKind
    request: dict[str, Any]
    body: Any
    inputs: int
    attempt: int
    owner: str

    @property
    def last_attempt(self) -> bool:
        """Whether there will be no other."""
        return self.attempt >= MAX_ATTEMPTS


class ChunkOutcome(NamedTuple):
    """What came of a chunk.

    Attributes:
        results: an object each, in the order of the inputs.
        usage: what it cost the judge.
        counts: what to add to the operation's progress, by field; `done` is the chunk's inputs unless given.
        discarded: inputs that gave no result, by reason.
        summary: of the whole operation, from the chunk that finishes it.
    """

    results: Sequence[Mapping[str, JsonValue]] = ()
    usage: Usage = Usage()
    counts: Mapping[str, int] = {}
    discarded: Mapping[str, int] = {}
    summary: dict[str, JsonValue] | None = None


class OperationCounts(NamedTuple):
    """What a store holds at a moment, over all projects.

    Attributes:
        operations: how many there are of each kind in each state, those that are kept after their end included.
        chunks: how many chunks the operations that have not ended have, of each kind in each state.
        oldest_due_at: since when the chunk that has waited longest could have been begun; None where none waits.
    """

    operations: Mapping[tuple[OperationKind, OperationState], int]
    chunks: Mapping[tuple[OperationKind, ChunkState], int]
    oldest_due_at: datetime | None
