"""Work that takes longer than a request: submitted, followed, read page by page, cancelled.

Whoever runs it keeps what is done: an operation that its process did not live to end goes on in the next one.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Literal, Protocol

from pydantic import Field, JsonValue

from trainer_client.wire.base import Answer

OperationKind = Literal["generate_rubrics", "validate_rubrics"]
OperationState = Literal["queued", "running", "done", "failed", "cancelled"]

ENDED: frozenset[OperationState] = frozenset({"done", "failed", "cancelled"})
"""States that do not change any more."""


class OperationProgress(Answer):
    """How far an operation is.

    Attributes:
        done, total: inputs that need no more work, of how many; total is None until they are counted.
        known: those of the done that an earlier attempt had done.
        made: inputs that gave a result; `added` counts those that are new in the store, `unpublished` those that the
            store does not take.
        discarded: inputs that gave none, by reason.
        failed: inputs left undone because an engine failed; another attempt tries them again.
        refused, repeated: lines of the input that could not be read, and those that repeat an earlier one.
        calls, tokens_computed, tokens_reused, tokens_written: what the model was asked in this attempt.
        seconds: how long this attempt has taken.
        rate: inputs per second in this attempt; None until one is done.
        eta_s: seconds that the rest will take at this rate.
    """

    done: int = 0
    total: int | None = None
    known: int = 0
    made: int = 0
    added: int = 0
    unpublished: int = 0
    discarded: dict[str, int] = Field(default={})
    failed: int = 0
    refused: int = 0
    repeated: int = 0
    calls: int = 0
    tokens_computed: int = 0
    tokens_reused: int = 0
    tokens_written: int = 0
    seconds: float = 0.0
    rate: float | None = None
    eta_s: float | None = None


class Operation(Answer):
    """An operation as it stands. `revision` grows with every change; `problem` says why one failed."""

    id: str
    project_id: str
    kind: OperationKind
    request: dict[str, JsonValue]
    state: OperationState
    revision: int
    progress: OperationProgress = OperationProgress()
    problem: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether it changes no more."""
        return self.state in ENDED


class UnknownOperation(LookupError):
    """There is no such operation, or it is another project's."""


class ResultPage(Answer):
    """Results in the order in which they were made. `next_after` asks for the following page.

    `next_after` is None once the operation has ended and all its results were read: until then more may come.
    """

    results: tuple[dict[str, JsonValue], ...]
    next_after: int | None


class Operations(Protocol):
    """Long work, each project's apart from the others'. Unknown ids raise `UnknownOperation`."""

    async def submit(self, project_id: str, kind: OperationKind, request: Mapping[str, JsonValue]) -> Operation:
        """Queue an operation; raises `ValueError` for a request that its kind does not take."""

    async def get(self, project_id: str, operation_id: str) -> Operation:
        """The operation as it stands."""

    async def list(self, project_id: str) -> tuple[Operation, ...]:
        """The project's operations, the newest first."""

    def events(self, project_id: str, operation_id: str, *, after: int = 0) -> AsyncIterator[Operation]:
        """The operation each time it changed, as of revision `after + 1`, until it has ended.

        Changes that come faster than they are read are given as one.
        """

    async def results(self, project_id: str, operation_id: str, *, after: int = 0, limit: int = 100) -> ResultPage:
        """Results `after`, `after + 1`, …, at most `limit` of them."""

    async def cancel(self, project_id: str, operation_id: str) -> Operation:
        """End it where it is; what is done stays done. One that has ended stays as it is."""
