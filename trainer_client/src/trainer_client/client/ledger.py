"""The clients' methods for recorded verdicts, recomputed rewards and training runs."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from trainer_client.client.answers import PreparedRequest, error_for, error_for_problem, require_match, typed_errors
from trainer_client.client.calls import invalid_request_error, send_options, to_json_bytes
from trainer_client.client.connection import AsyncConnection
from trainer_client.client.matching import unequal
from trainer_client.errors import ConnectionFailed, ServerError
from trainer_client.wire import (
    CriterionKind,
    FailurePolicy,
    LengthPenalty,
    OverlongPenalty,
    RewardMode,
    UncertainPolicy,
    UsedProtocol,
    VerdictStatus,
    VerdictUse,
)
from trainer_client.wire.ledger import (
    CorrectedRates,
    LabelReceipt,
    LabelRequest,
    RecomputeEvent,
    RecomputeRequest,
    RecordedPage,
    RecordedVerdict,
    RunPage,
    RunReport,
    RunSummary,
    StepBudgets,
    StepMeasures,
)
from trainer_client.wire.monitors import MonitorReport

_STEPS_PER_PAGE = 500


class RunKeywords(TypedDict, total=False):
    """Options that select a part of a run's report."""

    first_step: int | None
    last_step: int | None
    rubric: str | None
    criterion: Sequence[str]
    criteria: int


class AsyncRunMethods(AsyncConnection):
    """The methods of `AsyncClient` about training runs."""

    async def runs(self) -> AsyncGenerator[RunSummary, None]:
        """Iterate over the runs of the ledger, most recently used first, fetching a page at a time.

        Raises:
            AdjudgeError: as for `rewards`.
        """
        after: str | None = None
        while True:
            page = await self.send(runs_request(after))
            for run in page.runs:
                yield run
            if (after := page.next_cursor) is None:
                return

    async def run_report(self, run: str | None = None, **part: Unpack[RunKeywords]) -> RunReport:
        """Fetch the statistics of a run, with all its steps in order; `next_cursor` is None.

        Args:
            run: the run's name; defaults to the client's run. Pass '' for requests without a run.

        Part:
            first_step, last_step: only these steps, both included; leaves out requests without a step.
            rubric: only verdicts under this rubric: `name`, `name@3`, `name@alias` or `sha256:…`.
            criterion: only these criteria, by their ids.
            criteria: at most this many criteria, those with the most verdicts; defaults to 50, at most 200.

        Raises:
            NotFound: the ledger has no such run.
            AdjudgeError: as for `rewards`.
        """
        name = self.run if run is None else run
        report = await self.send(run_request(name, part, None))
        steps = [*report.steps]
        while report.next_cursor is not None:
            report = await self.send(run_request(name, part, report.next_cursor))
            steps += report.steps
        return report.model_copy(update={"steps": tuple(steps)})

    async def run_monitors(self, run: str | None = None, *, until_step: int | None = None) -> MonitorReport:
        """Fetch what the monitors find in a run.

        Args:
            run: the run's name; defaults to the client's run.
            until_step: the last step to look at; defaults to the run's last one.

        Raises:
            NotFound: the ledger has no step of such a run.
            AdjudgeError: as for `rewards`.
        """
        return await self.send(monitors_request(self.run if run is None else run, until_step))

    async def corrected_rates(
        self, run: str | None = None, *, first_step: int | None = None, last_step: int | None = None
    ) -> CorrectedRates:
        """Fetch the pass rates of a run, corrected for its judge's error if a stored calibration measured that.

        Args:
            run: the run's name; defaults to the client's run.
            first_step, last_step: only these steps, both included.

        Raises:
            NotFound: the ledger has no such run.
            AdjudgeError: as for `rewards`.
        """
        return await self.send(corrected_rates_request(self.run if run is None else run, first_step, last_step))

    async def report_measures(self, step: int, measures: Mapping[str, float], run: str | None = None) -> None:
        """Report what was measured in a training step, which the console draws over the steps of the run.

        Args:
            step: the training step, as in `rewards`.
            measures: up to 100 finite numbers by name, such as `{"rgr/refined": 0.25}`. A later report of the same
                step and name replaces the earlier one.
            run: the run's name; defaults to the client's run.

        Raises:
            InvalidRequest: there is no run, or a name or a number is invalid.
            AdjudgeError: as for `rewards`.
        """
        await self.send(measures_request(self.run if run is None else run, step, measures))


def measures_request(run: str | None, step: int, measures: Mapping[str, float]) -> PreparedRequest[StepMeasures]:
    """Build `PUT /v1/measures`.

    Raises:
        InvalidRequest: the request breaks the wire contract.
    """
    try:
        body = StepMeasures(run=run or "", step=step, measures=dict(measures))
    except ValidationError as error:
        raise invalid_request_error(error) from error
    mismatch = partial(unequal, {"run": body.run, "step": body.step})
    return PreparedRequest("PUT", "/v1/measures", StepMeasures, to_json_bytes(body), mismatch=mismatch)


def runs_request(after: str | None) -> PreparedRequest[RunPage]:
    """Build `GET /v1/runs` for the page after a cursor."""
    return PreparedRequest("GET", "/v1/runs", RunPage, params={"after": after} if after else {})


def run_request(run: str | None, part: RunKeywords, after: str | None) -> PreparedRequest[RunReport]:
    """Build `GET /v1/runs/{run}` for the page of steps after a cursor."""
    given: Mapping[str, object] = {"limit": _STEPS_PER_PAGE, **part, "after": after}
    params = {
        name: [*value] if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
        for name, value in given.items()
        if value is not None
    }
    path = f"/v1/runs/{_quote_segment(run or '')}"
    return PreparedRequest(
        "GET", path, RunReport, params=params, mismatch=lambda report: unequal({"run": run or None}, report.run)
    )


def monitors_request(run: str | None, until_step: int | None) -> PreparedRequest[MonitorReport]:
    """Build `GET /v1/runs/{run}/monitors`."""
    params = {} if until_step is None else {"until_step": str(until_step)}
    path, mismatch = f"/v1/runs/{_quote_segment(run or '')}/monitors", partial(unequal, {"run": run or None})
    return PreparedRequest("GET", path, MonitorReport, params=params, mismatch=mismatch)


def corrected_rates_request(
    run: str | None, first_step: int | None, last_step: int | None
) -> PreparedRequest[CorrectedRates]:
    """Build `GET /v1/runs/{run}/corrected-rates`."""
    given = {"first_step": first_step, "last_step": last_step}
    params = {name: str(value) for name, value in given.items() if value is not None}
    path = f"/v1/runs/{_quote_segment(run or '')}/corrected-rates"
    return PreparedRequest("GET", path, CorrectedRates, params=params, mismatch=partial(unequal, {"run": run or None}))


def _quote_segment(run: str) -> str:
    """Quote a run's name as one path segment; `.` and `..`, which have a meaning in paths, are quoted too."""
    return run.replace(".", "%2E") if run in (".", "..") else quote(run, safe="")


_REWARD_FIELDS = (
    "mode",
    "kinds",
    "format_weight",
    "gate_fraction",
    "length_penalty",
    "overlong_penalty",
    "truncation_factor",
    "use",
)


class RecomputeKeywords(TypedDict, total=False):
    """The rules of recomputed rewards: fields of `wire.ledger.RecomputeRequest` and of its `reward`."""

    first_step: int | None
    last_step: int | None
    protocol: UsedProtocol | None
    mode: RewardMode
    kinds: Sequence[CriterionKind] | None
    format_weight: float
    gate_fraction: float
    length_penalty: LengthPenalty | Mapping[str, Any] | None
    overlong_penalty: OverlongPenalty | Mapping[str, Any] | None
    truncation_factor: float | None
    use: VerdictUse
    on_failure: FailurePolicy
    uncertain_band: tuple[float, float] | None
    on_uncertain: UncertainPolicy
    weights: Mapping[str, float]
    budgets: StepBudgets | Mapping[str, float]


class VerdictFilters(TypedDict, total=False):
    """Which recorded verdicts of a run to read, and whether with the judged texts."""

    step: int | None
    rubric: str | None
    criterion: str | None
    status: VerdictStatus | None
    texts: bool


class AsyncLedgerMethods(AsyncRunMethods):
    """The methods of `AsyncClient` about the ledger."""

    def recompute(
        self, run: str | None = None, **rules: Unpack[RecomputeKeywords]
    ) -> AsyncGenerator[RecomputeEvent, None]:
        """Recompute the rewards of a run under other rules, from its recorded verdicts and without a judge.

        Args:
            run: the run's name; defaults to the client's run.

        Rules; those left out are as each request recorded them (see `wire.ledger.RecomputeRequest`):
            first_step, last_step: only these steps, both included.
            protocol: use only verdicts of this judging protocol.
            mode, kinds, format_weight, gate_fraction, length_penalty, overlong_penalty, truncation_factor, use,
                on_failure, uncertain_band, on_uncertain: as for `rewards`.
            weights: weights by criterion id, which replace those of the rubrics.
            budgets: `suggest`, `pitfall` and `bonus` of step rewards.

        Returns:
            Events as they arrive: one `start`, each `group` in the order of judging, and at the end a `summary`. A
            group that was judged twice occurs twice.

        Raises:
            InvalidRequest: at once if the rules break the contract; during iteration if the run's verdicts do not suit
                the mode.
            AdjudgeError: during iteration, as for `rewards`. The request is not retried.
        """
        return self._stream_recompute(recompute_request(run or self.run, rules))

    async def recorded_verdicts(
        self, run: str | None = None, **filters: Unpack[VerdictFilters]
    ) -> AsyncGenerator[RecordedVerdict, None]:
        """Iterate over the recorded verdicts of a run, oldest first, fetching a page at a time.

        Args:
            run: the run's name; defaults to the client's run.
            filters: `step`, `rubric`, `criterion`, `status` (`ok` or `failed`), and `texts=True` to include the judged
                texts.

        Raises:
            AdjudgeError: as for `rewards`.
        """
        after: str | None = None
        while True:
            page = await self.send(recorded_verdicts_request(run or self.run, filters, after))
            for verdict in page.verdicts:
                yield verdict
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def label(self, labels: Mapping[str, bool | None], run: str | None = None) -> LabelReceipt:
        """Say of recorded verdicts whether the criterion is met; the labels belong to this client's key.

        Args:
            labels: by the `id` of a verdict of `recorded_verdicts`, True or False; None takes a label back. At most
                1,000, which are stored all or none.
            run: the run's name; defaults to the client's run.

        Raises:
            NotFound: the run has no such verdict.
            AdjudgeError: as for `rewards`.
        """
        return await self.send(label_request(self.run if run is None else run, labels))

    async def _stream_recompute(self, request: PreparedRequest[RecomputeEvent]) -> AsyncGenerator[RecomputeEvent, None]:
        parser = RecomputeStreamParser(self.base_url, request)
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
    """Build `POST /v1/rewards/recompute`.

    Raises:
        InvalidRequest: the request breaks the wire contract.
    """
    given = {name: value for name, value in rules.items() if value is not None}
    reward = {name: given.pop(name) for name in _REWARD_FIELDS if name in given}
    try:
        request = RecomputeRequest.model_validate({"run": run, "reward": reward, **given})
    except ValidationError as error:
        raise invalid_request_error(error) from error
    mismatch, body = partial(_recomputed_problem, run), to_json_bytes(request)
    path, accept = "/v1/rewards/recompute", "application/x-ndjson"
    return PreparedRequest("POST", path, RecomputeEvent, body, accept=accept, mismatch=mismatch)


def _recomputed_problem(run: str | None, event: RecomputeEvent) -> str | None:
    """Compare the run of an event, and check that each response of a group has one reward."""
    for part in (event.start, event.summary):
        if part is not None and (found := unequal({"run": run or None}, part)):
            return found
    positions = [] if event.group is None else [response.position for response in event.group.responses]
    if event.group is not None and len(set(positions)) < len(positions):
        return f"group {event.group.id!r} has a response more than once"
    return None


def label_request(run: str | None, labels: Mapping[str, bool | None]) -> PreparedRequest[LabelReceipt]:
    """Build `PUT /v1/labels`.

    Raises:
        InvalidRequest: the request breaks the wire contract.
    """
    given = [{"verdict": verdict, "met": met} for verdict, met in labels.items()]
    try:
        request = LabelRequest.model_validate({"run": run or "", "labels": given})
    except ValidationError as error:
        raise invalid_request_error(error) from error
    body = request.model_dump_json().encode()  # with its nulls, which take labels back
    return PreparedRequest("PUT", "/v1/labels", LabelReceipt, body)


def recorded_verdicts_request(
    run: str | None, filters: VerdictFilters, after: str | None
) -> PreparedRequest[RecordedPage]:
    """Build `GET /v1/verdicts` for the page after a cursor."""
    given = {"run": run or "", "limit": 500, **filters, "after": after}
    params = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in given.items() if v is not None}
    of_record = {"run": run or None, "step": filters.get("step")}
    of_verdict = {"criterion": filters.get("criterion")}

    def mismatch(page: RecordedPage) -> str | None:
        for recorded in page.verdicts:
            found = unequal(of_record, recorded, unless_null=True)
            if found := found or unequal(of_verdict, recorded.verdict, unless_null=True):
                return f"verdict {recorded.id!r}: {found}"
        return None

    return PreparedRequest("GET", "/v1/verdicts", RecordedPage, params=params, mismatch=mismatch)


class RecomputeStreamParser:
    """Parser of one streamed answer, fed with bytes as they arrive. Only a line feed ends a line."""

    def __init__(self, base_url: str, request: PreparedRequest[RecomputeEvent]) -> None:
        self._base_url = base_url
        self._request = request
        self._buffer = b""
        self._done = False

    def feed(self, piece: bytes) -> Iterable[RecomputeEvent]:
        """Yield the events whose lines end in this piece. A line with a problem raises its error."""
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            try:
                event = RecomputeEvent.model_validate_json(line)
            except ValidationError as error:
                raise ServerError(
                    f"a line of the answer of {self._base_url} is not a valid RecomputeEvent; check that base_url is "
                    "an Adjudge service of this version",
                    status=200,
                ) from error
            if event.problem is not None:
                raise error_for_problem(event.problem, event.problem.status)
            require_match(self._request.mismatch(event), f"{self._request.method} {self._request.path}", None)
            self._done = event.summary is not None
            yield event

    def end(self, response: httpx2.Response) -> None:
        """Check that the answer is complete when the stream has ended; raise `ConnectionFailed` if it is not."""
        if not self._done:
            raise ConnectionFailed(
                f"the answer of {self._base_url} was cut off before its summary; send the request again",
                request_id=response.headers.get("X-Request-Id"),
                retryable=True,
            )
