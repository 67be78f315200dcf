"""Measure responses for `adjudge measure`, and show the figures."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.judge_choice import ChosenJudge
from adjudge_services.cli.measuring.measure_file import (
    PromptResponses,
    WinRateResult,
    compare_sides,
    measure_lines,
    side_of_lines,
    side_of_run,
    with_distances,
)
from adjudge_services.cli.measuring.measure_ledger import RunFilter, RunProblems, problems_of, read_responses
from adjudge_services.cli.output import err, exit_with_error, out, print_refused_lines
from adjudge_services.cli.scoring.score_file import (
    BadLine,
    GroupLine,
    MeasuredLine,
    open_client,
    read_groups,
)
from adjudge_services.settings import Settings
from adjudge_services.store import StartError
from judge_server.generation.results import NO_MATPLOTLIB, MatplotlibMissing
from judge_server.measuring.embeddings import EmbeddingEndpoint
from judge_server.measuring.trajectories import (
    LoopLimits,
    MeasureEstimate,
    ProblemResponses,
    estimate_measures,
    measure_values,
    win_rates,
)
from judge_server.row_files import RowFile
from trainer_client import AdjudgeError

_COLOUR = "#3b6ea5"
_WIDTH_INCHES, _INCHES_A_ROW = 8.0, 0.35


def plot_estimates(found: Mapping[str, MeasureEstimate], file: Path, *, title: str) -> None:
    """Plot each measure as a point with its 95% interval, if any, to an SVG or PNG file.

    Raises:
        MatplotlibMissing: matplotlib is not installed.
        ValueError: matplotlib does not support the file's extension.
    """
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MatplotlibMissing(NO_MATPLOTLIB) from error
    canvas = Canvas(figsize=(_WIDTH_INCHES, 1.5 + _INCHES_A_ROW * len(found)), layout="constrained")
    axes = canvas.subplots()
    rows = list(found.items())[::-1]
    values = [one.value for _, one in rows]
    below = [max(0.0, one.value - (one.value if one.low is None else one.low)) for _, one in rows]
    above = [max(0.0, (one.value if one.high is None else one.high) - one.value) for _, one in rows]
    axes.errorbar(values, range(len(rows)), xerr=[below, above], fmt="o", color=_COLOUR, capsize=3)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(title)
    canvas.savefig(file)


_STEPS_SHOWN = 15


def save_figures(
    found: Mapping[str, MeasureEstimate], more: Mapping[str, Any], output: Path | None, plot: Path | None, title: str
) -> None:
    """Write the measures and `more` to a JSON file, and plot the measures, if the files are given."""
    if output is not None:
        content = {"figures": {name: one._asdict() for name, one in found.items()}, **more}
        output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if plot is not None:
        try:
            plot_estimates(found, plot, title=title)
        except (MatplotlibMissing, ValueError, OSError) as error:
            exit_with_error(str(error))


def figures_table(found: Mapping[str, MeasureEstimate], title: str) -> Table:
    """A table of each measure's value, interval and number of problems."""
    table = Table("measure", "value", "95% interval", "problems", title=title)
    for name, one in found.items():
        limits = "–" if one.low is None or one.high is None else f"{one.low:.3f} to {one.high:.3f}"
        table.add_row(name, f"{one.value:.3f}", limits, str(one.problems))
    return table


def steps_table(by_step: Mapping[int | None, Sequence[ProblemResponses]], ks: Sequence[int]) -> Table:
    """A table of the last steps; of measures that depend on k, only the largest k."""
    rows = {step: measure_values(problems, ks=ks) for step, problems in list(by_step.items())[-_STEPS_SHOWN:]}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    families = [[one for one in names if one.startswith(start)] for start in ("pass_at_", "best_of_")]
    left_out = {name for family in families for name in family[:-1]}
    shown = [name for name in names if name not in left_out]
    table = Table("step", "problems", *shown, title=f"the last {len(rows)} of {len(by_step)} steps")
    for step, row in rows.items():
        cells = [f"{row[name]:.3f}" if name in row else "–" for name in shown]
        table.add_row("–" if step is None else str(step), str(len(by_step[step])), *cells)
    return table


def measure_run(
    wanted: RunFilter,
    url: str | None,
    ks: tuple[int, ...],
    limits: LoopLimits,
    endpoint: EmbeddingEndpoint | None,
    concurrency: int,
    output: Path | None,
    plot: Path | None,
) -> None:
    """Measure the responses of a recorded run."""
    try:
        read, failed = asyncio.run(_read_run(wanted, url, limits, endpoint, concurrency))
        problems = [one for each in read.by_step.values() for one in each]
        found = estimate_measures(problems, ks=ks)
        by_step = [{"step": number, "figures": measure_values(each, ks=ks)} for number, each in read.by_step.items()]
    except (StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    about = {"responses": read.responses, "without_reward": read.without_reward, "without_text": read.without_text}
    title = wanted.run or "(no run)"
    save_figures(found, {**about, "steps": by_step}, output, plot, title)
    out.print(figures_table(found, f"{title}: {len(problems)} problems, {read.responses} responses"))
    if len(by_step) > 1:
        out.print(steps_table(read.by_step, ks))
    if read.without_reward:
        err.print(f"{read.without_reward} responses have no reward; reward figures leave them out", highlight=False)
    if wanted.texts and read.without_text:
        err.print(
            f"the ledger keeps no text of {read.without_text} responses (ADJUDGE_LEDGER=verdicts); looping and "
            "diversity leave them out",
            highlight=False,
            soft_wrap=True,
        )
    if not wanted.texts:
        err.print("looping and diversity need texts: add --texts if the ledger keeps them", highlight=False)
    if failed:
        for reason, count in Counter(failed).items():
            err.print(f"[red]{count} problems:[/] {escape(reason)}", highlight=False, soft_wrap=True)
        raise typer.Exit(1)


async def _read_run(
    wanted: RunFilter, url: str | None, limits: LoopLimits, endpoint: EmbeddingEndpoint | None, concurrency: int
) -> tuple[RunProblems, list[str]]:
    """A run's problems, and why some have no semantic distance."""
    read = problems_of(await read_responses(wanted, url), limits)
    if endpoint is None:
        return read, []
    problems = [one for each in read.by_step.values() for one in each]
    known, failed = await with_distances(endpoint, problems, read.texts, concurrency)
    left = iter(known)
    by_step = {step: list(islice(left, len(each))) for step, each in read.by_step.items()}
    return read._replace(by_step=by_step), list(failed.values())


def file_sides(a: Path, b: Path, limit: int | None) -> tuple[list[PromptResponses], list[PromptResponses]]:
    """Read the two files whose responses are compared."""
    if not b.is_file():
        exit_with_error(f"--against: the file {b} does not exist")
    sides = []
    for file in (a, b):
        lines = list(read_groups(RowFile(str(file), limit)))
        if refused := {line.number: line.reason for line in lines if isinstance(line, BadLine)}:
            print_refused_lines(file, refused)
            exit_with_error("nothing was compared: all lines of both files must be readable")
        sides.append(side_of_lines([line for line in lines if isinstance(line, GroupLine)]))
    return sides[0], sides[1]


async def compare_win_rates(
    url: str | None,
    judge: ChosenJudge,
    sides: tuple[RunFilter, RunFilter] | tuple[list[PromptResponses], list[PromptResponses]],
    how: dict[str, Any],
) -> WinRateResult:
    """Have the judge compare the responses of two sides."""
    a, b = [
        side_of_run(await read_responses(side, url), side.run) if isinstance(side, RunFilter) else side
        for side in sides
    ]
    async with open_client(judge.url, judge.settings) as client:
        return await compare_sides(client, a, b, **how, judge=judge.name)


def show_win_rates(compared: WinRateResult, output: Path | None, plot: Path | None, title: str) -> None:
    """Print and write the win rates."""
    found = win_rates(compared.problems)
    if not found and not compared.failed:
        exit_with_error(f"{title}: no prompt is in both; prompts match only if they are identical")
    counts = {
        "pairs": sum(len(pairs) for pairs in compared.problems),
        "unmatched": compared.unmatched,
        "failed": len(compared.failed),
    }
    save_figures(found, counts, output, plot, title)
    out.print(figures_table(found, f"{title}: {counts['pairs']} pairs"))
    if compared.unmatched:
        err.print(f"{compared.unmatched} prompts are on one side only and were left out", highlight=False)
    for reason in compared.failed:
        err.print(f"[red]not compared:[/] {escape(reason)}", highlight=False, soft_wrap=True)
    if compared.failed:
        raise typer.Exit(1)


def reject_options(given: dict[str, Any], why: str) -> None:
    """Exit with an error if any of these options is given."""
    names = [name for name, value in given.items() if value]
    if names:
        exit_with_error(f"{' and '.join(names)} cannot be used here: {why}")


async def measure_file(
    judge: ChosenJudge, groups: list[MeasuredLine], shared: Any, how: dict[str, Any]
) -> tuple[list[ProblemResponses], dict[int, str]]:
    """Judge and measure the responses of a file."""
    async with open_client(judge.url, judge.settings) as client:
        return await measure_lines(client, groups, shared, **how, judge=judge.name)


def embedding_endpoint(url: str | None, settings: Settings) -> EmbeddingEndpoint | None:
    """The endpoint that embeds texts, if there is one."""
    if url is None:
        return None
    key = settings.engine_api_key
    try:
        return EmbeddingEndpoint.from_url(url, api_key=key.get_secret_value() if key else None)
    except ValueError as error:
        exit_with_error(f"--embeddings: {error}")


def read_numbers(text: str) -> tuple[int, ...]:
    """Read numbers that commas separate."""
    try:
        return tuple(dict.fromkeys(int(one) for one in text.split(",")))
    except ValueError:
        raise ValueError(f"--k is {text!r}; write whole numbers separated by commas, such as 1,4,16") from None
