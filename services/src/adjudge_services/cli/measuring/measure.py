"""`adjudge measure`: measure responses from a file or a run, as tables, JSON and plots.

Plots need matplotlib, an extra.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    OUTPUT,
    FiguresOption,
    Service,
    UsageError,
    check_output,
    input_argument,
    keep_input,
)
from adjudge_services.cli.output import err, exit_with_error, file_name, out, pluralize, print_line, print_refused_lines
from judge_server.evaluation.measuring.trajectories import LoopLimits
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client.wire import RewardOptions, RewardRequest

if not OPTIONS_ONLY:
    from adjudge_services.cli.judge_choice import open_judge
    from adjudge_services.cli.measuring.measure_file import (
        FileMeasuring,
        PromptResponses,
        WinRateResult,
        compare_sides,
        side_of_lines,
        side_of_run,
        with_distances,
    )
    from adjudge_services.cli.measuring.measure_ledger import RunFilter, RunProblems, problems_of, read_responses
    from adjudge_services.cli.scoring.score_file import (
        read_groups,
        read_measured,
        read_rubric_argument,
        split_lines,
    )
    from adjudge_services.settings import Settings
    from judge_server.evaluation.measuring.embeddings import EmbeddingEndpoint
    from judge_server.evaluation.measuring.trajectories import (
        MeasureEstimate,
        ProblemResponses,
        count_alignment,
        estimate_measures,
        measure_values,
        win_rates,
    )
    from judge_server.evaluation.row_files import RowFile
    from judge_server.generation.results import NO_MATPLOTLIB, MatplotlibMissing

_LIMITS = LoopLimits()
_OF_RUN = "A recorded run"
_LOOPING = "Looping"

_COLOUR = "#3b6ea5"
_WIDTH_INCHES, _INCHES_A_ROW = 8.0, 0.35
_STEPS_SHOWN = 15


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is measured of a run in the ledger."""

    run: Annotated[
        str | None, typer.Option(help="Measure this run in the ledger instead of a file.", rich_help_panel=_OF_RUN)
    ] = None
    step: Annotated[
        int | None, typer.Option(min=0, help="With --run: only this training step.", rich_help_panel=_OF_RUN)
    ] = None
    texts: Annotated[
        bool,
        typer.Option(
            "--texts",
            help="With --run: also measure looping and diversity, from the texts in the ledger.",
            rich_help_panel=_OF_RUN,
        ),
    ] = False
    project: Annotated[
        str,
        typer.Option(
            help="With --run: the project, if the database is read; a service uses the key's project.",
            rich_help_panel=_OF_RUN,
        ),
    ] = DEFAULT_PROJECT


@dataclass(frozen=True, slots=True)
class Looping:
    """From when on a text counts as looping."""

    max_corrections: Annotated[
        int,
        typer.Option(
            min=0, help="A text with more self-correction phrases counts as looping.", rich_help_panel=_LOOPING
        ),
    ] = _LIMITS.max_corrections
    max_duplicates: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="A text with a larger share of repeated paragraphs counts as looping.",
            rich_help_panel=_LOOPING,
        ),
    ] = _LIMITS.max_duplicate_share
    min_paragraph_words: Annotated[
        int, typer.Option(min=1, help="Words; shorter paragraphs are not compared.", rich_help_panel=_LOOPING)
    ] = _LIMITS.min_paragraph_words


def measure(
    file: Annotated[Path | None, input_argument("JSONL with a problem per line: prompt, responses, …")] = None,
    *,
    recorded: Recorded,
    against: Annotated[
        str | None,
        typer.Option(help="Measure the win rate over another file, or with --run over another run.", metavar="OTHER"),
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="With --against: the question to ask the judge about a pair.")
    ] = None,
    rubric: Annotated[
        str | None, typer.Option(help="A reference (name@3) or a rubric file for rewards, for lines without a rubric.")
    ] = None,
    rules: Annotated[Mapping[str, Any], FromRequest(RewardRequest, only=("mode",), defaults=False)],
    steps: Annotated[bool, typer.Option("--steps", help="Judge the correctness of each step.")] = False,
    samples: Annotated[
        str, typer.Option("--k", help="Values of k for pass@k and best-of-k, separated by commas.", metavar="K,…")
    ] = "1,2,4,8",
    embeddings: Annotated[
        str | None,
        typer.Option(
            help="Measure semantic distance with an embedding server: openai+http://HOST:PORT/v1?model=NAME.",
            metavar="URL",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Measure only the first N lines.")] = None,
    looping: Looping,
    output: FiguresOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot the figures here, as SVG or PNG.", rich_help_panel=OUTPUT, callback=check_output),
    ] = None,
    service: Service,
) -> None:
    """Measure responses: accuracy, pass@k, looping and diversity; with --rubric or --steps also a judge's verdicts.

    With --run, measure the recorded verdicts and rewards of a run, in total and by training step, without a judge. With
    --against, the judge compares the responses with those of another file or run, in both orders.

    Figures without data are left out. Intervals are 95% intervals over problems: Wilson's for shares, bootstrap for
    other figures. Exits with 1 if any line could not be read or judged.
    """
    mode = rules.get("mode")
    run, step, texts, project = recorded.run, recorded.step, recorded.texts, recorded.project
    if (file is None) == (run is None):
        raise UsageError("give either a file of responses or --run NAME")
    for read in (file, against):
        keep_input(read or "", output, plot)
    ks = read_numbers(samples)
    limits = LoopLimits(looping.max_corrections, looping.max_duplicates, looping.min_paragraph_words)
    settings = Settings()
    endpoint = embedding_endpoint(embeddings, settings)
    if against is not None:
        reject_options(
            {"--mode": mode, "--steps": steps, "--embeddings": embeddings},
            "--against measures only win rates",
        )
        reject_options({"--limit": run is not None and limit}, "a run is compared as a whole, or at one --step")
        reject_options({"--step": file is not None and step is not None}, "a file has no training steps")
        sides = file_sides(file, Path(against), limit) if file else None
        shared = read_rubric_argument(rubric) if rubric else None
        wanted = RunFilter(run or "", project, step, texts=True)
        compared = asyncio.run(
            compare_win_rates(service, sides or (wanted, wanted._replace(run=against)), shared, question)
        )
        show_win_rates(compared, output, plot, f"{file.name if file else run} against {against}")
        return
    reject_options({"--question": question}, "it needs --against")
    if run is not None:
        judging = {
            "--rubric": rubric,
            "--mode": mode,
            "--steps": steps,
            "--limit": limit,
            "--judge": service.judge,
        }
        reject_options(judging, "--run measures recorded verdicts, and the ledger keeps no ground truth to judge again")
        reject_options({"--embeddings": not texts and embeddings}, "it needs a run's texts; add --texts")
        measure_run(RunFilter(run, project, step, texts), service, ks, limits, endpoint, output, plot)
        return
    assert file is not None
    reject_options({"--step": step is not None, "--texts": texts}, "they apply to --run")
    groups, refused = split_lines(read_measured(file, limit))
    if not groups:
        print_refused_lines(file, refused)
        exit_with_error(f"{file_name(file)} has no lines that can be measured")
    shared = read_rubric_argument(rubric) if rubric else None

    async def judged() -> tuple[list[ProblemResponses], dict[int, str]]:
        asked = shared, mode or RewardOptions().mode, steps, service.concurrency, service.deadline_s
        async with open_judge(service.judge, service.url, settings) as (client, name):
            return await FileMeasuring(client, name, *asked, limits, endpoint).measure(groups)

    problems, failed = asyncio.run(judged())
    found = estimate_measures(problems, ks=ks)
    counts = count_alignment(problems) if steps else None
    save_figures(found, {"alignment": counts}, output, plot, file.name)
    out.print(figures_table(found, f"{file.name}: {pluralize(len(problems), 'problem')}"))
    if counts is not None:
        print_line(", ".join(f"{count} {name}" for name, count in counts.items()))
    print_refused_lines(file, refused | failed)
    if refused or failed:
        err.print("[bold red]some lines could not be read or judged[/]")
        raise typer.Exit(1)


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


def save_figures(
    found: Mapping[str, MeasureEstimate], more: Mapping[str, Any], output: Path | None, plot: Path | None, title: str
) -> None:
    """Write the measures and `more` to a JSON file, and plot the measures, if the files are given."""
    if output is not None:
        content = {"figures": {name: one._asdict() for name, one in found.items()}, **more}
        output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if plot is not None:
        plot_estimates(found, plot, title=title)


def figures_table(found: Mapping[str, MeasureEstimate], title: str) -> Table:
    """A table of each measure's value, interval and number of problems."""
    table = Table("measure", "value", "95% interval", "problems", title=escape(title))
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
    service: Service,
    ks: tuple[int, ...],
    limits: LoopLimits,
    endpoint: EmbeddingEndpoint | None,
    output: Path | None,
    plot: Path | None,
) -> None:
    """Measure the responses of a recorded run."""
    read, failed = asyncio.run(_read_run(wanted, service, limits, endpoint))
    problems = [one for each in read.by_step.values() for one in each]
    found = estimate_measures(problems, ks=ks)
    by_step = [{"step": number, "figures": measure_values(each, ks=ks)} for number, each in read.by_step.items()]
    about = {"responses": read.responses, "without_reward": read.without_reward, "without_text": read.without_text}
    title = wanted.run or "(no run)"
    save_figures(found, {**about, "steps": by_step}, output, plot, title)
    counts = f"{pluralize(len(problems), 'problem')}, {pluralize(read.responses, 'response')}"
    out.print(figures_table(found, f"{title}: {counts}"))
    if len(by_step) > 1:
        out.print(steps_table(read.by_step, ks))
    if read.without_reward:
        err.print(f"{read.without_reward} responses have no reward; reward figures leave them out")
    if wanted.texts and read.without_text:
        err.print(
            f"the ledger keeps no text of {read.without_text} responses (ADJUDGE_LEDGER=verdicts); looping and "
            "diversity leave them out"
        )
    if not wanted.texts:
        err.print("looping and diversity need texts: add --texts if the ledger keeps them")
    if failed:
        for reason, count in Counter(failed).items():
            err.print(f"[red]{count} problems:[/] {escape(reason)}")
        raise typer.Exit(1)


async def _read_run(
    wanted: RunFilter, service: Service, limits: LoopLimits, endpoint: EmbeddingEndpoint | None
) -> tuple[RunProblems, list[str]]:
    """A run's problems, and why some have no semantic distance."""
    read = problems_of(await read_responses(wanted, service.url), limits)
    if endpoint is None:
        return read, []
    problems = [one for each in read.by_step.values() for one in each]
    known, failed = await with_distances(endpoint, problems, read.texts, service.concurrency)
    left = iter(known)
    by_step = {step: list(islice(left, len(each))) for step, each in read.by_step.items()}
    return read._replace(by_step=by_step), list(failed.values())


def file_sides(a: Path, b: Path, limit: int | None) -> tuple[list[PromptResponses], list[PromptResponses]]:
    """Read the two files whose responses are compared."""
    if not b.is_file():
        raise UsageError(f"--against: the file {b} does not exist")
    sides = []
    for file in (a, b):
        lines, refused = split_lines(read_groups(RowFile(str(file), limit)))
        if refused:
            print_refused_lines(file, refused)
            exit_with_error("nothing was compared: all lines of both files must be readable")
        sides.append(side_of_lines(lines))
    return sides[0], sides[1]


async def compare_win_rates(
    service: Service,
    sides: tuple[RunFilter, RunFilter] | tuple[list[PromptResponses], list[PromptResponses]],
    rubric: Any,
    question: str | None,
) -> WinRateResult:
    """Have the judge compare the responses of two sides."""
    a, b = [
        side_of_run(await read_responses(side, service.url), side.run) if isinstance(side, RunFilter) else side
        for side in sides
    ]
    async with open_judge(service.judge, service.url, Settings()) as (client, name):
        asked = {"rubric": rubric, "question": question, "judge": name, "deadline_s": service.deadline_s}
        return await compare_sides(client, a, b, asked, service.concurrency)


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
    out.print(figures_table(found, f"{title}: {pluralize(counts['pairs'], 'pair')}"))
    if compared.unmatched:
        err.print(f"{compared.unmatched} prompts are on one side only and were left out")
    for reason in compared.failed:
        err.print(f"[red]not compared:[/] {escape(reason)}")
    if compared.failed:
        raise typer.Exit(1)


def reject_options(given: dict[str, Any], why: str) -> None:
    """Raise `UsageError` if any of these options is given."""
    names = [name for name, value in given.items() if value]
    if names:
        raise UsageError(f"{' and '.join(names)} cannot be used here: {why}")


def embedding_endpoint(url: str | None, settings: Settings) -> EmbeddingEndpoint | None:
    """The endpoint that embeds texts, if there is one."""
    if url is None:
        return None
    key = settings.engine_api_key
    try:
        return EmbeddingEndpoint.from_url(url, api_key=key.get_secret_value() if key else None)
    except ValueError as error:
        raise UsageError(f"--embeddings: {error}") from None


def read_numbers(text: str) -> tuple[int, ...]:
    """Read numbers that commas separate."""
    try:
        return tuple(dict.fromkeys(int(one) for one in text.split(",")))
    except ValueError:
        raise UsageError(f"--k is {text!r}; write whole numbers separated by commas, such as 1,4,16") from None
