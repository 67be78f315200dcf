"""The clients' methods for recorded verdicts, recomputed rewards and training runs."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from trainer_client.client.answers import (
    NDJSON,
    AnswerT,
    EventT,
    PreparedRequest,
    cut_off_error,
    lines_of,
    read_event,
)
from trainer_client.client.calls import query, validated
from trainer_client.client.connection import AsyncConnection
from trainer_client.client.matching import unequal
from trainer_client.wire import (
    CriterionKind,
    FailurePolicy,
    LengthPenalty,
    OverlongPenalty,
    RewardMode,
    RewardOptions,
    UncertainPolicy,
    UsedProtocol,
    VerdictStatus,
    VerdictUse,
)
from trainer_client.wire.ledger import (
    ExportEvent,
    ExportKind,
    LabelReceipt,
    LabelRequest,
    PairsBy,
    RecomputeEvent,
    RecomputeRequest,
    RecordedPage,
    RecordedVerdict,
    StepBudgets,
    StepMeasures,
)
from trainer_client.wire.runs import CorrectedRates, MonitorReport, RunAudit, RunPage, RunReport, RunSummary

_STEPS_PER_PAGE = 500


class RunKeywords(TypedDict, total=False):
    """Options that select a part of a run's report."""

    first_step: int | None
    last_step: int | None
    rubric: str | None
    criterion: Sequence[str]
    criteria: int


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


class ExportKeywords(TypedDict, total=False):
    """Which rows to make of a run, and of which of its responses."""

    first_step: int | None
    last_step: int | None
    rubric: str | None
    criterion: str | None
    by: PairsBy
    all_pairs: bool
    min_margin: float
    min_reward: float | None
    conversational: bool


class VerdictFilters(TypedDict, total=False):
    """Which recorded verdicts of a run to read, and whether with the judged texts."""

    step: int | None
    rubric: str | None
    criterion: str | None
    status: VerdictStatus | None
    texts: bool


class AsyncLedgerMethods(AsyncConnection):
    """The methods of `AsyncClient` about the ledger: training runs, recorded verdicts and recomputed rewards."""

    def runs(self) -> AsyncGenerator[RunSummary, None]:
        """Iterate over the runs of the ledger, most recently used first, fetching a page at a time.

        Raises:
            AdjudgeError: as for `rewards`.
        """
        return self._items(PreparedRequest("GET", "/v1/runs", RunPage), lambda page: page.runs)

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
        name = self._run_name(run)

        def mismatch(report: RunReport) -> str | None:
            return unequal({"run": name or None}, report.run)

        params = query(**{"limit": _STEPS_PER_PAGE, **part})
        request = PreparedRequest("GET", _path(name), RunReport, params=params, mismatch=mismatch)
        pages = [page async for page in self._pages(request)]
        return pages[-1].model_copy(update={"steps": tuple(step for page in pages for step in page.steps)})

    async def run_monitors(self, run: str | None = None, *, until_step: int | None = None) -> MonitorReport:
        """Fetch what the monitors find in a run.

        Args:
            run: the run's name; defaults to the client's run.
            until_step: the last step to look at; defaults to the run's last one.

        Raises:
            NotFound: the ledger has no step of such a run.
            AdjudgeError: as for `rewards`.
        """
        return await self._report(run, "/monitors", MonitorReport, until_step=until_step)

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
        return await self._report(run, "/corrected-rates", CorrectedRates, first_step=first_step, last_step=last_step)

    async def audit_run(self, run: str | None = None, *, against: Sequence[str] = ()) -> RunAudit:
        """Fetch an audit of a run: what its judge credits more and more, and others who look do not.

        Args:
            run: the run's name; defaults to the client's run.
            against: up to five runs that judged the same responses by another judge or another rubric.

        Raises:
            NotFound: the ledger does not have one of the runs.
            AdjudgeError: as for `rewards`.
        """
        return await self._report(run, "/audit", RunAudit, against=[*against] or None)

    async def _report(self, run: str | None, part: str, answer: type[AnswerT], **part_of_run: object) -> AnswerT:
        name, params = self._run_name(run), query(**part_of_run)
        expected = {"run": name or None}
        return await self.send(PreparedRequest("GET", _path(name, part), answer, params=params, expected=expected))

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
        given = validated(StepMeasures, {"run": self._run_name(run), "step": step, "measures": dict(measures)})
        expected = {"run": given.run, "step": given.step}
        await self.send(PreparedRequest("PUT", "/v1/measures", StepMeasures, given, expected=expected))

    def _run_name(self, run: str | None) -> str:
        return (self.run if run is None else run) or ""

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
        name = run or self.run
        given = {rule: value for rule, value in rules.items() if value is not None}
        reward = {rule: given.pop(rule) for rule in RewardOptions.model_fields if rule in given}
        request = validated(RecomputeRequest, {"run": name, "reward": reward, **given})
        mismatch = partial(_recomputed_problem, name)
        return self._events(
            PreparedRequest("POST", "/v1/rewards/recompute", RecomputeEvent, request, accept=NDJSON, mismatch=mismatch)
        )

    def export(
        self, run: str | None = None, as_: ExportKind = "pairs", **part: Unpack[ExportKeywords]
    ) -> AsyncGenerator[ExportEvent, None]:
        """Export a run as training data in the dataset formats of TRL, without a judge.

        Args:
            run: the run's name; defaults to the client's run. Pass '' for requests without a run.
            as_: the rows to make: preference `pairs`, `sft` for all rewarded responses, the `best` one of each prompt,
                or `verdicts`.

        Part:
            first_step, last_step: only these steps, both included; leaves out requests without a step.
            rubric: only responses under this rubric: `name`, `name@3`, `name@alias` or `sha256:…`.
            criterion: only this criterion, for verdicts and pairs by criterion.
            by: whether the responses of a pair differ in their reward (`total`, the default) or in their verdict on a
                `criterion`.
            all_pairs: every pair of a prompt, instead of its best and its worst response.
            min_margin: the smallest margin of a pair.
            min_reward: the smallest reward of a row for `sft` or `best`.
            conversational: write messages, even where prompts and responses are texts.

        Returns:
            Events as they arrive: each `row`, and at the end a `summary` of what was left out and why.

        Raises:
            NotFound: during iteration, as the others: the ledger has no such responses.
            InvalidRequest: an option does not apply, or the ledger has no texts of the run.
            AdjudgeError: as for `rewards`. The request is not retried.
        """
        name, params = self._run_name(run), query(**{"as": as_, **part})

        def mismatch(event: ExportEvent) -> str | None:
            return None if event.summary is None else unequal({"run": name or None}, event.summary)

        return self._events(
            PreparedRequest("GET", _path(name, "/export"), ExportEvent, params=params, accept=NDJSON, mismatch=mismatch)
        )

    def recorded_verdicts(
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
        params = query(**{"run": run or self.run or "", "limit": 500, **filters})
        of_record = {"run": run or self.run or None, "step": filters.get("step")}
        of_verdict = {"criterion": filters.get("criterion")}

        def mismatch(page: RecordedPage) -> str | None:
            for recorded in page.verdicts:
                found = unequal(of_record, recorded, unless_null=True)
                if found := found or unequal(of_verdict, recorded.verdict, unless_null=True):
                    return f"verdict {recorded.id!r}: {found}"
            return None

        request = PreparedRequest("GET", "/v1/verdicts", RecordedPage, params=params, mismatch=mismatch)
        return self._items(request, lambda page: page.verdicts)

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
        given = [{"verdict": verdict, "met": met} for verdict, met in labels.items()]
        request = validated(LabelRequest, {"run": self._run_name(run), "labels": given})
        body = request.model_dump_json().encode()  # a null deletes a label
        return await self.send(PreparedRequest("PUT", "/v1/labels", LabelReceipt, body))

    async def _events(self, request: PreparedRequest[EventT]) -> AsyncGenerator[EventT, None]:
        done = False
        async with self._streamed(request) as response:
            request_id = response.headers.get("X-Request-Id")
            async for line in lines_of(response.aiter_bytes()):
                event = read_event(line, request.answer, self.base_url, request_id)
                request.check(event, request_id)
                done = event.summary is not None
                yield event
        if not done:
            raise cut_off_error(self.base_url, request_id, "send the request again")


def _path(run: str, part: str = "") -> str:
    """Return the path of a run, whose name is one segment; `.` and `..`, which have a meaning in paths, are quoted."""
    segment = run.replace(".", "%2E") if run in (".", "..") else quote(run, safe="")
    return f"/v1/runs/{segment}{part}"


def _recomputed_problem(run: str | None, event: RecomputeEvent) -> str | None:
    """Compare the run of an event, and check that each response of a group has one reward."""
    for part in (event.start, event.summary):
        if part is not None and (found := unequal({"run": run or None}, part)):
            return found
    positions = [] if event.group is None else [response.position for response in event.group.responses]
    if event.group is not None and len(set(positions)) < len(positions):
        return f"group {event.group.id!r} has a response more than once"
    return None
