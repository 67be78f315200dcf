"""`adjudge runs audit`: whether the rubric of a run is being gamed, from what the ledger has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.measuring.runs import NO_RUN
from adjudge_services.cli.options import JsonOption, LedgerUrlOption, ProjectOption, RunArgument
from adjudge_services.cli.output import out, pluralize, print_json
from rubric_store.tenants.rows import DEFAULT_PROJECT

if not OPTIONS_ONLY:
    from adjudge_services.store import open_store
    from judge_server.evaluation.audit.report import audit_run
    from rubric_store import SQLLedger
    from trainer_client import AsyncClient
    from trainer_client.wire.problems import findings_url
    from trainer_client.wire.runs import (
        AuditAnswer,
        AuditComparison,
        AuditedCriterion,
        AuditFigure,
        AuditPart,
        AuditReading,
        AuditReference,
        AuditTrend,
        RunAudit,
    )

    _ANSWERS: dict[AuditAnswer, str] = {
        "signs": "[bold red]there are signs of it[/]",
        "perhaps": "[yellow]perhaps[/]",
        "no_signs": "[green]no sign of it was found[/]",
        "unknown": "[yellow]not known[/]",
    }
    _READINGS: dict[AuditReading, str] = {
        "rose_alone": "[bold red]alone[/]",
        "rose_more": "[yellow]more[/]",
        "together": "",
        "too_few": "",
    }
_NAME_WIDTH = 14


def audit(
    run: RunArgument,
    against: Annotated[
        list[str] | None,
        typer.Option(help="A run that judged the same responses by another judge or rubric; repeat it.", metavar="RUN"),
    ] = None,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """Ask whether a run's rubric is being gamed: what its judge credits more and more, and others do not.

    Others are runs that judged the same responses, and people's labels. No judge is asked.
    """
    report = asyncio.run(read_audit(url, project, run, against or []))
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    out.print(f"[bold]{escape(report.run or NO_RUN)}[/]: is its rubric being gamed? {_ANSWERS[report.answer]}")
    for line in report.findings:
        out.print(f"  {escape(line)}")
    out.print(f"early: {_part(report.early)}\nlate:  {_part(report.late)}")
    for reference in report.references:
        out.print(_reference(reference))
    out.print(trends_table(report))
    for line in figures(report):
        out.print(line)
    for note in report.notes:
        out.print(f"[dim]{escape(note)}[/]")
    out.print(f"[dim]what these mean: {findings_url('audit-of-a-run')}[/]", soft_wrap=True)


def trends_table(report: RunAudit) -> Table:
    """A table of the mean reward and of each criterion: the trend in the run, and below it in each reference."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold", min_width=_NAME_WIDTH)
    for title in ("early → late", "rise [95%]", "gap [95%]", "rose"):
        table.add_column(escape(title), justify="right", no_wrap=True)
    table.add_row("[bold]mean reward[/]", *_trend(report.reward))
    of_rewards = [one.comparison for one in report.references]
    _add_references(table, report.references, of_rewards)
    for criterion in report.criteria:
        table.add_row(f"[bold]{escape(criterion.criterion)}[/]", *_trend(criterion.credited))
        _add_references(table, report.references, criterion.comparisons)
    return table


def _add_references(
    table: Table, references: Sequence[AuditReference], comparisons: Sequence[AuditComparison | None]
) -> None:
    for reference, comparison in zip(references, comparisons, strict=True):
        if comparison is not None:
            table.add_row(
                f"  {escape(_name(reference))}",
                *_trend(comparison.other),
                _interval(comparison.gap),
                _READINGS[comparison.reading],
            )


def figures(report: RunAudit) -> Iterator[str]:
    """The figures of a report that are not trends, a line each."""
    if report.newly_credited is not None:
        yield f"newly credited, and rejected by all other judges: {_share(report.newly_credited)}"
    if report.rejected is not None:
        early, late = report.rejected.early, report.rejected.late
        yield f"credited, and rejected by all other judges: early {_share(early)}, late {_share(late)}"
    for title, names in (
        ("credited for almost every late response", _named(report.criteria, "credited")),
        ("credited for almost no late response", _named(report.criteria, "uncredited")),
        ("never needed: do not tell responses apart", [one.criterion for one in report.criteria if one.never_needed]),
    ):
        if names:
            yield f"{title}: {escape(', '.join(names))}"
    for pair in report.conflicts:
        yield f"contradictory: {escape(f'{pair.first} and {pair.second}')}, phi {_interval(pair.phi)}"
    for criterion in report.criteria:
        if criterion.examples:
            found = [
                f"{'' if one.step is None else f'step {one.step}, '}group {one.group}, response {one.position + 1}"
                for one in criterion.examples
            ]
            yield f"{escape(criterion.criterion)}, credited by the run's judge only: {escape('; '.join(found))}"
    if (gap := report.self_internalization) is not None:
        trend = " → ".join(_number(value, "+.3f") for value in (gap.early, gap.late))
        highest = f"highest {_number(gap.highest, '+.3f')} in step {gap.step}"
        yield f"self-internalization gap, nats per token: {trend}, {highest}"
    more = report.criteria_count - len(report.criteria)
    if more:
        yield f"and {more:,} more criteria with fewer verdicts"


def _named(criteria: Sequence[AuditedCriterion], saturated: str) -> list[str]:
    return [one.criterion for one in criteria if one.saturated == saturated]


def _name(reference: AuditReference) -> str:
    return "labels" if reference.kind == "labels" else reference.run or NO_RUN


def _reference(reference: AuditReference) -> str:
    what = {"judge": "another judge, ", "rubric": "another rubric, ", "labels": "people's, "}[reference.kind]
    judges = "".join(f"{judge}, " for judge in reference.judges)
    failed = f", {pluralize(reference.failed, 'verdict')} failed" if reference.failed else ""
    return escape(f"{_name(reference)}: {what}{judges}{pluralize(reference.matched, 'response')}{failed}")


def _part(part: AuditPart) -> str:
    steps = "" if part.first_step is None else f"steps {part.first_step} to {part.last_step}, "
    return f"{steps}{pluralize(part.responses, 'response')} to {pluralize(part.prompts, 'prompt')}"


def _trend(trend: AuditTrend) -> tuple[str, str]:
    return f"{_number(trend.early.value)} → {_number(trend.late.value)}", _interval(trend.rise)


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else f"{round(value, int(form[-2])) + 0.0:{form}}"  # adding 0 makes -0.0 plain


def _interval(figure: AuditFigure) -> str:
    value = _number(figure.value, "+.2f")
    if figure.low is None or figure.high is None:  # for want of prompts, which a note of the report says
        return value
    return f"{value} " + escape(f"[{_number(figure.low, '+.2f')}, {_number(figure.high, '+.2f')}]")


def _share(figure: AuditFigure) -> str:
    if figure.value is None:
        return "–"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.0%}"
    return f"{figure.value:.0%} " + escape(f"[{figure.low:.0%}, {figure.high:.0%}]")


async def read_audit(url: str | None, project: str, run: str, against: Sequence[str]) -> RunAudit:
    """The audit of a run, by a service or from the database."""
    if url is not None:
        async with AsyncClient(url) as client:
            return await client.audit_run(run, against=against)
    async with open_store(SQLLedger) as ledger:
        return await audit_run(ledger, ledger, project, run, against)
