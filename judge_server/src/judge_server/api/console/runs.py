"""The pages of runs: the list, one run, and what changed between its steps."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.charts import sparkline
from judge_server.api.console.forms import int_parameter, run_parameter, step_parameters, text_parameter
from judge_server.api.console.rendering import Console, address, csv_response
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.api.console.run_view import OtherRun, RunView
from judge_server.errors import InvalidRequest
from judge_server.ledger.rows import storable_text
from judge_server.monitoring.metrics import FINDINGS_TIMEOUT_S
from judge_server.monitoring.monitors import monitor_run, monitor_runs
from rubric_store.ledger.rows import CriterionBucket, RunChartQuery, RunCharts, RunReportQuery, StepBucket
from trainer_client.wire.ledger import RunReport
from trainer_client.wire.monitors import MonitorFinding

CHANGE_STEPS = 10
"""The steps before and after a step that are compared."""


class Rate(NamedTuple):
    """A pass rate, and the number of verdicts that it is taken of; None without verdicts."""

    value: float | None
    verdicts: int


class CriterionChange(NamedTuple):
    """A criterion before and after a step, and the page of the responses that show it."""

    criterion: str
    before: Rate
    after: Rate
    href: str

    @property
    def change(self) -> float | None:
        """By how much the pass rate rose; None if it is not known on both sides."""
        if self.before.value is None or self.after.value is None:
            return None
        return self.after.value - self.before.value


class Changes(NamedTuple):
    """What changed at a step. The ranges of steps are written as `31–40`; a mean reward is None without rewards."""

    step: int
    before: str
    after: str
    rewards: tuple[float | None, float | None]
    criteria: tuple[CriterionChange, ...]


def read_changes(run: str, step: int, charts: RunCharts) -> Changes | None:
    """What changed at a step, the criterion that moved most first.

    Args:
        run: the run's name.
        step: the first step of those after.
        charts: the run's figures in the steps around it, one step a bucket.

    Returns:
        None if nothing was judged before the step, or nothing from there on.
    """
    before = [index for index, bucket in enumerate(charts.steps) if bucket.first < step]
    after = [index for index, bucket in enumerate(charts.steps) if bucket.first >= step]
    if not before or not after:
        return None
    last = charts.steps[after[-1]].last
    changed = []
    for criterion in dict.fromkeys(one.criterion for one in charts.criteria):
        own = [one for one in charts.criteria if one.criterion == criterion]
        rates = _rate(own, before), _rate(own, after)
        fell = (rates[1].value or 0.0) < (rates[0].value or 0.0)
        href = address(
            "responses", run=run, first=last, last=last, criterion=criterion, outcome="not passed" if fell else "passed"
        )
        changed.append(CriterionChange(criterion, *rates, href))
    changed.sort(key=lambda one: -abs(one.change or 0.0))
    left, right = ([charts.steps[index] for index in side] for side in (before, after))
    return Changes(step, _name(left), _name(right), (_mean(left), _mean(right)), tuple(changed))


def _rate(own: Iterable[CriterionBucket], buckets: Sequence[int]) -> Rate:
    chosen = [one for one in own if one.bucket in buckets]
    given = sum(one.given for one in chosen)
    return Rate(sum(one.passed for one in chosen) / given if given else None, given)


def _name(steps: Sequence[StepBucket]) -> str:
    return f"{steps[0].first}–{steps[-1].last}" if steps[0].first < steps[-1].last else f"{steps[0].first}"


def _mean(steps: Sequence[StepBucket]) -> float | None:
    rewarded = [(one.mean_reward, one.responses - one.unscored) for one in steps if one.mean_reward is not None]
    count = sum(number for _, number in rewarded)
    return sum(mean * number for mean, number in rewarded) / count if count else None


router = PageRouter()

_CRITERIA, _ALL_CRITERIA = 25, 200
_SUGGESTED_RUNS = 30
_CHARTS = ("reward", "histogram", "criteria", "failures", "measures", "cost")
_COUNTED_CHARTS = ("reward", "histogram")
"""The charts whose numbers are counted from the responses of the run."""


@router.get("/run")
async def run(console: Console, request: Request) -> Response:
    """The charts of a run, what its monitors find, and what changed at a step."""
    report, view = await _view(console, request, drawn=True)
    kept = {"run": view.run, "first": view.first, "last": view.last, "with": view.other and view.other.run}
    return console.page(
        request, "run.html.jinja", report=report, view=view, changes=await _changes(console, request, view),
        around=int_parameter(request, "around"), all_criteria_href=address("run", **kept, criteria="all"),
    )  # fmt: skip


@router.get("/run/others")
async def others(console: Console, request: Request) -> Response:
    """The latest other runs as suggestions, those under the same prefix, such as `math/`, first."""
    own = run_parameter(request)
    found = await console.service.readable_ledger().runs(project_of(request), limit=_SUGGESTED_RUNS)
    names = [one.run for one in found.runs if one.run and one.run != own]
    names.sort(key=lambda name: name.rpartition("/")[0] != own.rpartition("/")[0])
    return console.page(request, "run_names.html.jinja", names=names)


@router.get("/run/{chart}.csv")
async def run_csv(console: Console, request: Request) -> Response:
    """The numbers of a chart."""
    chart = request.path_params["chart"]
    if chart not in _CHARTS:
        raise NotFound(f"This page has no chart {chart!r}; use one of {', '.join(_CHARTS)}.")
    _, view = await _view(console, request, distribution=chart in _COUNTED_CHARTS)
    return csv_response(view.table(chart), f"{chart}.csv")


async def _view(
    console: Console, request: Request, *, drawn: bool = False, distribution: bool = True
) -> tuple[RunReport, RunView]:
    """The report and the charts of the run that the query names; `drawn` with findings, and a run to draw over it."""
    ledger, project = console.service.readable_ledger(), project_of(request)
    name, (first, last) = run_parameter(request), step_parameters(request)
    criteria = _ALL_CRITERIA if request.query_params.get("criteria") == "all" else _CRITERIA
    report = await ledger.run(RunReportQuery(project, storable_text(name), criteria=criteria, limit=1))
    if report is None:
        raise no_run(name)
    ids = tuple([figures.criterion for figures in report.criteria])
    charts = await ledger.run_charts(
        RunChartQuery(project, storable_text(name), first, last, ids, distribution=distribution)
    )
    if not drawn:
        return report, RunView(name, charts, report.criteria, first, last)
    thresholds = console.service.monitor_thresholds
    monitored = await monitor_run(ledger, project, storable_text(name), thresholds, until_step=last)
    other = None
    if beside := text_parameter(request, "with"):
        found = await ledger.run_charts(
            RunChartQuery(project, storable_text(beside), first, last, ids, distribution=False)
        )
        if not found.steps:
            raise NotFound(
                f"Run {beside!r}, which this run is to be compared with, has no record in these steps. The list of "
                "runs has the names of those that there are."
            )
        other = OtherRun(beside, found)
    findings = monitored.findings if monitored else ()
    return report, RunView(name, charts, report.criteria, first, last, findings=findings, other=other)


async def _changes(console: Console, request: Request, view: RunView) -> Changes | None:
    """What changed at the step that the query names; None without one, or if there is nothing to compare."""
    step = int_parameter(request, "around")
    if step is None:
        return None
    ids = tuple([row.criterion for row in view.heat_map])
    ends = max(step - CHANGE_STEPS, 0), step + CHANGE_STEPS - 1
    wanted = RunChartQuery(
        project_of(request), storable_text(view.run), *ends, ids, buckets=2 * CHANGE_STEPS, distribution=False
    )
    return read_changes(view.run, step, await console.service.readable_ledger().run_charts(wanted))


def no_run(run: str) -> NotFound:
    """The error for a run that the ledger does not have."""
    return NotFound(
        f"This project's ledger has no record of run {run!r}. The list of runs shows those that it has; verdicts of "
        "the last second may not be written yet."
    )


async def _worst_findings(console: Console, project: str, names: Sequence[str]) -> dict[str, MonitorFinding]:
    """The most severe warning or critical finding of each run; runs that cannot be read in time have none."""
    ledger, thresholds = console.service.readable_ledger(), console.service.monitor_thresholds
    found: dict[str, MonitorFinding] = {}
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(FINDINGS_TIMEOUT_S):
            async for name, report in monitor_runs(ledger, project, names, thresholds):
                if report.findings and report.findings[0].severity != "info":
                    found[name] = report.findings[0]
    return found


_RUNS_A_PAGE = 25
_SPARKLINE_POINTS = 40


@router.get("/runs")
async def runs(console: Console, request: Request) -> Response:
    """The runs of the project, each with its reward over steps."""
    ledger, project = console.service.readable_ledger(), project_of(request)
    text, after = text_parameter(request, "q"), text_parameter(request, "after") or None
    try:
        page = await ledger.runs(project, text=text, after=after, limit=_RUNS_A_PAGE)
    except ValueError:
        raise InvalidRequest("after: the cursor is invalid; go back to the first page of runs") from None
    curves = await ledger.run_curves(project, [run.run or "" for run in page.runs], _SPARKLINE_POINTS)
    alarms = await _worst_findings(console, project, [run.run or "" for run in page.runs])
    shown = [
        (
            run,
            address("run", run=run.run or ""),
            sparkline(curves.get(run.run or "", ()), "mean reward over steps"),
            alarms.get(run.run or ""),
        )
        for run in page.runs
    ]
    next_href = address("runs", q=text, after=page.next_cursor) if page.next_cursor else ""
    recording = console.service.recorder is not None
    return console.page(
        request, "runs.html.jinja", runs=shown, q=text, after=after, next_href=next_href, recording=recording
    )
