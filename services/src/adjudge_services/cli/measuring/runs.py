"""`adjudge runs`: training runs in the ledger, by step and criterion, and what the monitors find in them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    FirstStepOption,
    JsonOption,
    LastStepOption,
    LedgerUrlOption,
    ProjectOption,
    RunArgument,
)
from adjudge_services.cli.output import (
    exit_with_error,
    format_number,
    format_seconds,
    format_share,
    out,
    pluralize,
    print_json,
)
from rubric_store.tenants.rows import DEFAULT_PROJECT

if not OPTIONS_ONLY:
    from adjudge_services.judges import stored_measurements
    from adjudge_services.settings import Settings
    from adjudge_services.store import open_store
    from judge_server.evaluation.corrected_rates import ErrorSource
    from judge_server.ledger.monitoring.monitors import monitor_run
    from rubric_store import SQLLedger
    from rubric_store.ledger.rows import RunRange, RunReportQuery
    from trainer_client import AsyncClient
    from trainer_client.documentation import findings_url
    from trainer_client.errors import NotFound
    from trainer_client.wire.ledger import CorrectedRates, RunReport, RunStep, RunSummary
    from trainer_client.wire.monitors import Interval, MonitorReport, Severity

NO_RUN = "(no run)"
_BARS = "▁▂▃▄▅▆▇█"
_NO_VALUE = "·"

_CURVE = (8, 60)
"""Minimum and maximum width of a curve, in columns."""

_BESIDE_CURVE = 58
"""Width of the rest of the criteria table, without the longest criterion id, in columns."""

_CORRECTED = 20
"""Width of the column of corrected rates."""

_CURVE_TITLE = 10
"""Width of the title of a criterion's curve; corrected rates take the curve's place in a narrower terminal."""

_BESIDE_REWARDS = 50
"""Width of the rest of the reward line, in columns."""

_ID = 40

_FEW = 20
"""With fewer groups than this, intervals are too narrow, which the note says."""

STEPS_A_PAGE = 500
_MARKS: dict[Severity, str] = {"critical": "[bold red]critical[/]", "warning": "[yellow]warning[/]", "info": "info"}


class FailOn(StrEnum):
    """From which severity on `adjudge runs monitor` exits with 1."""

    CRITICAL = "critical"
    WARNING = "warning"
    NEVER = "never"


def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Show at most this many runs.")] = 20,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """List training runs, the most recently judged first. `adjudge runs show RUN` shows one."""
    found = asyncio.run(list_runs(url, project, limit))
    if as_json:
        print_json([run.model_dump(mode="json") for run in found])
    elif found:
        out.print(runs_table(found))
    else:
        out.print("The ledger has no runs yet. Requests that name a run appear here.")


def show(
    run: RunArgument,
    steps: Annotated[int, typer.Option(min=0, help="Number of last steps to show.")] = 15,
    criteria: Annotated[int, typer.Option(min=0, max=200, help="Show at most this many criteria.")] = 30,
    first_step: FirstStepOption = None,
    last_step: LastStepOption = None,
    corrected: Annotated[
        bool,
        typer.Option("--corrected", help="Correct pass rates for the judge's error; reads every verdict of the run."),
    ] = False,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            help="Report of `adjudge evaluate --json` with the judge's error, instead of its stored calibration.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """Show a run's rewards by step, and how often each criterion passed over its steps."""
    view = RunReportQuery(project, run, first_step, last_step, criteria=criteria, limit=STEPS_A_PAGE)
    part = RunRange(project, run, first_step, last_step)
    wanted = corrected or evaluation is not None
    report = asyncio.run(read_report(url, view))
    if report is None:
        exit_with_error(f"the ledger has no requests of run {run!r}; `adjudge runs` lists the runs")
    rates = asyncio.run(corrected_rates(url, part, evaluation)) if wanted else None
    if as_json:
        more = {} if rates is None else {"corrected": rates.model_dump(mode="json")}
        print_json(report.model_dump(mode="json") | more)
        return
    out.print(heading(report, out.width))
    if steps and report.steps:
        out.print("", steps_table(report.steps, steps))
    if report.criteria:
        out.print("", criteria_table(report, out.width, rates))
    if rates is not None:
        out.print(correction_note(rates), markup=False)


def monitor(
    run: Annotated[str, typer.Argument(help="The run's name, as given in its requests.")],
    until_step: Annotated[
        int | None, typer.Option(min=0, help="Last step to look at; by default the run's last one.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit with 1 if there is a finding this severe.")] = FailOn.CRITICAL,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """Show what the monitors find in a run. Exits with 1 on a critical finding."""
    try:
        report = asyncio.run(read_monitors(url, project, run, until_step))
    except NotFound:
        report = None
    if report is None:
        exit_with_error(f"the ledger has no step of run {run!r}; `adjudge runs` lists the runs")
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        out.print(monitor_view(report))
    failing = {FailOn.CRITICAL: {"critical"}, FailOn.WARNING: {"critical", "warning"}, FailOn.NEVER: set[str]()}
    if any(finding.severity in failing[fail_on] for finding in report.findings):
        raise typer.Exit(1)


def runs_table(runs: Sequence[RunSummary]) -> Table:
    """A table with a row per run."""
    table = Table()
    table.add_column("run", overflow="fold")
    for title in ("step", "responses", "reward", "failed", "last judged, UTC"):
        table.add_column(title, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            escape(run.run or NO_RUN),
            _step(run.last_step),
            f"{run.responses:,}",
            format_number(run.mean_reward),
            format_share(run.failed, run.verdicts),
            _moment(run.last_at),
        )
    return table


def heading(report: RunReport, width: int) -> Group:
    """A summary of a run: times, configuration, results, reward by step, and cost."""
    run = report.run
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row(
        "judged", f"{_moment(run.first_at)} to {_moment(run.last_at)} UTC, {pluralize(run.requests, 'request')}"
    )
    how = [", ".join(names) for names in (run.modes, run.protocols, run.judges) if names]
    table.add_row("how", escape(" · ".join(how)) or "by programs only, without rewards")
    table.add_row("rubrics", _rubrics(report))
    states = [(name, getattr(run, name)) for name in ("scored", "partial", "unscored")]
    counts = ", ".join(f"{number:,} {name}" for name, number in states if number)
    table.add_row("responses", f"{run.responses:,}{': ' if counts else ''}{counts}")
    for title, name in (("reward", "mean_reward"), ("declared", "mean_declared_reward")):
        if (mean := getattr(run, name)) is not None:
            table.add_row(title, f"{mean:.3f} on average{_reward_curve(report.steps, name, width)}")
    table.add_row("verdicts", f"{run.verdicts:,}, {format_share(run.cached, run.verdicts)} cached or shared")
    if run.uncertain:
        table.add_row("uncertain", f"{run.uncertain:,} ({format_share(run.uncertain, run.verdicts)})")
    if run.left_out:
        table.add_row(
            "left out", f"{run.left_out:,} ({format_share(run.left_out, run.verdicts + run.left_out)}), by dropout"
        )
    if run.failed:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in run.failures.items())
        table.add_row("failed", f"[red]{run.failed:,}[/] ({format_share(run.failed, run.verdicts)}): {kinds}")
    tokens = run.prompt_tokens_computed + run.prompt_tokens_reused
    table.add_row(
        "cost",
        f"{pluralize(run.judge_calls, 'judge call')}, {pluralize(tokens, 'prompt token')} of which "
        f"{format_share(run.prompt_tokens_reused, tokens)} reused; {format_seconds(run.mean_seconds)} a request",
    )
    return Group(Text(run.run or NO_RUN, style="bold"), table)


def steps_table(steps: Sequence[RunStep], most: int) -> Table:
    """A table with a row for each of the last `most` steps."""
    shown = steps[-most:]
    title = "steps" if len(shown) == len(steps) else f"the last {len(shown)} of {len(steps):,} steps"
    table = Table(title=title, title_justify="left")
    for name in ("step", "n", "unscored", "reward", "±", "failed", "cached", "calls", "a request"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in shown:
        table.add_row(
            _step(step.step),
            f"{step.responses:,}",
            _red_if(f"{step.unscored:,}", step.unscored),
            format_number(step.mean_reward),
            format_number(step.std_reward),
            _red_if(format_share(step.failed, step.verdicts), step.failed),
            format_share(step.cached, step.verdicts),
            f"{step.judge_calls:,}",
            format_seconds(step.mean_seconds),
        )
    return table


def criteria_table(report: RunReport, width: int, corrected: CorrectedRates | None = None) -> Table:
    """A table with a row per criterion: its rates, and its pass rate over the steps as a curve.

    With `corrected`, each observed pass rate is followed by the one corrected for the judge's error.
    """
    more = report.criteria_count - len(report.criteria)
    caption = f"and {more:,} more criteria; show more with --criteria" if more else None
    table = Table(title="criteria", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("criterion", overflow="ellipsis", max_width=_ID, no_wrap=True)
    rates = {} if corrected is None else {one.criterion: one.corrected for one in corrected.criteria if one.corrected}
    doubts = ["uncertain"] if report.run.uncertain else []
    for name in ("n", "failed", *doubts, "passed", *(["corrected [95%]"] if rates else []), "score"):
        table.add_column(escape(name), justify="right", no_wrap=True)
    longest = min(_ID, max(len(each.criterion) for each in report.criteria))
    columns = min(
        max(width - _BESIDE_CURVE - longest - bool(rates) * _CORRECTED, _CURVE[0]), _CURVE[1], len(report.steps)
    )
    has_curve = len(report.steps) > 1 and (not rates or width >= _BESIDE_CURVE + longest + _CORRECTED + _CURVE_TITLE)
    if has_curve:
        table.add_column("by step", no_wrap=True)
        table.add_column("first → last", justify="right", no_wrap=True)
    for figures in report.criteria:
        curve = _pass_rates(report.steps, figures.criterion, columns)
        table.add_row(
            escape(figures.criterion),
            f"{figures.verdicts:,}",
            _red_if(format_share(figures.failed, figures.verdicts), figures.failed),
            *([format_share(figures.uncertain, figures.verdicts)] if doubts else []),
            format_number(figures.pass_rate, ".0%"),
            *([_interval(rates.get(figures.criterion))] if rates else []),
            format_number(figures.mean_score),
            *([_sparkline(curve), _change(curve)] if has_curve else []),
        )
    return table


def correction_note(corrected: CorrectedRates) -> str:
    """Say what the corrected pass rates come from, or why there are none."""
    error = corrected.judge_error
    if corrected.reason is not None or error is None:
        return f"Pass rates are not corrected for the judge's error: {corrected.reason}."
    measured = (("sensitivity", error.sensitivity), ("specificity", error.specificity))
    rates = [f"{name} {rate.value:.2f} of {rate.labels:,} labels" for name, rate in measured]
    fewest = min((one.groups for one in corrected.criteria), default=0)
    few = f" A criterion has only {pluralize(fewest, 'group')}: its interval is too narrow." if fewest < _FEW else ""
    return f"Corrected for the judge's error by {corrected.source}: {', '.join(rates)}.{few}"


def _interval(rate: Interval | None) -> str:
    return "–" if rate is None else escape(f"{rate.value:.0%} [{rate.low:.0%}, {rate.high:.0%}]")


def _pass_rates(steps: Sequence[RunStep], criterion: str, columns: int) -> list[float | None]:
    by_step = [next((each for each in step.criteria if each.criterion == criterion), None) for step in steps]
    return _curve(
        [
            (None, 0) if each is None else (each.pass_rate, each.verdicts - each.failed - each.uncertain)
            for each in by_step
        ],
        columns,
    )


def _reward_curve(steps: Sequence[RunStep], name: str, width: int) -> str:
    """A mean over the steps as a curve from its minimum to its maximum; empty with fewer than two values."""
    points = [(getattr(step, name), step.scored + step.partial or 1) for step in steps]
    curve = _curve(points, min(max(width - _BESIDE_REWARDS, _CURVE[0]), _CURVE[1], len(steps)))
    known = [value for value in curve if value is not None]
    if len(known) < 2:
        return ""
    least, most = min(known), max(known)
    scaled = [value if value is None else (value - least) / (most - least or 1) for value in curve]
    return f", by step {_sparkline(scaled)} {known[0]:.3f} → {known[-1]:.3f}"


def _curve(points: Sequence[tuple[float | None, int]], columns: int) -> list[float | None]:
    """Weighted means of the points, divided into `columns` parts; None for a part without values."""
    curve: list[float | None] = []
    for column in range(columns):
        part = points[column * len(points) // columns : (column + 1) * len(points) // columns]
        given = [(value, weight) for value, weight in part if value is not None]
        total = sum(weight for _, weight in given)
        curve.append(sum(value * weight for value, weight in given) / total if total else None)
    return curve


def _sparkline(curve: Sequence[float | None]) -> str:
    """One bar character per value in [0, 1]."""
    return "".join(_NO_VALUE if v is None else _BARS[min(int(v * len(_BARS)), len(_BARS) - 1)] for v in curve)


def _change(curve: Sequence[float | None]) -> str:
    known = [rate for rate in curve if rate is not None]
    return f"{known[0]:.0%} → {known[-1]:.0%}" if known else "–"


def _rubrics(report: RunReport) -> str:
    names = [f"{one.name}@{one.version}" if one.name else f"{one.digest[:15]}…" for one in report.rubrics[:3]]
    more = report.run.rubrics - len(names)
    return escape(", ".join(names) + (f" and {more:,} more" if more > 0 else "")) or "none"


def _red_if(text: str, number: int) -> str:
    return f"[red]{text}[/]" if number else text


def _step(step: int | None) -> str:
    return "–" if step is None else str(step)


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def monitor_view(report: MonitorReport) -> Group:
    """The findings of a report, and the comparison with the gold judge."""
    parts: list[RenderableType] = [
        f"[bold]{escape(report.run or NO_RUN)}[/], steps {report.first_step} to {report.last_step}; monitors: "
        + ", ".join(report.monitors)
    ]
    if not report.findings:
        parts.append("nothing found")
    else:
        findings = Table("severity", "monitor", "began", "finding", "what to do", show_lines=True)
        for one in report.findings:
            findings.add_row(
                _MARKS[one.severity], one.monitor, _step(one.began), escape(one.message), escape(one.action)
            )
        parts.append(findings)
        parts.append(f"[dim]what each means: {findings_url()}[/]")
    if report.gold:
        gold = Table("steps", "responses", "reward minus gold reward", "same verdicts", title="gold judge")
        for row in report.gold:
            steps = f"{row.first_step} to {row.last_step}"
            gold.add_row(
                steps,
                f"{row.responses:,}",
                _with_interval(row.difference, "+.3f"),
                _with_interval(row.agreement, ".0%"),
            )
        parts.append(gold)
    return Group(*parts)


def _with_interval(interval: Interval | None, form: str) -> str:
    if interval is None:
        return "–"
    return f"{interval.value:{form}} ({interval.low:{form}} to {interval.high:{form}})"


async def read_monitors(url: str | None, project: str, run: str, until_step: int | None) -> MonitorReport | None:
    """What the monitors find in a run; None if it has no step."""
    if url is not None:
        async with AsyncClient(url) as client:
            return await client.run_monitors(run, until_step=until_step)
    thresholds = Settings().monitors
    async with open_store(SQLLedger) as ledger:
        return await monitor_run(ledger, project, run, thresholds, until_step=until_step)


async def list_runs(url: str | None, project: str, limit: int) -> list[RunSummary]:
    """The runs of a project."""
    if url is not None:
        async with AsyncClient(url) as client:
            found = []
            async for run in client.runs():
                found.append(run)
                if len(found) == limit:
                    break
            return found
    async with open_store(SQLLedger) as ledger:
        return [*(await ledger.runs(project, limit=limit)).runs]


async def read_report(url: str | None, view: RunReportQuery) -> RunReport | None:
    """The report with all steps in range; None if the run does not exist."""
    if url is not None:
        async with AsyncClient(url) as client:
            return await client.run_report(view.run, first_step=view.first, last_step=view.last, criteria=view.criteria)
    async with open_store(SQLLedger) as ledger:
        report = part = await ledger.run(view)
        steps = [*part.steps] if part else []
        while part is not None and part.next_cursor is not None:
            part = await ledger.run(view._replace(after=part.next_cursor))
            steps += part.steps if part else []
    return report and report.model_copy(update={"steps": tuple(steps), "next_cursor": None})


async def corrected_rates(url: str | None, part: RunRange, evaluation: Path | None) -> CorrectedRates:
    """Correct a run's pass rates by an evaluation's report, or by the stored calibration of its judge."""
    from judge_server.evaluation.corrected_rates import correct_rates, observed_rates

    if url is not None:
        async with AsyncClient(url) as client:
            found = await client.corrected_rates(part.run, first_step=part.first, last_step=part.last)
        judges = [(one.fingerprint, one.votes) for one in found.judges]
        sources = None if evaluation is None else [_read_evaluation(evaluation)]
        return found if sources is None else correct_rates(found.run, judges, found.criteria, sources)
    settings = Settings()
    sources = await stored_measurements(settings.store_url) if evaluation is None else [_read_evaluation(evaluation)]
    async with open_store(SQLLedger) as ledger:
        known = (await ledger.judged_run(part)).judges
        return correct_rates(part.run or None, known, await observed_rates(ledger, part), sources)


def _read_evaluation(file: Path) -> ErrorSource:
    """Read the judge's error from a report; raises `ValueError` if the file is no such report."""
    from judge_server.evaluation.corrected_rates import ErrorSource

    try:
        content = json.loads(file.read_bytes())
        return ErrorSource(str(file), content["fingerprint"], content["votes_asked"], content["judge_error"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is not a report of `adjudge evaluate --json` with the judge's error; write it again"
        ) from error
