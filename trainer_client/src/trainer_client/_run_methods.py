"""What clients ask about training runs: which there are, and the figures of one by step and criterion."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import TypedDict, Unpack
from urllib.parse import quote

from trainer_client._connection import AsyncConnection, Connection
from trainer_client._requests import PreparedRequest
from trainer_client.wire.runs import RunPage, RunReport, RunSummary

_STEPS_PER_PAGE = 500


class RunKeywords(TypedDict, total=False):
    """What of a run is told of."""

    first_step: int | None
    last_step: int | None
    rubric: str | None
    criterion: Sequence[str]
    criteria: int


class RunMethods(Connection):
    """What `Client` asks about runs."""

    def runs(self) -> Iterator[RunSummary]:
        """Go through the runs of the ledger, the one that was judged for last first, fetching a page at a time.

        Raises:
            AdjudgeError: as for `rewards`.
        """
        after: str | None = None
        while True:
            page = self._send(runs_request(after))
            yield from page.runs
            if (after := page.next_cursor) is None:
                return

    def run_report(self, run: str | None = None, **part: Unpack[RunKeywords]) -> RunReport:
        """Fetch the figures of a run, with all its steps in order; `next_cursor` is None.

        Args:
            run: the run; the client's own unless given, and '' for what was judged under no run's name.

        Part:
            first_step, last_step: only these steps, both included; leaves out what was judged without a step.
            rubric: only criteria as judged by this rubric: `name`, `name@3`, `name@alias` or `sha256:…`.
            criterion: only these criteria, by their ids.
            criteria: at most this many criteria, those with the most verdicts; 50 unless given, 200 at most.

        Raises:
            NotFound: the ledger has nothing of that run.
            AdjudgeError: as for `rewards`.
        """
        name = self.run if run is None else run
        found = self._send(run_request(name, part, None))
        steps = [*found.steps]
        while found.next_cursor is not None:
            found = self._send(run_request(name, part, found.next_cursor))
            steps += found.steps
        return found.model_copy(update={"steps": tuple(steps)})


class AsyncRunMethods(AsyncConnection):
    """What `AsyncClient` asks about runs; see `RunMethods`."""

    async def runs(self) -> AsyncGenerator[RunSummary, None]:
        """Go through the runs of the ledger; see `Client.runs`."""
        after: str | None = None
        while True:
            page = await self._send(runs_request(after))
            for run in page.runs:
                yield run
            if (after := page.next_cursor) is None:
                return

    async def run_report(self, run: str | None = None, **part: Unpack[RunKeywords]) -> RunReport:
        """Fetch the figures of a run, with all its steps; see `Client.run_report`."""
        name = self.run if run is None else run
        found = await self._send(run_request(name, part, None))
        steps = [*found.steps]
        while found.next_cursor is not None:
            found = await self._send(run_request(name, part, found.next_cursor))
            steps += found.steps
        return found.model_copy(update={"steps": tuple(steps)})


def runs_request(after: str | None) -> PreparedRequest[RunPage]:
    """Make `GET /v1/runs`, the page after a cursor."""
    return PreparedRequest("GET", "/v1/runs", RunPage, params={"after": after} if after else {})


def run_request(run: str | None, part: RunKeywords, after: str | None) -> PreparedRequest[RunReport]:
    """Make `GET /v1/runs/{run}`, the page of steps after a cursor."""
    given: Mapping[str, object] = {"limit": _STEPS_PER_PAGE, **part, "after": after}
    params = {
        name: [*value] if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
        for name, value in given.items()
        if value is not None
    }
    return PreparedRequest("GET", f"/v1/runs/{_quote_segment(run or '')}", RunReport, params=params)


def _quote_segment(run: str) -> str:
    """A run's name as one segment of a path, also where it is one that paths have a meaning for."""
    return run.replace(".", "%2E") if run in (".", "..") else quote(run, safe="")
