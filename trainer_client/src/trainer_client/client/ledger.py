"""The clients' methods for recorded verdicts, recomputed rewards and training runs.

What clients ask of the ledger: a run's rewards under other rules, and the verdicts it was judged with.

What clients ask about training runs: which there are, and the figures of one by step and criterion.
"""

from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from trainer_client.client.answers import error_for, error_for_problem, typed_errors
from trainer_client.client.calls import PreparedRequest, invalid_request_error, send_options, to_json_bytes
from trainer_client.client.connection import AsyncConnection, Connection
from trainer_client.errors import ConnectionFailed, ServerError
from trainer_client.wire import (
    CriterionKind,
    FailurePolicy,
    JudgingProtocol,
    LengthPenalty,
    OverlongPenalty,
    RewardMode,
)
from trainer_client.wire.ledger import (
    RecomputeEvent,
    RecomputeRequest,
    RecordedPage,
    RecordedVerdict,
    RunPage,
    RunReport,
    RunSummary,
    StepBudgets,
)

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


_REWARD_FIELDS = (
    "mode",
    "kinds",
    "format_weight",
    "gate_fraction",
    "length_penalty",
    "overlong_penalty",
    "truncation_factor",
)


class RecomputeKeywords(TypedDict, total=False):
    """How a run is rewarded again: the fields of `wire.recompute.RecomputeRequest`, and of its `reward`."""

    first_step: int | None
    last_step: int | None
    protocol: JudgingProtocol | None
    mode: RewardMode
    kinds: Sequence[CriterionKind] | None
    format_weight: float
    gate_fraction: float
    length_penalty: LengthPenalty | Mapping[str, Any] | None
    overlong_penalty: OverlongPenalty | Mapping[str, Any] | None
    truncation_factor: float | None
    on_failure: FailurePolicy
    weights: Mapping[str, float]
    budgets: StepBudgets | Mapping[str, float]


class LedgerMethods(RunMethods):
    """What `Client` asks of the ledger."""

    def recompute(self, run: str | None = None, **rules: Unpack[RecomputeKeywords]) -> Iterator[RecomputeEvent]:
        """Reward a run again under other rules, from the verdicts that the service has kept; no judge is asked.

        Args:
            run: the run; the client's own unless given.

        Rules, each with the service's own default:
            first_step, last_step: the part of the run.
            protocol: take only what was judged in this protocol.
            mode, kinds, format_weight, gate_fraction, length_penalty, overlong_penalty, truncation_factor, on_failure:
                as for `rewards`.
            weights: by criterion id, instead of the rubric's.
            budgets: `suggest`, `pitfall` and `bonus` of the steps.

        Returns:
            Lines as they come: one `start`, the `group`s in the order they were judged, and last a `summary`. What was
            judged twice comes twice.

        Raises:
            InvalidRequest: at once, the rules break the contract; while going through the lines, the run's verdicts
                cannot feed the mode.
            AdjudgeError: while going through the lines, as for `rewards`. It is not tried again.
        """
        return self._stream_recompute(recompute_request(run or self.run, rules))

    def recorded_verdicts(self, run: str | None = None, **filters: Any) -> Iterator[RecordedVerdict]:
        """Go through the verdicts of a run, oldest first, fetching a page at a time.

        Args:
            run: the run; the client's own unless given.
            filters: `step`, `rubric`, `criterion`, `status` (`ok` or `failed`), and `texts=True` to have what was
                judged with it.

        Raises:
            AdjudgeError: as for `rewards`.
        """
        after: str | None = None
        while True:
            page = self._send(recorded_verdicts_request(run or self.run, filters, after))
            yield from page.verdicts
            if page.next_cursor is None:
                return
            after = page.next_cursor

    def _stream_recompute(self, request: PreparedRequest[RecomputeEvent]) -> Generator[RecomputeEvent, None, None]:
        parser = _RecomputeStreamParser(self.base_url)
        with (
            typed_errors(self.base_url),
            self._http.stream(**send_options(request, self.settings.timeout_s)) as response,
        ):
            if not response.is_success:
                response.read()
                raise error_for(response)
            for piece in response.iter_bytes():
                yield from parser.feed(piece)
            parser.end(response)


class AsyncLedgerMethods(AsyncRunMethods):
    """What `AsyncClient` asks of the ledger; see `LedgerMethods`."""

    def recompute(
        self, run: str | None = None, **rules: Unpack[RecomputeKeywords]
    ) -> AsyncGenerator[RecomputeEvent, None]:
        """Reward a run again under other rules; see `Client.recompute`."""
        return self._stream_recompute(recompute_request(run or self.run, rules))

    async def recorded_verdicts(self, run: str | None = None, **filters: Any) -> AsyncGenerator[RecordedVerdict, None]:
        """Go through the verdicts of a run; see `Client.recorded`."""
        after: str | None = None
        while True:
            page = await self._send(recorded_verdicts_request(run or self.run, filters, after))
            for verdict in page.verdicts:
                yield verdict
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def _stream_recompute(self, request: PreparedRequest[RecomputeEvent]) -> AsyncGenerator[RecomputeEvent, None]:
        parser = _RecomputeStreamParser(self.base_url)
        with typed_errors(self.base_url):
            async with self._http.stream(**send_options(request, self.settings.timeout_s)) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_for(response)
                async for piece in response.aiter_bytes():
                    for line in parser.feed(piece):
                        yield line
                parser.end(response)


def recompute_request(run: str | None, rules: RecomputeKeywords) -> PreparedRequest[RecomputeEvent]:
    """Make `POST /v1/rewards/recompute`.

    Raises:
        InvalidRequest: it breaks the wire contract.
    """
    given = {name: value for name, value in rules.items() if value is not None}
    reward = {name: given.pop(name) for name in _REWARD_FIELDS if name in given}
    try:
        request = RecomputeRequest.model_validate({"run": run, "reward": reward, **given})
    except ValidationError as error:
        raise invalid_request_error(error) from error
    return PreparedRequest(
        "POST", "/v1/rewards/recompute", RecomputeEvent, to_json_bytes(request), accept="application/x-ndjson"
    )


def recorded_verdicts_request(
    run: str | None, filters: Mapping[str, Any], after: str | None
) -> PreparedRequest[RecordedPage]:
    """Make `GET /v1/verdicts`, the page after a cursor."""
    given = {"run": run or "", "limit": 500, **filters, "after": after}
    params = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in given.items() if v is not None}
    return PreparedRequest("GET", "/v1/verdicts", RecordedPage, params=params)


class _RecomputeStreamParser:
    """The lines of one answer, read from bytes as they come; only a line feed ends one."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._buffer = b""
        self._done = False

    def feed(self, piece: bytes) -> Iterable[RecomputeEvent]:
        """Give the lines that end in this piece; raises the error that a line tells of."""
        *whole, self._buffer = (self._buffer + piece).split(b"\n")
        for written in whole:
            try:
                line = RecomputeEvent.model_validate_json(written)
            except ValidationError as error:
                raise ServerError(
                    f"a line of the answer of {self._base_url} is not a RecomputeEvent", status=200
                ) from error
            if line.problem is not None:
                raise error_for_problem(line.problem, line.problem.status)
            self._done = line.summary is not None
            yield line

    def end(self, response: httpx2.Response) -> None:
        """Say that the answer is over; raises `ConnectionFailed` where its summary is missing."""
        if not self._done:
            raise ConnectionFailed(
                f"the answer of {self._base_url} was cut off before its summary; ask again",
                request_id=response.headers.get("X-Request-Id"),
                retryable=True,
            )
