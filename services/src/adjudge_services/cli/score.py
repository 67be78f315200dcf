"""`adjudge score`: a JSONL file of groups in, rewards out."""

import asyncio
import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from adjudge_services.cli.judging_options import ConcurrencyOption, DeadlineOption, EngineOption, UrlOption
from adjudge_services.cli.output import err, exit_with_error, out, print_refused_lines
from adjudge_services.cli.score_input import BadLine, GroupLine, read_groups, read_rubric_argument
from adjudge_services.cli.score_run import ScoredFile, open_client, score_groups
from adjudge_services.cli.score_table import rewards_table, unscored_reasons
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError
from rubric_store import FormatError
from trainer_client import AdjudgeError
from trainer_client.wire import NEEDS_NO_RUBRIC, FailurePolicy, JudgingProtocol, ReasoningPart, RewardMode

_NO_RUBRIC = "has no rubric; give the line one, or all of them one by --rubric"


def score(
    file: Annotated[
        Path, typer.Argument(help="JSONL, a group a line: prompt, responses, …", exists=True, dir_okay=False)
    ],
    rubric: Annotated[
        str | None, typer.Option(help="A reference (name@3) or a rubric file; a line's own wins.")
    ] = None,
    mode: Annotated[RewardMode, typer.Option(help="How verdicts become a reward.")] = "weighted_mean",
    protocol: Annotated[
        JudgingProtocol | None, typer.Option(help="How the judge is asked; the mode's own unless given.")
    ] = None,
    on_failure: Annotated[FailurePolicy, typer.Option(help="What a failed verdict does to a reward.")] = "null",
    criteria_per_call: Annotated[
        str | None, typer.Option(help="Criteria that share a call: a number, or all.", metavar="N|all")
    ] = None,
    rationale: Annotated[bool, typer.Option("--rationale", help="Have reasons written before each verdict.")] = False,
    votes: Annotated[int, typer.Option(min=1, help="Verdicts to sample for each criterion.")] = 1,
    think_tokens: Annotated[int, typer.Option(min=0, help="Tokens a thinking judge may think for.")] = 0,
    reasoning: Annotated[
        ReasoningPart, typer.Option(help="What of a response's own thinking the judge sees.")
    ] = "strip",
    grounding_characters: Annotated[
        int | None, typer.Option(min=1, help="Show at most this much of a grounding.")
    ] = None,
    template: Annotated[str | None, typer.Option(help="A set of prompt templates of ADJUDGE_TEMPLATES_DIR.")] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Judge over-long responses without their middle.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write rewards here as JSONL.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Score only the first N lines.")] = None,
    table: Annotated[
        bool | None, typer.Option("--table/--jsonl", help="What to print; a table on a terminal, else JSONL.")
    ] = None,
    url: UrlOption = None,
    engine: EngineOption = None,
    concurrency: ConcurrencyOption = 8,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Score every response of a file.

    Prints a table on a terminal, JSONL otherwise. Exits with 1 if any response stayed unscored or any line was
    refused, and says how many and why.
    """
    lines = list(islice(read_groups(file), limit))
    bad = {line.number: line.reason for line in lines if isinstance(line, BadLine)}
    groups = [line for line in lines if isinstance(line, GroupLine)]
    if rubric is None and mode not in NEEDS_NO_RUBRIC:
        bad |= {line.number: _NO_RUBRIC for line in groups if line.group.rubric is None}
        groups = [line for line in groups if line.group.rubric is not None]
    if not groups and not bad:
        exit_with_error(f"{file} has no lines")
    settings = Settings(engine_url=engine) if engine else Settings()
    started = time.monotonic()
    try:
        options = {
            "rubric": read_rubric_argument(rubric) if rubric else None,
            "mode": mode,
            "protocol": protocol,
            "on_failure": on_failure,
            "criteria_per_call": _per_call(criteria_per_call),
            "rationale": rationale,
            "votes": votes,
            "think_tokens": think_tokens,
            "reasoning": reasoning,
            "grounding_characters": grounding_characters,
            "template": template,
            "truncate": truncate,
            "deadline_s": deadline_s,
        }
        scored = asyncio.run(_score(url, settings, groups, options, concurrency)) if groups else ScoredFile()
    except (StartError, FormatError, AdjudgeError, ValueError) as error:
        exit_with_error(str(error))
    scored.refused.update(bad)
    title = " · ".join(part for part in (file.name, mode, scored.judge) if part)
    _write(scored, output, title, sys.stdout.isatty() if table is None else table)
    _summarise(scored, file, time.monotonic() - started)


def _per_call(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


async def _score(
    url: str | None, settings: Settings, groups: list[GroupLine], options: dict[str, object], concurrency: int
) -> ScoredFile:
    total = sum(len(line.group.responses) for line in groups)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("loading the judge", total=None)
        async with open_client(url, settings) as client:
            if isinstance(options["rubric"], str):
                await client.rubric(options["rubric"])  # better one error now than one for every line
            progress.update(task, description="judging responses", total=total)
            return await score_groups(
                client, groups, options, concurrency=concurrency, advance=lambda: progress.advance(task)
            )


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Responses per second so far."""
        return Text(f"{task.speed:.2f}/s" if task.speed else "")


def _write(scored: ScoredFile, output: Path | None, title: str, table: bool) -> None:
    if output is not None or not table:
        text = "".join(json.dumps(group.model_dump(mode="json"), ensure_ascii=False) + "\n" for group in scored.groups)
        if output is None:
            sys.stdout.write(text)
        else:
            output.write_text(text, encoding="utf-8")
    if table and scored.groups:
        out.print(f"[bold]{title}[/]", highlight=False, soft_wrap=True)
        out.print(rewards_table(scored.groups))


def _summarise(scored: ScoredFile, file: Path, seconds: float) -> None:
    usage = scored.usage
    responses = sum(len(group.responses) for group in scored.groups)
    err.print(
        f"{_pluralize(responses, 'response')}, {_pluralize(usage.judge_calls, 'judge call')}, {usage.cached} known before; "
        f"{_pluralize(usage.prompt_tokens_computed, 'prompt token')} computed, {usage.prompt_tokens_reused} reused; "
        f"{seconds:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    print_refused_lines(file, scored.refused)
    reasons = unscored_reasons(scored.groups)
    if reasons:
        why = ", ".join(f"{n} {kind}" for kind, n in reasons.most_common())
        err.print(f"[bold red]{reasons.total()} of {responses} stayed unscored:[/] {why}", highlight=False)
    if scored.refused:
        err.print(f"[bold red]{_pluralize(len(scored.refused), 'line')} not scored[/]", highlight=False)
    if reasons or scored.refused:
        raise typer.Exit(1)


def _pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
