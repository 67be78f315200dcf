"""`adjudge rubrics discriminate`: check whether a rubric tells good responses from bad ones, before training on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import FiguresOption, RubricOption, Service, input_argument, keep_input
from adjudge_services.cli.output import (
    exit_with_error,
    file_name,
    format_number,
    out,
    print_line,
    print_refused_lines,
    show_progress,
)
from trainer_client.wire import RewardOptions, RewardRequest

if not OPTIONS_ONLY:
    from adjudge_services.cli.judge_choice import open_judge
    from adjudge_services.cli.scoring.score_file import (
        PairLine,
        ScoredFile,
        read_pairs,
        read_rubric_argument,
        score_groups,
        split_lines,
    )
    from adjudge_services.settings import Settings
    from judge_server.evaluation.measuring.separation import (
        CriterionSeparation,
        LabelledPrompt,
        Separation,
        count_rubrics,
        separation,
    )
    from trainer_client import AdjudgeError, AsyncClient
    from trainer_client.wire import Criterion, RubricContent
    from trainer_client.wire.problems import findings_url

_ROWS = 25
_TABLE_WIDTH = 80
_COLOURS = {"tells them apart": "green", "points the wrong way": "bold red", "says the same of both": "yellow"}
_TEXT = 160


def discriminate(
    file: Annotated[
        Path,
        input_argument("JSONL with a prompt per line and its good and bad responses."),
    ],
    *,
    rubric: RubricOption = None,
    options: Annotated[Mapping[str, Any], FromRequest(RewardRequest, without=("judge", "deadline_s"))],
    limit: Annotated[int | None, typer.Option(min=1, help="Judge only the first N lines.")] = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Exit with 1 if good responses rank above bad ones less often than this share."
        ),
    ] = None,
    output: FiguresOption = None,
    service: Service,
) -> None:
    """Judge responses known to be good or bad, and report how well the rubric tells them apart.

    A line has a prompt, `good` and `bad` (a response or a list of responses), and optionally other fields of a group.
    """
    keep_input(file, output)
    pairs, refused = split_lines(read_pairs(file, limit))
    if rubric is None:
        without = [line.number for line in pairs if line.group.rubric is None]
        refused |= dict.fromkeys(without, "has no rubric; add one to the line, or give one for all lines with --rubric")
        pairs = [line for line in pairs if line.group.rubric is not None]
    if not pairs:
        print_refused_lines(file, refused)
        exit_with_error(f"{file_name(file)} has no lines that can be judged")
    asked = {"mode": RewardOptions().mode, **options, "deadline_s": service.deadline_s}
    shared = read_rubric_argument(rubric) if rubric else None
    labelled, scored = asyncio.run(judge_pairs(service, pairs, shared, asked))
    found = separation(labelled)
    if output is not None:
        output.write_text(json.dumps(asdict(found), indent=2) + "\n", encoding="utf-8")
    if found.criteria:
        print_report(found, count_rubrics(labelled), f"{file.name} · {asked['mode']} · {scored.judge}")
    refused |= scored.refused
    print_refused_lines(file, refused)
    if found.ordered is None:
        exit_with_error("nothing can be compared: no prompt has both a good and a bad response with a reward")
    if at_least is not None and found.ordered < at_least:
        exit_with_error(f"good ranks above bad {found.ordered:.2f} of the time, which is less than {at_least:g}")
    if refused:
        raise typer.Exit(1)


def print_report(found: Separation, rubrics: Mapping[str, int], title: str) -> None:
    """Print a report; `rubrics` are the counts of `count_rubrics`."""
    print_line(f"[bold]{escape(title)}[/]")
    for line in _summary(found, rubrics):
        print_line(line)
    several = sum(rubrics.values()) > 1
    out.print(_criteria_table(found.criteria, several=several), width=min(out.width, _TABLE_WIDTH))
    if len(found.criteria) > _ROWS:
        out.print(f"the {_ROWS} least useful of {len(found.criteria)} criteria", style="dim")
    print_line(f"what these mean: {findings_url('good-and-bad-responses')}", style="dim")


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
        means = [format_number(mean, ".2f") for mean in (one.good, one.bad)]
        difference = f"{format_number(one.difference, '+.2f')}{between}"
        table.add_row(what, *means, difference, str(one.verdicts), str(one.failed or "–"))
    return table


def _summary(found: Separation, rubrics: Mapping[str, int]) -> list[str]:
    if found.ordered is None or found.tied is None:
        return []
    between = f" (95% interval {found.interval[0]:.2f} to {found.interval[1]:.2f})" if found.interval else ""
    lines = [
        f"[bold]good ranks above bad {found.ordered:.2f} of the time[/]{between}; 0.5 is chance; "
        f"{found.tied:.0%} of the pairs are tied",
        f"mean reward of good {format_number(found.mean_good, '.2f')}, of bad {format_number(found.mean_bad, '.2f')}: "
        f"{found.good} good and {found.bad} bad responses to {found.prompts} prompts, {found.unscored} unscored",
    ]
    if sum(rubrics.values()) > 1:
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in rubrics.items())
        lines.append(f"of {sum(rubrics.values())} rubrics: {counts}")
    return lines


async def judge_pairs(
    service: Service,
    pairs: Sequence[PairLine],
    shared: str | RubricContent | None,
    options: dict[str, Any],
) -> tuple[list[LabelledPrompt], ScoredFile]:
    """Judge the responses of all pairs; return them with labels, and why lines were refused."""
    with show_progress() as progress:
        task = progress.add_task("loading the judge", total=None)
        async with open_judge(service.judge, service.url, Settings()) as (client, judge):
            criteria = {} if shared is None else {_name(shared): await _criteria(client, shared)}
            refused = await _add_line_rubrics(client, pairs, criteria)
            known = [line for line in pairs if line.number not in refused]
            total = sum(len(line.group.responses) for line in known)
            progress.update(task, description="judging responses", total=total)
            scored = await score_groups(
                client,
                known,
                {"rubric": shared, "judge": judge, **options},
                concurrency=service.concurrency,
                advance=lambda: progress.advance(task),
            )
    labelled = []
    for line in known:
        if (group := scored.groups.get(line.number)) is not None:
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
