"""Long-running work: the operations port, its store and queue, and the jobs that run as operations.

Work that takes longer than a request: submitted, followed, read page by page, cancelled, tried again.

Whoever runs it keeps what is done: an operation that its process did not live to end goes on in the next one.

What can be run as an operation: a job that goes on from wherever an earlier attempt of it got to.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from pydantic import JsonValue

from trainer_client.wire.operations import (
    TERMINAL_STATES,
    ChunkOutcome,
    ChunkRef,
    LeasedChunk,
    NewOperation,
    Operation,
    OperationCounts,
    OperationKind,
    OperationProgress,
    OperationState,
    ResultPage,
    Submission,
)

__all__ = [
    "TERMINAL_STATES",
    "ChunkQueue",
    "Operation",
    "OperationKind",
    "OperationProgress",
    "OperationState",
    "OperationStore",
    "Operations",
    "ResultPage",
    "UnknownOperation",
]


class UnknownOperation(LookupError):
    """There is no such operation, or it is another project's."""


class Operations(Protocol):
    """Long work, each project's apart from the others'. Unknown ids raise `UnknownOperation`."""

    async def submit(
        self, project_id: str, kind: OperationKind, request: Mapping[str, JsonValue], *, submission: str | None = None
    ) -> Operation:
        """Queue an operation; raises `ValueError` for a request that its kind does not take.

        Where an operation was submitted under the same `submission` before, it is that one.
        """

    async def get(self, project_id: str, operation_id: str) -> Operation:
        """The operation as it stands."""

    async def list(self, project_id: str) -> tuple[Operation, ...]:
        """The project's operations, the newest first. A large `request` may be left out: it is empty then."""

    def events(self, project_id: str, operation_id: str, *, after: int = 0) -> AsyncIterator[Operation]:
        """The operation each time it changed, as of revision `after + 1`, until it has ended.

        Changes that come faster than they are read are given as one.
        """

    async def results(self, project_id: str, operation_id: str, *, after: int = 0, limit: int = 100) -> ResultPage:
        """Results `after`, `after + 1`, …, at most `limit` of them, and fewer where they are large."""

    async def cancel(self, project_id: str, operation_id: str) -> Operation:
        """End it where it is; what is done stays done. One that has ended stays as it is."""

    async def retry(self, project_id: str, operation_id: str) -> Operation:
        """Go on with one that failed or was cancelled, from what is done. Any other stays as it is."""


class OperationStore(Protocol):
    """Where operations in chunks are kept.

    A chunk is `claim`ed for some seconds, which `renew` prolongs, and then completed, given back or given up, by who
    claimed it and by nobody else. What time it is then, the store says: clocks of those who ask differ. Every method
    raises `ConnectionError` where the store cannot be reached now.
    """

    async def create(self, new: NewOperation) -> Operation:
        """Keep an operation with its chunks, or give the one that the same submission made.

        Raises `ValueError` where that submission asked for something else.
        """

    async def find_submission(self, project_id: str, submission: Submission) -> Operation | None:
        """The operation that a submission made; None where it made none. Raises `ValueError` as `create` does."""

    async def get(self, project_id: str, operation_id: str) -> Operation | None:
        """The operation as it stands."""

    async def get_state(self, project_id: str, operation_id: str) -> tuple[int, OperationState] | None:
        """Its revision and its state alone, which costs little however large it is."""

    async def list(self, project_id: str, limit: int) -> tuple[Operation, ...]:
        """The project's operations, the newest first; the `request` of one is empty where it is large."""

    async def results(self, project_id: str, operation_id: str, *, after: int, limit: int) -> ResultPage | None:
        """A page of results, shorter where they are large; None where there is no such operation."""

    async def cancel(self, project_id: str, operation_id: str, now: datetime) -> Operation | None:
        """End an operation that has not ended, and take its chunks from whoever works on them."""

    async def retry(self, project_id: str, operation_id: str) -> Operation | None:
        """Queue the chunks of an operation that failed or was cancelled, but for those that are done."""

    async def take_due(self, limit: int, *, lost_after_s: float) -> Sequence[ChunkRef]:
        """Chunks to put into the queue, which then count as announced: those that were not, and whose lease ran out.

        Also those that were announced longer ago than that and that nobody took. Projects take turns: the next chunk
        is of the one that has the fewest announced or worked on, for its weight.
        """

    async def claim(self, ref: ChunkRef, owner: str, lease_s: float) -> LeasedChunk | None:
        """Take a chunk that is to be worked on; None where somebody has it, or it is done, not due or gone."""

    async def renew(self, work: LeasedChunk, lease_s: float) -> bool:
        """Keep a chunk for longer; False where it was taken away."""

    async def complete(self, work: LeasedChunk, outcome: ChunkOutcome) -> bool:
        """Keep a chunk's results and what they cost, all or nothing; False where the chunk was taken away.

        Its inputs are forgotten.
        """

    async def requeue(
        self,
        work: LeasedChunk,
        problem: str | None,
        *,
        delay_s: float,
        outcome: ChunkOutcome,
        counts: bool,
    ) -> None:
        """Queue a chunk for another attempt after some seconds; one that does not count is not added to its attempts.

        Of the outcome only the usage is kept.
        """

    async def fail(self, work: LeasedChunk, problem: str) -> None:
        """Say that a chunk cannot be done."""

    async def counts(self, now: datetime) -> OperationCounts:
        """How many operations and chunks there are, over all projects; cheap enough to be asked some times a minute."""

    async def purge(self, now: datetime) -> int:
        """Delete operations that have expired; how many."""


class ChunkQueue(Protocol):
    """Where it is announced that a chunk is to be done.

    Announcements may be lost, and may come twice: the store says what is to be done.
    """

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Announce chunks; raises `ConnectionError` where that cannot be done now."""

    async def waiting(self) -> int:
        """How many announcements wait; raises `ConnectionError` where that cannot be said now."""


class JobFailed(Exception):
    """A job that cannot go on, for a reason that its message tells whoever asked for it."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """One attempt at an operation.

    Attributes:
        request: what was asked for, as `Job.check` let it pass.
        folder: the operation's own, the same in every attempt.
        report: says how far it is.
    """

    operation_id: str
    project_id: str
    request: dict[str, Any]
    folder: Path
    report: Callable[[OperationProgress], None]


class Job(Protocol):
    """A kind of operation."""

    def check(self, request: dict[str, Any]) -> None:
        """Raises `ValueError` for a request that cannot be run."""

    def results_file(self, request: dict[str, Any], folder: Path) -> Path:
        """The file that results are appended to, a line of JSON each."""

    async def run(self, context: JobContext) -> None:
        """Do the work; cancelled at any moment, or killed, it must be able to go on in another attempt.

        What it raises fails the operation. `JobFailed`, `OSError` and `ValueError` explain themselves; all else is
        taken for a mistake in the program.
        """
