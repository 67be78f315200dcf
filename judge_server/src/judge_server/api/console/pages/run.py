"""The page of a run, and the numbers of its charts as CSV."""

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.parameters import run_parameter, step_parameters
from judge_server.api.console.rendering import Console, csv_response
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.api.console.run_page import RunView, address
from judge_server.ledger.rows import storable_text
from trainer_client.wire.ledger import RunReport
from trainer_client.wire.ledger_rows import RunChartQuery, RunReportQuery

router = PageRouter()

_CRITERIA, _ALL_CRITERIA = 25, 200
_CHARTS = ("reward", "histogram", "criteria", "failures", "cost")


@router.get("/run")
async def run(console: Console, request: Request) -> Response:
    """The charts of a run."""
    report, view = await _view(console, request)
    more = address("run", run=view.run, first=view.first, last=view.last, criteria="all")
    return console.page(request, "run.html.jinja", report=report, view=view, all_criteria_href=more)


@router.get("/run/{chart}.csv")
async def run_csv(console: Console, request: Request) -> Response:
    """The numbers of a chart."""
    chart = request.path_params["chart"]
    if chart not in _CHARTS:
        raise NotFound(f"This page has no chart {chart!r}; use one of {', '.join(_CHARTS)}.")
    _, view = await _view(console, request)
    return csv_response(view.table(chart), f"{chart}.csv")


async def _view(console: Console, request: Request) -> tuple[RunReport, RunView]:
    """The report and the charts of the run that the query names."""
    ledger, project = console.service.readable_ledger(), project_of(request)
    name, (first, last) = run_parameter(request), step_parameters(request)
    criteria = _ALL_CRITERIA if request.query_params.get("criteria") == "all" else _CRITERIA
    report = await ledger.run(RunReportQuery(project, storable_text(name), criteria=criteria, limit=1))
    if report is None:
        raise no_run(name)
    ids = tuple([figures.criterion for figures in report.criteria])
    charts = await ledger.run_charts(RunChartQuery(project, storable_text(name), first, last, ids))
    return report, RunView(name, charts, report.criteria, first, last)


def no_run(run: str) -> NotFound:
    """The error for a run that the ledger does not have."""
    return NotFound(
        f"This project's ledger has no record of run {run!r}. The list of runs shows those that it has; verdicts of "
        "the last second may not be written yet."
    )
