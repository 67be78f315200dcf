"""Judge labelled pairs for `adjudge rubrics discriminate`, and show how well criteria tell them apart."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from adjudge_services.cli.judge_choice import ChosenJudge
from adjudge_services.cli.output import err, out
from adjudge_services.cli.scoring.score_file import (
    PairLine,
    ScoredFile,
    open_client,
    score_groups,
)
from judge_server.measuring.separation import (
    CriterionSeparation,
    LabelledPrompt,
    Separation,
)
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.wire import Criterion, RubricContent

_ROWS = 25
_TABLE_WIDTH = 80
_COLOURS = {"tells them apart": "green", "points the wrong way": "bold red", "says the same of both": "yellow"}


def print_report(found: Separation, rubrics: Mapping[str, int], title: str) -> None:
    """Print a report; `rubrics` are the counts of `count_rubrics`."""
    out.print(f"[bold]{title}[/]", highlight=False, soft_wrap=True)
    for line in _summary(found, rubrics):
        out.print(line, highlight=False, soft_wrap=True)
    several = sum(rubrics.values()) > 1
    out.print(_criteria_table(found.criteria, several=several), width=min(out.width, _TABLE_WIDTH))
    if len(found.criteria) > _ROWS:
        out.print(f"the {_ROWS} least useful of {len(found.criteria)} criteria", style="dim", highlight=False)


def _criteria_table(criteria: Sequence[CriterionSeparation], *, several: bool) -> Table:
    """A row for each criterion: its id, text and reading, the means, their difference with its interval, and n."""
    table = Table(header_style="bold", show_lines=True)
    table.add_column("criterion", overflow="fold")
    for name in ("good", "bad", "difference", "n", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in criteria[:_ROWS]:
        name = f"{one.rubric} {one.criterion}" if several else one.criterion
        text = " ".join(one.description.split())
        what = Text.assemble(
            (name, "bold"),
            f"\n{text[:_TEXT]}{'…' if len(text) > _TEXT else ''}\n",
            (one.reading, _COLOURS.get(one.reading, "dim")),
        )
        between = f"\n{one.interval[0]:+.2f} to {one.interval[1]:+.2f}" if one.interval else ""
        difference = f"{_number(one.difference, signed=True)}{between}"
        table.add_row(what, _number(one.good), _number(one.bad), difference, str(one.verdicts), str(one.failed or "–"))
    return table


_TEXT = 160


def _summary(found: Separation, rubrics: Mapping[str, int]) -> list[str]:
    if found.ordered is None or found.tied is None:
        return []
    between = f" (95% interval {found.interval[0]:.2f} to {found.interval[1]:.2f})" if found.interval else ""
    lines = [
        f"[bold]good ranks above bad {found.ordered:.2f} of the time[/]{between}; 0.5 is chance; "
        f"{found.tied:.0%} of the pairs are tied",
        f"mean reward of good {_number(found.mean_good)}, of bad {_number(found.mean_bad)}: "
        f"{found.good} good and {found.bad} bad responses to {found.prompts} prompts, {found.unscored} unscored",
    ]
    if sum(rubrics.values()) > 1:
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in rubrics.items())
        lines.append(f"of {sum(rubrics.values())} rubrics: {counts}")
    return lines


def _number(value: float | None, *, signed: bool = False) -> str:
    return "–" if value is None else f"{value:+.2f}" if signed else f"{value:.2f}"


async def judge_pairs(
    judge: ChosenJudge,
    pairs: Sequence[PairLine],
    shared: str | RubricContent | None,
    options: dict[str, Any],
    concurrency: int,
) -> tuple[list[LabelledPrompt], ScoredFile]:
    """Judge the responses of all pairs; return them with labels, and why lines were refused."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("loading the judge", total=None)
        async with open_client(judge.url, judge.settings) as client:
            criteria = {} if shared is None else {_name(shared): await _criteria(client, shared)}
            refused = await _add_line_rubrics(client, pairs, criteria)
            known = [line for line in pairs if line.number not in refused]
            total = sum(len(line.group.responses) for line in known)
            progress.update(task, description="judging responses", total=total)
            scored = await score_groups(
                client,
                known,
                {"rubric": shared, **options},
                concurrency=concurrency,
                advance=lambda: progress.advance(task),
            )
    if scored.unreachable is not None:
        raise scored.unreachable
    labelled = []
    judged = [line for line in known if line.number not in scored.refused]
    for line, group in zip(judged, scored.groups, strict=True):
        name = _name(line.group.rubric or shared)
        good, bad = group.responses[: line.good], group.responses[line.good :]
        labelled.append(LabelledPrompt(name, criteria[name], good, bad))
    scored.refused.update(refused)
    return labelled, scored


async def _add_line_rubrics(
    client: AsyncClient, pairs: Sequence[PairLine], criteria: dict[str, tuple[Criterion, ...]]
) -> dict[int, str]:
    """Add the criteria of the lines' own rubrics by name; return the lines whose rubric is missing, and why."""
    missing: dict[str, str] = {}
    for rubric in {_name(line.group.rubric): line.group.rubric for line in pairs}.values():
        if rubric is not None and _name(rubric) not in criteria:
            try:
                criteria[_name(rubric)] = await _criteria(client, rubric)
            except AdjudgeError as error:
                missing[_name(rubric)] = str(error)
    return {line.number: missing[name] for line in pairs if (name := _name(line.group.rubric)) in missing}


async def _criteria(client: AsyncClient, rubric: str | RubricContent) -> tuple[Criterion, ...]:
    return (await client.rubric(rubric)).criteria if isinstance(rubric, str) else rubric.criteria


def _name(rubric: str | RubricContent | None) -> str:
    return rubric if isinstance(rubric, str) else rubric.digest[:19] if rubric else ""
