"""The page of a run, and the numbers of its charts as CSV."""

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.parameters import int_parameter, run_parameter, step_parameters, text_parameter
from judge_server.api.console.rendering import Console, csv_response
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.api.console.runs.changes import CHANGE_STEPS, Changes, read_changes
from judge_server.api.console.runs.run_view import OtherRun, RunView
from judge_server.api.console.tables import address
from judge_server.ledger.rows import storable_text
from judge_server.monitoring.monitors import monitor_run
from trainer_client.wire.ledger import RunReport
from trainer_client.wire.ledger_rows import RunChartQuery, RunReportQuery

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
