"""Score the groups of a file for `adjudge score` and `adjudge filter-easy`, and show the rewards."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from adjudge_services.cli.judge_choice import ChosenJudge
from adjudge_services.cli.output import err, out, pluralize, print_refused_lines
from adjudge_services.cli.scoring.score_file import (
    BadLine,
    GroupLine,
    ScoredFile,
    ScoredRows,
    open_client,
    read_groups,
    score_groups,
    stream_groups,
)
from judge_server.row_files import RowFile
from trainer_client.steps import NO_STEP
from trainer_client.wire import (
    NEEDS_NO_RUBRIC,
    GroupRewards,
    ResponseReward,
    Usage,
    Verdict,
)

_VERDICTS_A_LINE = 3
_GROUP_WIDTH = 20
_BESIDE_VERDICTS = len("│ " + " │ # │ reward │ " + " │ " + " │")


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


_NO_RUBRIC = "has no rubric; add one to the line, or give one for all lines with --rubric"


async def score_rows(
    judge: ChosenJudge,
    run: str | None,
    rows: RowFile,
    options: dict[str, object],
    concurrency: int,
    results: ScoredRows,
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

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("loading the judge", total=None, responses=0)

        def advance() -> None:
            nonlocal done
            done += 1
            progress.update(task, completed=rows.share_read * done / read, responses=done)

        async with open_client(judge.url, judge.settings, run) as client:
            if isinstance(options["rubric"], str):
                await client.rubric(options["rubric"])  # fail once, not on every line
            progress.reset(task, description="judging responses", total=1.0)
            async for line in stream_groups(client, lines(), options, concurrency=concurrency, advance=advance):
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


def summarise(results: ScoredRows, file: Path, seconds: float) -> None:
    """Print on standard error what scoring cost, and what was not scored."""
    usage = Usage(**results.usage)
    err.print(
        f"{pluralize(results.responses, 'response')}, {pluralize(usage.judge_calls, 'judge call')}, "
        f"{usage.cached} known before; "
        f"{pluralize(usage.prompt_tokens_computed, 'prompt token')} computed, {usage.prompt_tokens_reused:,} reused; "
        f"{seconds:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    print_refused_lines(file, results.refused)
    if results.unscored:
        why = ", ".join(f"{n} {kind}" for kind, n in results.unscored.most_common())
        unscored = results.unscored.total()
        err.print(f"[bold red]{unscored} of {results.responses} stayed unscored:[/] {why}", highlight=False)
    if results.refused_lines:
        err.print(f"[bold red]{pluralize(results.refused_lines, 'line')} not scored[/]", highlight=False)


KEPT, EASY, LONG, UNRATED = "kept", "easy", "long reference", "unrated"


class RatedLine(NamedTuple):
    """The outcome of a line, and the mean Likert score of its responses in [0, 1]; None if any has no score."""

    number: int
    outcome: str
    score: float | None


async def rate_lines(
    judge: ChosenJudge, lines: list[GroupLine], options: dict[str, object], concurrency: int
) -> ScoredFile:
    """Score the lines; raises the error of the first connection that failed."""
    async with open_client(judge.url, judge.settings) as client:
        scored = await score_groups(client, lines, options, concurrency=concurrency, advance=lambda: None)
    if scored.unreachable is not None:
        raise scored.unreachable
    return scored


def classify_lines(
    lines: list[GroupLine], rated: list[GroupLine], scored: ScoredFile, easy_threshold: float
) -> list[RatedLine]:
    """What becomes of each line."""
    answered = iter(scored.groups)
    means: dict[int, float | None] = {}
    for line in rated:
        group = None if line.number in scored.refused else next(answered)
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
