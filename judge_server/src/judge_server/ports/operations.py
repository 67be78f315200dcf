"""Operations: work that takes longer than a request, such as scoring jobs and rubric generation.

`Operations` in `judge_server.operations.service` submits, follows, cancels and retries them; `OperationStore` and
`ChunkQueue` are what it needs. Finished work is kept, so an operation whose process dies continues in the next one.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk, NewOperation, OperationCounts, Submission
from trainer_client.wire.operations import (
    Operation,
    OperationList,
    OperationState,
    ResultPage,
)

MAX_PAGE_RESULTS = 1000
"""The maximum number of results in one page."""

WILL_RETRY_HEADER = "Adjudge-Will-Try-Again"
"""A header of a worker's requests: `true` if it will retry verdicts whose failure a retry may resolve."""


class OperationStore(Protocol):
    """Stores operations and their chunks.

    A worker claims a chunk under a lease of some seconds, renews the lease, and then completes, requeues or fails the
    chunk; only the worker that holds the lease may. Leases run by the store's clock, because workers' clocks differ.
    Every method raises `ConnectionError` if the store cannot be reached.
    """

    async def create(self, new: NewOperation) -> Operation:
        """Store an operation with its chunks, or return the one created by the same submission.

        Raises `ValueError` if that submission had another request.
        """

    async def find_submission(self, project_id: str, submission: Submission) -> Operation | None:
        """Return the operation that a submission created, or None. Raises `ValueError` as `create` does."""

    async def get(self, project_id: str, operation_id: str) -> Operation | None:
        """Return the current state of the operation."""

    async def get_state(self, project_id: str, operation_id: str) -> tuple[int, OperationState] | None:
        """Return only the revision and state of an operation, which is cheap even if it is large."""

    async def list(self, project_id: str, limit: int, after: str | None = None) -> OperationList:
        """List the project's operations, newest first; a large `request` is left empty."""

    async def results(self, project_id: str, operation_id: str, *, after: int, limit: int) -> ResultPage | None:
        """Return a page of results, shorter if they are large; None if there is no such operation."""

    async def cancel(self, project_id: str, operation_id: str, now: datetime) -> Operation | None:
        """Cancel an operation that has not ended, and revoke the leases on its chunks."""

    async def retry(self, project_id: str, operation_id: str) -> Operation | None:
        """Queue the unfinished chunks of an operation that failed or was cancelled."""

    async def take_due(self, limit: int, *, lost_after_s: float) -> Sequence[ChunkRef]:
        """Return chunks to put into the queue, and mark them as enqueued.

        These are chunks that were never enqueued, chunks whose lease has expired, and chunks that were enqueued more
        than `lost_after_s` seconds ago and not claimed. Projects take turns: the next chunk is of the project with the
        fewest chunks enqueued or in progress, relative to its weight.
        """

    async def claim(self, ref: ChunkRef, owner: str, lease_s: float) -> LeasedChunk | None:
        """Claim a chunk; None if another worker holds it, or it is done, not due or deleted."""

    async def renew(self, work: LeasedChunk, lease_s: float) -> bool:
        """Extend the lease on a chunk; False if it was lost."""

    async def complete(self, work: LeasedChunk, outcome: ChunkOutcome) -> bool:
        """Store a chunk's results and their cost atomically; False if the lease was lost.

        The chunk's inputs are deleted.
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
        """Queue a chunk for another attempt after `delay_s` seconds.

        The attempt just made is added to the chunk's attempts if `counts`. Of the outcome, only the usage is kept.
        """

    async def fail(self, work: LeasedChunk, problem: str) -> None:
        """Mark a chunk as failed for good."""

    async def counts(self, now: datetime) -> OperationCounts:
        """Count operations and chunks over all projects; cheap enough to call several times a minute."""

    async def purge(self, now: datetime) -> int:
        """Delete expired operations, and return how many."""


class ChunkQueue(Protocol):
    """A queue that tells workers which chunks are due.

    Messages may be lost or delivered twice; the store decides what is to be done.
    """

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Enqueue chunks. Raises `ConnectionError` if the queue cannot be reached."""

    async def waiting(self) -> int:
        """Count the waiting messages. Raises `ConnectionError` if the queue cannot be reached."""
