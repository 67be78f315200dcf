"""The pages of runs: the list, one run with its charts and their numbers, its audit and its export."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from judge_server.api.console.charts import sparkline
from judge_server.api.console.rendering import PageRouter, Visit, address, csv_response
from judge_server.api.console.run_charts import CHANGE_STEPS, Changes, OtherRun, RunView, read_changes
from judge_server.api.http.requests import reject_unknown_cursor
from judge_server.api.http.responses import NDJSON, run_while_connected
from judge_server.api.ledger import audited, exported, row_line
from judge_server.errors import InvalidRequest, NotFound
from judge_server.evaluation.export import ExportQuery, left_out
from judge_server.ledger.monitoring.metrics import FINDINGS_TIMEOUT_S
from judge_server.ledger.monitoring.monitors import monitor_run, monitor_runs
from judge_server.scoring.recorded import decode_cursor, storable_text
from rubric_store.ledger.rows import (
    ResponseFilter,
    RunChartQuery,
    RunReportQuery,
)
from trainer_client.wire.ledger import EXPORT_KINDS, ExportSummary
from trainer_client.wire.rewards import JudgingRules
from trainer_client.wire.runs import AuditExample, MonitorFinding, RunReport

router = PageRouter()

_CRITERIA, _ALL_CRITERIA = 25, 200
_SUGGESTED_RUNS = 30
_CHARTS = ("reward", "histogram", "criteria", "failures", "measures", "cost")
"""The charts, whose numbers are the properties `reward_table` and so on of a view."""

_COUNTED_CHARTS = ("reward", "histogram")
"""The charts whose numbers are counted from the responses of the run."""


@router.get("/run")
async def run(visit: Visit) -> Response:
    """The charts of a run, what its monitors find, and what changed at a step."""
    report, view = await _view(visit, drawn=True)
    kept = {"run": view.run, "first": view.first, "last": view.last, "with": view.other and view.other.run}
    return visit.page(
        "run.html.jinja", report=report, view=view, changes=await _changes(visit, view),
        origin=await _origin(visit, view.run),
        tracked=(visit.service.tracker_url or "").replace("{run}", quote(view.run, safe="")) if view.run else "",
        around=visit.whole_number("around"), all_criteria_href=address("run", **kept, criteria="all"),
    )  # fmt: skip


async def _origin(visit: Visit, run: str) -> str | None:
    """The run whose responses a run judges again; None if it judges its own."""
    first = ResponseFilter(visit.project, run, limit=1, with_votes=False)
    recorded = await visit.ledger.responses(first)
    rules = JudgingRules.read(recorded[0].request.judging_rules) if recorded else None
    return None if rules is None else rules.reverifies


@router.get("/run/others")
async def others(visit: Visit) -> Response:
    """The latest other runs as suggestions, those under the same prefix, such as `math/`, first."""
    own = visit.run
    found = await visit.ledger.runs(visit.project, limit=_SUGGESTED_RUNS)
    names = [one.run for one in found.runs if one.run and one.run != own]
    names.sort(key=lambda name: name.rpartition("/")[0] != own.rpartition("/")[0])
    return visit.page("run_names.html.jinja", names=names)


@router.get("/run/audit")
async def audit(visit: Visit) -> Response:
    """The report on a run, against the runs that the query names."""
    run = visit.run
    against = [name for name in visit.query.getlist("against") if name]
    report = await run_while_connected(visit.request, audited(visit.service, visit.project, run, against))

    def example_href(example: AuditExample) -> str:
        recorded, place, _ = decode_cursor(example.verdict)
        group = address("group", run=run, request=recorded.hex(), group=example.group)
        return f"{group}#response-{recorded.hex()}-{place}"

    return visit.page("audit.html.jinja", run=run, against=against, report=report, example_href=example_href)


@router.get("/run/{chart}.csv")
async def run_csv(visit: Visit) -> Response:
    """The numbers of a chart."""
    chart = visit.request.path_params["chart"]
    if chart not in _CHARTS:
        raise NotFound(f"This page has no chart {chart!r}; use one of {', '.join(_CHARTS)}.")
    _, view = await _view(visit, distribution=chart in _COUNTED_CHARTS)
    return csv_response(getattr(view, f"{chart}_table"), f"{chart}.csv")


@router.get("/run/export.jsonl")
async def run_export(visit: Visit) -> Response:
    """A run as training data. If it fails midway, the connection is broken off, so that browsers say so."""
    kind = visit.choice("as", EXPORT_KINDS) or EXPORT_KINDS[0]
    name, (first, last) = visit.run, visit.steps
    rows = exported(visit.service, ExportQuery(visit.project, storable_text(name), kind, first, last))
    begin = await run_while_connected(visit.request, anext(rows))  # raise before the status 200 is sent
    if isinstance(begin, ExportSummary):
        raise InvalidRequest(f"Nothing of this run can be exported as {kind}. Left out: {'; '.join(left_out(begin))}.")

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(rows):
            yield row_line(begin) + b"\n"
            async for row in rows:
                if isinstance(row, dict):
                    yield row_line(row) + b"\n"

    headers = {"Content-Disposition": f'attachment; filename="{kind}.jsonl"'}
    return StreamingResponse(lines(), 200, headers, NDJSON)


async def _view(visit: Visit, *, drawn: bool = False, distribution: bool = True) -> tuple[RunReport, RunView]:
    """The report and the charts of the run that the query names; `drawn` with findings, and a run to draw over it."""
    ledger, project = visit.ledger, visit.project
    name, (first, last) = visit.run, visit.steps
    criteria = _ALL_CRITERIA if visit.query.get("criteria") == "all" else _CRITERIA
    report = await read_report(visit, name, criteria)
    ids = tuple([figures.criterion for figures in report.criteria])
    charts = await ledger.run_charts(
        RunChartQuery(project, storable_text(name), first, last, ids, distribution=distribution)
    )
    if not drawn:
        return report, RunView(name, charts, report.criteria, first, last)
    thresholds = visit.service.monitor_thresholds
    monitored = await monitor_run(ledger, project, storable_text(name), thresholds, until_step=last)
    other = None
    if beside := visit.text("with"):
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


async def _changes(visit: Visit, view: RunView) -> Changes | None:
    """What changed at the step that the query names; None without one, or if there is nothing to compare."""
    step = visit.whole_number("around")
    if step is None:
        return None
    ids = tuple([row.criterion for row in view.heat_map])
    ends = max(step - CHANGE_STEPS, 0), step + CHANGE_STEPS - 1
    wanted = RunChartQuery(
        visit.project, storable_text(view.run), *ends, ids, buckets=2 * CHANGE_STEPS, distribution=False
    )
    return read_changes(view.run, step, await visit.ledger.run_charts(wanted))


async def read_report(visit: Visit, run: str, criteria: int = _ALL_CRITERIA) -> RunReport:
    """The figures of a run as a whole, and of the criteria that have the most verdicts."""
    query = RunReportQuery(visit.project, storable_text(run), criteria=criteria, limit=1)
    report = await visit.ledger.run(query)
    if report is None:
        raise NotFound(
            f"This project's ledger has no record of run {run!r}. The list of runs shows those that it has; verdicts "
            "of the last second may not be written yet."
        )
    return report


async def _worst_findings(visit: Visit, names: Sequence[str]) -> dict[str, MonitorFinding]:
    """The most severe warning or critical finding of each run; runs that cannot be read in time have none."""
    ledger, thresholds = visit.ledger, visit.service.monitor_thresholds
    found: dict[str, MonitorFinding] = {}
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(FINDINGS_TIMEOUT_S):
            async for name, report in monitor_runs(ledger, visit.project, names, thresholds):
                if report.findings and report.findings[0].severity != "info":
                    found[name] = report.findings[0]
    return found


_RUNS_A_PAGE = 25
_SPARKLINE_POINTS = 40


@router.get("/runs")
async def runs(visit: Visit) -> Response:
    """The runs of the project, each with its reward over steps."""
    ledger, project = visit.ledger, visit.project
    text, after = visit.text("q"), visit.text("after") or None
    page = await reject_unknown_cursor(ledger.runs(project, text=text, after=after, limit=_RUNS_A_PAGE))
    curves = await ledger.run_curves(project, [run.run or "" for run in page.runs], _SPARKLINE_POINTS)
    alarms = await _worst_findings(visit, [run.run or "" for run in page.runs])
    shown = []
    for run in page.runs:
        name = run.run or ""
        curve = sparkline(curves.get(name, ()), "mean reward over steps")
        shown.append((run, address("run", run=name), curve, alarms.get(name)))
    next_href = address("runs", q=text, after=page.next_cursor) if page.next_cursor else ""
    recording = visit.service.recorder is not None
    return visit.page("runs.html.jinja", runs=shown, q=text, after=after, next_href=next_href, recording=recording)
