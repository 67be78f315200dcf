"""`adjudge score` and `adjudge filter-easy`: score a JSONL file of groups, and drop the questions that are easy.

`filter-easy` drops questions that the base policy already answers well (RGR-GRPO, appendix A.1).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, Task, TaskProgressColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    OUTPUT,
    ColumnOption,
    RubricOption,
    Service,
    UsageError,
    check_output,
    copy_input,
    input_argument,
    keep_input,
    output_option,
    usage_errors,
)
from adjudge_services.cli.output import (
    err,
    exit_with_error,
    file_name,
    out,
    pluralize,
    print_line,
    print_refused_lines,
    show_progress,
)
from trainer_client.wire import RewardOptions, RewardRequest

if not OPTIONS_ONLY:
    from adjudge_services.cli.judge_choice import open_judge
    from adjudge_services.cli.row_output import RowOutput
    from adjudge_services.cli.scoring.score_file import (
        REWARD_COLUMNS,
        BadLine,
        GroupLine,
        ScoredFile,
        read_groups,
        read_rubric_argument,
        score_groups,
        split_lines,
        stream_groups,
    )
    from adjudge_services.settings import Settings
    from judge_server.evaluation.row_files import RowFile, parse_columns
    from trainer_client.steps import NO_STEP
    from trainer_client.wire import (
        NEEDS_NO_RUBRIC,
        Criterion,
        GroupRewards,
        ResponseReward,
        RubricContent,
        Usage,
        Verdict,
    )
    from trainer_client.wire.problems import error_url

_VERDICTS_A_LINE = 3
_GROUP_WIDTH = 20
_BESIDE_VERDICTS = len("│ " + " │ # │ reward │ " + " │ " + " │")
_NO_RUBRIC = "has no rubric; add one to the line, or give one for all lines with --rubric"
_NOT_LINES = (".csv", ".tsv", ".parquet", ".gz", ".bz2", ".xz")
KEPT, EASY, LONG, UNRATED = "kept", "easy", "long reference", "unrated"


def score(
    file: Annotated[
        str,
        typer.Argument(
            help="A group per row (prompt, responses, …), as JSONL, CSV or Parquet: a path, a URL such as s3://…, or - "
            "for JSONL on standard input.",
            callback=copy_input,
        ),
    ],
    *,
    rubric: RubricOption = None,
    options: Annotated[Mapping[str, Any], FromRequest(RewardRequest, without=("judge", "deadline_s"))],
    output: Annotated[
        Path | None,
        output_option("Write rewards here, as JSONL or Parquet.", rich_help_panel=OUTPUT),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Score only the first N lines.")] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Name under which the ledger records this, as a training run; none by default."),
    ] = None,
    table: Annotated[
        bool | None,
        typer.Option(
            "--table/--jsonl",
            help="Output format; by default a table on a terminal, else JSONL.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    column: ColumnOption = None,
    service: Service,
) -> None:
    """Score every response in a file.

    Prints a table on a terminal, JSONL otherwise. Rows are read, judged and written in order, a few at a time, so that
    a file can be larger than the memory; only a table keeps them all. Exits with 1 if any response was not scored or
    any line was rejected, and reports how many and why.
    """
    show_table = sys.stdout.isatty() if table is None else table
    keep_input(file, output)
    started = time.monotonic()
    with usage_errors():
        columns = parse_columns(column)
    rows = RowFile(file, limit, columns=columns)
    request: dict[str, object] = {
        "mode": RewardOptions().mode,
        **options,
        "rubric": read_rubric_argument(rubric) if rubric else None,
        "deadline_s": service.deadline_s,
    }
    with nullcontext() if output is None and show_table else RowOutput(output, lambda _: REWARD_COLUMNS) as written:
        results = ScoredFile(written, keep=show_table)
        asyncio.run(score_rows(service, run, rows, request, results))
        if not results.lines:
            exit_with_error(f"{file_name(Path(file))} has no lines")
        if results.unreachable is not None and not results.responses:
            exit_with_error(str(results.unreachable))
    if show_table and results.groups:
        title = " · ".join(part for part in (Path(file).name, str(request["mode"]), results.judge) if part)
        print_line(f"[bold]{escape(title)}[/]")
        out.print(rewards_table([*results.groups.values()]))
        only = RowFile(file, limit, columns=columns) if results.lines == 1 else None
        criteria = _criteria_of_all(request["rubric"], only)
        out.print(legend(criteria, [*results.groups.values()]))
        if (bias := position_bias([*results.groups.values()])) is not None:
            print_line(bias)
    summarise(results, Path(file), time.monotonic() - started)
    if results.unscored or results.refused_lines:
        raise typer.Exit(1)


def filter_easy(
    file: Annotated[
        Path,
        input_argument("JSONL with a question per line: prompt, reference_answer, and responses of the base policy."),
    ],
    *,
    output: Annotated[Path, output_option("File for the kept lines, unchanged.")],
    easy_threshold: Annotated[
        float,
        typer.Option(min=0, max=1, help="Mean score in [0, 1] from which a question is easy; 0.75 is (7.75 - 1) / 9."),
    ] = 0.75,
    reference_characters: Annotated[
        int, typer.Option(min=1, help="Maximum length of a reference answer, in characters; longer ones are dropped.")
    ] = 8_000,
    scores: Annotated[
        Path | None, typer.Option(help="Write each line's score and outcome here as JSONL.", callback=check_output)
    ] = None,
    service: Service,
) -> None:
    """Rate the base policy's responses on a Likert scale, and keep the questions that it does not answer well.

    Lines with an overlong reference answer are dropped without rating. A line with a response that could not be rated
    is kept. Exits with 1 if any line could not be read or rated.
    """
    keep_input(file, output, scores)
    if scores is not None and scores.resolve() == output.resolve():
        raise UsageError("--output and --scores are one file; name another for the scores")
    if file.suffix.lower() in _NOT_LINES:
        raise UsageError(f"{file} is not JSONL, whose lines are kept; convert it to JSONL")
    lines, refused = split_lines(read_groups(file))
    rated = [line for line in lines if len(line.group.reference_answer or "") <= reference_characters]
    scored = asyncio.run(rate_lines(service, rated)) if rated else ScoredFile()
    filtered = classify_lines(lines, rated, scored, easy_threshold)
    write_kept(file, output, scores, filtered)
    print_refused_lines(file, refused | scored.refused)
    counts = {outcome: sum(one.outcome == outcome for one in filtered) for outcome in (KEPT, UNRATED, EASY, LONG)}
    print_line(
        f"kept {counts[KEPT] + counts[UNRATED]} of {len(lines)} questions in {escape(str(output))}; dropped "
        f"{counts[EASY]} easy ones and {counts[LONG]} with a long reference; {counts[UNRATED]} kept ones are unrated"
    )
    if counts[UNRATED] or refused:
        err.print("[bold red]some lines could not be read or rated[/]")
        raise typer.Exit(1)


def rewards_table(groups: Sequence[GroupRewards]) -> Table:
    """A table with one row per response.

    A verdict reads `s1 ✓ 0.87 @2` (criterion, satisfied, probability, step), `s1 ? 0.52` (uncertain),
    `s1 0.68 (2.7)` (criterion, score, expected grade) or `s1 ✓ math` (criterion, satisfied, the program that verified
    it). `@–` is a verdict that no step decides.
    """
    stepwise = any(response.steps for group in groups for response in group.responses)
    table = Table(show_lines=stepwise, header_style="bold")
    table.add_column("group", overflow="fold", max_width=_GROUP_WIDTH)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("reward", justify="right", min_width=len("reward"))
    table.add_column("verdicts", overflow="fold")
    if stepwise:
        table.add_column("steps", no_wrap=True)
    responses = [response for group in groups for response in group.responses]
    lines = [line for response in responses for line in str(_steps(response)).split("\n")]
    steps = max(map(len, lines), default=0) if stepwise else -len(" │ ")
    names = max((len(group.id) for group in groups), default=0)
    room = out.width - min(names, _GROUP_WIDTH) - steps - _BESIDE_VERDICTS
    for group in groups:
        for index, response in enumerate(group.responses):
            cells = [Text(group.id if index == 0 else ""), Text(str(index + 1)), _reward(response)]
            cells.append(_verdicts(response.verdicts, room))
            table.add_row(*cells, *([_steps(response)] if stepwise else []))
    return table


def _criteria_of_all(rubric: object, only_row: RowFile | None) -> Sequence[Criterion]:
    """Return the criteria by which all rows were judged, if they are in the command or in the only row of a file."""
    if rubric is None and only_row is not None:
        line = next(read_groups(only_row))  # without what is said at the end of a file, which was said before
        rubric = line.group.rubric if isinstance(line, GroupLine) else None
    return rubric.criteria if isinstance(rubric, RubricContent) else ()


def legend(criteria: Sequence[Criterion], groups: Sequence[GroupRewards]) -> Table:
    """Say what each criterion of a table asks, and what the marks in the table mean."""
    verdicts = [verdict for group in groups for response in group.responses for verdict in response.verdicts]
    table = Table.grid(padding=(0, 2))
    for criterion in criteria:
        kind = f"{criterion.kind}: " if criterion.kind else ""
        table.add_row(Text(criterion.id, style="bold"), Text(f"{kind}{criterion.description}"))
    marks = "✓ met, ✗ not met"
    if any(verdict.score is None and verdict.failure is None for verdict in verdicts):
        marks += ", ? uncertain"
    if any(verdict.failure is not None for verdict in verdicts):
        marks += ", ! failed"
    if any(verdict.probability is not None for verdict in verdicts):
        marks += "; 0.97: the judge's probability of yes"
    if any(verdict.step is not None for verdict in verdicts):
        marks += "; @2: step 2 decides, @0: the whole response"
    if any(verdict.method == "no_content" for verdict in verdicts):
        marks += "; no_content: the response is empty"
    table.add_row("", Text(marks, style="dim"))
    return table


def _reward(response: ResponseReward) -> Text:
    if response.reward is None:
        return Text("none", style="bold red")
    style = "yellow" if response.policy_applied or response.status != "scored" else "bold"
    note = f" ({response.policy_applied})" if response.policy_applied else ""
    return Text(f"{response.reward:.3f}{note}", style=style)


def _verdicts(verdicts: Sequence[Verdict], room: int) -> Text:
    cells = [_verdict(verdict) for verdict in verdicts if verdict.status != "left_out"] or [Text("")]
    width = max(len(cell) for cell in cells)
    for cell in cells:
        cell.pad_right(width - len(cell))
    beside = max(1, min(_VERDICTS_A_LINE, (room + 2) // (width + 2)))
    rows = [Text("  ").join(cells[i : i + beside]) for i in range(0, len(cells), beside)]
    return Text("\n").join(rows)


def _verdict(verdict: Verdict) -> Text:
    if verdict.failure is not None:
        return Text(f"{verdict.criterion} ! {verdict.failure.kind}", style="red")
    style = "yellow" if verdict.score is None else "green" if verdict.score else "dim"
    if verdict.grade is not None:
        text = f"{verdict.criterion} {verdict.score:.2f} ({verdict.grade:.1f})"
    else:
        text = f"{verdict.criterion} {'?' if verdict.score is None else '✓' if verdict.score else '✗'}"
    if verdict.probability is not None:
        text += f" {verdict.probability:.2f}"
    elif verdict.method != "judge":
        text += f" {verdict.method}"
    if verdict.step is not None:
        text += f" @{'–' if verdict.step == NO_STEP else verdict.step}"
    return Text(text, style=style)


def _steps(response: ResponseReward) -> Text:
    lines = []
    for step in response.steps:
        if step.number == 0 and step.delta is None:
            continue
        name = "whole" if step.number == 0 else f"{step.number} [{step.start}:{step.end}]"
        lines.append(f"{name} {'–' if step.delta is None else f'{step.delta:+.2f}'}")
    return Text("\n".join(lines))


async def score_rows(
    service: Service, run: str | None, rows: RowFile, options: dict[str, object], results: ScoredFile
) -> None:
    """Score the rows of a file, with progress on a terminal."""
    read = done = 0

    def lines() -> Iterator[GroupLine | BadLine]:
        nonlocal read
        for line in read_groups(rows):
            if isinstance(line, BadLine):
                yield line
            elif options["rubric"] is None and options["mode"] not in NEEDS_NO_RUBRIC and line.group.rubric is None:
                yield BadLine(line.number, _NO_RUBRIC)
            else:
                read += len(line.group.responses)
                yield line

    with show_progress(BarColumn(), TaskProgressColumn(), _Rate(), TimeRemainingColumn()) as progress:
        task = progress.add_task("loading the judge", total=None, responses=0)

        def advance() -> None:
            nonlocal done
            done += 1
            progress.update(task, completed=rows.share_read * done / read, responses=done)

        async with open_judge(service.judge, service.url, Settings(), run) as (client, judge):
            if isinstance(options["rubric"], str):
                await client.rubric(options["rubric"])  # fail once, not on every line
            progress.reset(task, description="judging responses", total=1.0)
            asked, concurrency = options | {"judge": judge}, service.concurrency
            streamed = stream_groups(client, lines(), asked, concurrency=concurrency, advance=advance)
            async with aclosing(streamed):  # also if a result cannot be written
                async for line in streamed:
                    results.add(line)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Responses so far, and per second."""
        done = task.fields["responses"]
        return Text(f"{done:,} at {done / task.elapsed:.2f}/s" if done and task.elapsed else "")


def position_bias(groups: Sequence[GroupRewards]) -> str | None:
    """Return what the order of showing did in a ranking; None if there was none."""
    rankings = [group.ranking for group in groups if group.ranking is not None]
    answered = sum(ranking.pairs - ranking.failed for ranking in rankings)
    if not answered:
        return None
    first = sum((ranking.first_preferred or 0.0) * (ranking.pairs - ranking.failed) for ranking in rankings)
    return (
        f"position bias: the response shown first was preferred in {first / answered:.0%} of comparisons (50% without "
        f"bias); the two orders disagree on {sum(ranking.inconsistent for ranking in rankings)} of {answered} pairs"
    )


def summarise(results: ScoredFile, file: Path, seconds: float) -> None:
    """Print on standard error what scoring cost, and what was not scored."""
    usage = Usage(**results.usage)
    err.print(
        f"{pluralize(results.responses, 'response')}, {pluralize(usage.judge_calls, 'judge call')}, "
        f"{usage.cached} cached; "
        f"{pluralize(usage.prompt_tokens_computed, 'prompt token')} computed, {usage.prompt_tokens_reused:,} reused; "
        f"{seconds:.1f} s"
    )
    print_refused_lines(file, results.refused)
    if results.unscored:
        why = ", ".join(f"{n} {kind}" for kind, n in results.unscored.most_common())
        unscored = results.unscored.total()
        err.print(f"[bold red]{unscored} of {results.responses} stayed unscored:[/] {why}")
        for kind, example in results.examples.items():
            err.print(f"  first {kind}: {escape(example)}")
            err.print(f"[dim]see {error_url(kind)}[/]")
    if results.refused_lines:
        err.print(f"[bold red]{pluralize(results.refused_lines, 'line')} not scored[/]")


class RatedLine(NamedTuple):
    """The outcome of a line, and the mean Likert score of its responses in [0, 1]; None if any has no score."""

    number: int
    outcome: str
    score: float | None


async def rate_lines(service: Service, lines: list[GroupLine]) -> ScoredFile:
    """Score the lines; raises the error of the first connection that failed."""
    async with open_judge(service.judge, service.url, Settings()) as (client, judge):
        options = {"mode": "likert", "deadline_s": service.deadline_s, "judge": judge}
        return await score_groups(client, lines, options, concurrency=service.concurrency, advance=lambda: None)


def classify_lines(
    lines: list[GroupLine], rated: list[GroupLine], scored: ScoredFile, easy_threshold: float
) -> list[RatedLine]:
    """What becomes of each line."""
    means: dict[int, float | None] = {}
    for line in rated:
        group = scored.groups.get(line.number)
        rewards = [] if group is None else [response.reward for response in group.responses]
        known = [reward for reward in rewards if reward is not None]
        means[line.number] = sum(known) / len(known) if known and len(known) == len(rewards) else None
    return [
        RatedLine(
            line.number, _classify(line.number in means, means.get(line.number), easy_threshold), means.get(line.number)
        )
        for line in lines
    ]


def _classify(asked: bool, score: float | None, easy_threshold: float) -> str:
    if not asked:
        return LONG
    if score is None:
        return UNRATED
    return EASY if score >= easy_threshold else KEPT


def write_kept(file: Path, output: Path, scores: Path | None, filtered: list[RatedLine]) -> None:
    """Write the kept lines, and the scores if they are wanted."""
    kept = {one.number for one in filtered if one.outcome in (KEPT, UNRATED)}
    lines = file.read_bytes().split(b"\n")
    output.write_bytes(b"".join(line + b"\n" for number, line in enumerate(lines, 1) if number in kept))
    if scores is not None:
        rows = [{"line": one.number, "score": one.score, "outcome": one.outcome} for one in filtered]
        scores.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
