"""A kind of operation whose work is split into chunks, and how a chunk says that it could not be done."""

from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from trainer_client.wire.operations import ChunkOutcome, LeasedChunk, NewChunk


class FatalChunkError(Exception):
    """A chunk that no other attempt can do; the message tells whoever asked for it why."""


class RetryableChunkError(Exception):
    """A chunk that another attempt may do. `outcome` says what this one cost."""

    def __init__(self, problem: str, outcome: ChunkOutcome | None = None) -> None:
        super().__init__(problem)
        self.outcome = outcome or ChunkOutcome()


class ServiceUnavailableError(RetryableChunkError):
    """What the work needs cannot be reached now: attempts that find this are not counted."""


class InvalidOperationError(ValueError):
    """A request that cannot be run here; the message says why."""


class OperationHandler(Protocol):
    """What is done of one kind of operation. A chunk may be worked on twice, so nothing it does may count twice."""

    has_final_chunk: bool
    """Whether there is a last chunk, worked on when all others are done, which has no body."""

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """The request without its inputs, and those in chunks.

        What a reference stands for is settled here, so that all chunks agree on it.

        Raises:
            OperationRefused, UnknownRubric: it cannot be run.
        """

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Do a chunk.

        Raises:
            ChunkFailed: it cannot be done.
            ChunkUndone: another attempt may do it.
        """
