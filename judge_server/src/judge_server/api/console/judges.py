"""The pages of judges: the list, and one with its engine, calibration and queue."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from starlette.responses import Response

from judge_server.api.console.operations import FIGURES, EvaluationView, evaluation_of
from judge_server.api.console.rendering import PageRouter, Visit
from judge_server.api.service import Service
from judge_server.errors import ServiceError
from judge_server.judging.calibration import NEUTRAL, StoredCalibration
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import project_of_run
from judge_server.ports import MemberView
from judge_server.scoring.combined import AnyJudge
from trainer_client.wire import JudgingProtocol


class JudgeDetails(NamedTuple):
    """The judge with a fingerprint: its name and model, how it is asked, and its calibration, None if it has none.

    `stored` is the calibration's version if it was fitted and stored, with its measured figures.
    """

    name: str
    model: str
    protocol: str
    rationale: bool
    calibration: str | None
    uncalibrated: str
    stored: StoredCalibration | None


def judge_details(judges: Mapping[str, AnyJudge], fingerprint: str) -> JudgeDetails | None:
    """The loaded judge that has this fingerprint with ordinary options; None if none has."""
    for name, judge in judges.items():
        for config in _ordinary_configs():
            try:
                prepared = judge.prepared(config)
            except ServiceError:  # this judge is not fit for the protocol
                continue
            if prepared.fingerprint == fingerprint:
                calibration = None if prepared.calibration == NEUTRAL else prepared.calibration.name
                stored = next((one for one in judge.stored_calibrations if one.reference == calibration), None)
                return JudgeDetails(
                    name, judge.identity.model, config.protocol, config.rationale, calibration,
                    prepared.uncalibrated, stored,
                )  # fmt: skip
    return None


def _ordinary_configs() -> Iterator[JudgingConfig]:
    """Every protocol with and without a rationale, and with one or all criteria per call."""
    for protocol in get_args(JudgingProtocol):
        calls: tuple[int | Literal["all"], ...] = ("all",) if protocol == "checklist" else (1, "all")
        for per_call in calls:
            for rationale in (False, True):
                yield JudgingConfig(protocol, per_call, rationale)


router = PageRouter()


@router.get("/judge")
async def judge(visit: Visit) -> Response:
    """The judge with its calibration, if it is loaded now."""
    fingerprint = visit.text("fingerprint")
    details = judge_details(visit.service.judges, fingerprint)
    return visit.page("judge.html.jinja", fingerprint=fingerprint, details=details, run=visit.text("run"))


_EVALUATIONS = 12


class ShownJudge(NamedTuple):
    """A judge of the service.

    Attributes:
        reason: why it cannot judge now; empty if it can.
        endpoints: the endpoints that its calls are balanced over.
        runs: the calls of this project's runs that wait or are at the engine, by run.
        totals: what it did for all projects since the process started; None for keys that may not see that.
    """

    name: str
    judge: AnyJudge | None
    ready: bool
    reason: str
    endpoints: Sequence[MemberView] = ()
    runs: tuple[tuple[str, int], ...] = ()
    totals: "Totals | None" = None


class Totals(NamedTuple):
    """What a judge did since the process started, for all projects; `outcomes` counts verdicts by their outcome."""

    waiting: int
    at_engine: int
    outcomes: Mapping[str, int]
    tokens_computed: int
    tokens_reused: int
    tokens_written: int
    shed: int

    @property
    def verdicts(self) -> int:
        """All verdicts that were answered."""
        return sum(self.outcomes.values())

    @property
    def reused_share(self) -> float | None:
        """The share of prompt tokens that were not computed again; None without any."""
        known = self.tokens_computed + self.tokens_reused
        return self.tokens_reused / known if known else None


@router.get("/judges")
async def judges(visit: Visit) -> Response:
    """The judges by name, and the stored evaluations of the project."""
    identity, service = visit.identity, visit.service
    operator = "metrics" in identity.permissions
    shown = [await _shown(service, name, identity.project_id, operator=operator) for name in service.names]
    evaluations = await _evaluations(visit)
    return visit.page("judges.html.jinja", judges=shown, operator=operator, evaluations=evaluations, figures=FIGURES)


async def _shown(service: Service, name: str, project: str, *, operator: bool) -> ShownJudge:
    judge = service.judges.get(name)
    if judge is None:
        return ShownJudge(name, None, False, service.not_ready_reason or service.problem)
    ready = await judge.executor.ready()
    reason = "" if ready else judge.executor.unavailable_reason or "it does not answer now"
    runs = [(run, calls) for run, calls in judge.metrics.calls_by_run().items() if project_of_run(run) == project]
    return ShownJudge(
        name, judge, ready, reason,
        judge.executor.members() if operator else (),
        tuple(sorted([(run.rpartition("\0")[2], calls) for run, calls in runs], key=lambda one: -one[1])),
        _totals(judge) if operator else None,
    )  # fmt: skip


def _totals(judge: AnyJudge) -> Totals:
    sums: dict[tuple[str, str], float] = {}
    for family in judge.metrics.families():
        for sample in family.samples:
            part = sample.labels.get("outcome") or sample.labels.get("source") or ""
            sums[sample.name, part] = sums.get((sample.name, part), 0.0) + sample.value

    def of(name: str, part: str = "") -> int:
        return int(sums.get((f"adjudge_{name}", part), 0))

    outcomes = {
        part: int(count) for (name, part), count in sums.items() if name == "adjudge_judgements_total" and count
    }
    return Totals(
        of("calls_waiting"), of("calls_at_engine"), outcomes, of("prompt_tokens_total", "computed"),
        of("prompt_tokens_total", "reused"), of("tokens_written_total"), of("requests_shed_total"),
    )  # fmt: skip


async def _evaluations(visit: Visit) -> list[EvaluationView]:
    """The latest evaluations of the project that are done."""
    if visit.service.operations is None:
        return []
    listed = (await visit.service.operations.list(visit.project)).operations
    found = [evaluation_of(one) for one in listed if one.state == "done"]
    return [one for one in found if one is not None][:_EVALUATIONS]
