"""Where what was judged is kept, and read again."""

from collections.abc import Sequence
from typing import Protocol

from trainer_client.wire.ledger_rows import (
    JudgedResponse,
    JudgedRun,
    LedgerRows,
    RefusedRows,
    RunRange,
    RunReportQuery,
    UseFilter,
    UseRecord,
)
from trainer_client.wire.runs import RunPage, RunReport


class Ledger(Protocol):
    """Keeps rows for good. The first verdict under a digest stands; a later one that differs is a re-judgement."""

    def write(self, rows: LedgerRows) -> None:
        """Write rows, all or none, those that are there already left as they are; blocks its thread.

        `ConnectionError` where they cannot be written now, `ValueError` where the database refuses some of them.
        """

    def salvage(self, rows: LedgerRows) -> list[RefusedRows]:
        """Write rows that were refused, request by request and where need be row by row; what is refused still.

        Blocks its thread, and may be called again with the same rows. `ConnectionError` as in `write`.
        """

    async def ready(self) -> bool:
        """Whether it can be read."""

    async def close(self) -> None:
        """Release connections."""


class RunReader(Protocol):
    """Reads the figures of runs. Both raise `ValueError` for a cursor that no page gave out."""

    async def runs(self, project_id: str, *, after: str | None = None, limit: int = 100) -> RunPage:
        """A page of a project's runs, the one that was judged for last first."""

    async def run(self, view: RunReportQuery) -> RunReport | None:
        """A run's figures, a page of its steps among them; None where there is no such run."""


class LedgerReader(RunReader, Protocol):
    """Reads what is kept."""

    async def uses(self, wanted: UseFilter) -> list[UseRecord]:
        """The uses of a run that are asked for, oldest first, with all their votes."""

    async def texts(self, project_id: str, digests: Sequence[bytes]) -> dict[bytes, str]:
        """Texts by digest, as JSON; those that are not kept are absent."""

    async def judged_run(self, part: RunRange) -> JudgedRun:
        """What of a part of a run there is to make rewards of."""

    async def judged_responses(
        self, part: RunRange, after: bytes | None, count: int
    ) -> tuple[list[JudgedResponse], bytes | None]:
        """Responses of a part of a run, about `count` uses of them, and what to continue after; None at the end."""
