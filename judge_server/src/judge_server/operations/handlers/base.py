"""The handler of a kind of operation, whose work is split into chunks, and the errors of a chunk."""

from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from rubric_store.operations.rows import ChunkOutcome, LeasedChunk, NewChunk


class FatalChunkError(Exception):
    """The chunk cannot be done by any attempt; the message tells the submitter why."""


class RetryableChunkError(Exception):
    """The chunk failed, but another attempt may succeed. `outcome` has the usage of this attempt."""

    def __init__(self, problem: str, outcome: ChunkOutcome | None = None) -> None:
        super().__init__(problem)
        self.outcome = outcome or ChunkOutcome()


class ServiceUnavailableError(RetryableChunkError):
    """A service that the chunk needs cannot be reached now; such an attempt is not counted."""


class InvalidOperationError(ValueError):
    """The request cannot be run here; the message says why."""


class OperationHandler(Protocol):
    """Handles one kind of operation. A chunk may run twice, so its effects must be idempotent."""

    has_final_chunk: bool
    """Whether the operation has a final chunk without a body, which runs when all others are done."""

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Split a request into its options and chunks of its inputs.

        References are resolved here, so that all chunks use the same versions.

        Raises:
            InvalidOperationError, UnknownRubric: the request cannot be run.
        """

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Work on a chunk.

        Raises:
            FatalChunkError: the chunk cannot be done.
            RetryableChunkError: another attempt may succeed.
        """
