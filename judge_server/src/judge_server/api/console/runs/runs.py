"""The list of runs."""

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.charts import sparkline
from judge_server.api.console.parameters import text_parameter
from judge_server.api.console.rendering import Console
from judge_server.api.console.routing import PageRouter
from judge_server.api.console.tables import address
from judge_server.errors import InvalidRequest

router = PageRouter()

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
    shown = [
        (run, address("run", run=run.run or ""), sparkline(curves.get(run.run or "", ()), "mean reward over steps"))
        for run in page.runs
    ]
    next_href = address("runs", q=text, after=page.next_cursor) if page.next_cursor else ""
    recording = console.service.recorder is not None
    return console.page(
        request, "runs.html.jinja", runs=shown, q=text, after=after, next_href=next_href, recording=recording
    )
