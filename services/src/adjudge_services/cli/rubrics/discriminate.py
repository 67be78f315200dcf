"""`adjudge rubrics discriminate`: whether a rubric tells good responses from bad ones, before anything trains on it."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from adjudge_services.cli.judging_options import ConcurrencyOption, DeadlineOption, EngineOption, UrlOption
from adjudge_services.cli.output import err, exit_with_error, print_refused_lines
from adjudge_services.cli.rubrics.discriminate_report import print_report
from adjudge_services.cli.score_input import BadLine, PairLine, read_pairs, read_rubric_argument
from adjudge_services.cli.score_run import ScoredFile, open_client, score_groups
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError
from judge_server.evaluation import LabelledPrompt, separation
from rubric_store import FormatError
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.wire import Criterion, JudgingProtocol, RewardMode, RubricContent


def discriminate(
    file: Annotated[
        Path,
        typer.Argument(help="JSONL, a prompt a line with its good and bad responses.", exists=True, dir_okay=False),
    ],
    rubric: Annotated[
        str | None, typer.Option(help="A reference (name@3) or a rubric file; a line's own wins.")
    ] = None,
    mode: Annotated[RewardMode, typer.Option(help="How verdicts become a reward.")] = "weighted_mean",
    protocol: Annotated[
        JudgingProtocol | None, typer.Option(help="How the judge is asked; the mode's own unless given.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Judge only the first N lines.")] = None,
    at_least: Annotated[
        float | None, typer.Option(min=0, max=1, help="Exit with 1 where good and bad are ordered less often.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the figures here as JSON.")] = None,
    url: UrlOption = None,
    engine: EngineOption = None,
    concurrency: ConcurrencyOption = 8,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Judge responses known to be good or bad, and report how well the rubric tells them apart.

    A line has a prompt, `good` and `bad` (a response or a list of them), and whatever else a group may have.
    """
    lines = list(islice(read_pairs(file), limit))
    refused = {line.number: line.reason for line in lines if isinstance(line, BadLine)}
    pairs = [line for line in lines if isinstance(line, PairLine)]
    if rubric is None:
        without = [line.number for line in pairs if line.group.rubric is None]
        refused |= dict.fromkeys(without, "has no rubric; give the line one, or all of them one by --rubric")
        pairs = [line for line in pairs if line.group.rubric is not None]
    if not pairs:
        print_refused_lines(file, refused)
        exit_with_error(f"{file} has no line that can be judged")
    settings = Settings(engine_url=engine) if engine else Settings()
    options = {"mode": mode, "protocol": protocol, "deadline_s": deadline_s}
    try:
        shared = read_rubric_argument(rubric) if rubric else None
        labelled, scored = asyncio.run(_judge(url, settings, pairs, shared, options, concurrency))
    except (StartError, FormatError, AdjudgeError, ValueError) as error:
        exit_with_error(str(error))
    found = separation(labelled)
    if output is not None:
        output.write_text(json.dumps(asdict(found), indent=2) + "\n", encoding="utf-8")
    by_rubric = {name: [one for one in labelled if one.rubric == name] for name in {one.rubric for one in labelled}}
    print_report(found, [separation(group) for group in by_rubric.values()], f"{file.name} · {mode} · {scored.judge}")
    refused |= scored.refused
    print_refused_lines(file, refused)
    if found.ordered is None:
        exit_with_error("no prompt has both a good and a bad response with a reward, so nothing can be compared")
    if at_least is not None and found.ordered < at_least:
        exit_with_error(f"good and bad are ordered {found.ordered:.2f} of the time, which is less than {at_least:g}")
    if refused:
        raise typer.Exit(1)


async def _judge(
    url: str | None,
    settings: Settings,
    pairs: Sequence[PairLine],
    shared: str | RubricContent | None,
    options: dict[str, Any],
    concurrency: int,
) -> tuple[list[LabelledPrompt], ScoredFile]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("loading the judge", total=None)
        async with open_client(url, settings) as client:
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
    """Add the criteria of the lines' own rubrics, by the rubric's name in the report; the lines without, and why."""
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
