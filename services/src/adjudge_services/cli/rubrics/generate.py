"""`adjudge generate` and `adjudge rows`: have a model write rubrics, and turn them into training rows.

The output folder of a run has operations of its own, so that a stopped run is continued from the folder of its results.
The progress display is a bar, or occasional lines if standard error is not a terminal.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import typer
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic import JsonValue as Json
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from adjudge_services.cli.output import err, exit_with_error, out, pluralize
from adjudge_services.judges import build_engine
from adjudge_services.operations import command_store
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, command_line_user, prepare_store
from judge_server.errors import EngineStartError
from judge_server.generation.kinds import GENERATORS
from judge_server.generation.results import CorpusStatistics, Distribution, read_statistics, write_rows
from judge_server.generation.run_folder import DISCARDED_FILE, FAILED_FILE, RunFolder, first_discards, read_failures
from judge_server.generation.writer import Writer
from judge_server.operations.generation_run import GenerationRun, GenerationSettings, open_generator
from rubric_store import RubricStore
from trainer_client.wire.operations import OperationProgress

_LINE_INTERVAL_S = 30.0


class ProgressDisplay:
    """Shows the progress of an operation."""

    def __init__(self, activity: str, made: str, bar: Progress, task: TaskID) -> None:
        self._activity = activity
        self._made = made
        self._bar = bar
        self._task = task
        self._last_line_at = time.monotonic()

    def show(self, progress: OperationProgress) -> None:
        """Update the bar, or print a line if the last one is old."""
        about = _about(progress, self._made)
        self._bar.update(
            self._task, description=self._activity, completed=progress.done, total=progress.total, about=about
        )
        if self._bar.disable and time.monotonic() - self._last_line_at > _LINE_INTERVAL_S:
            self._last_line_at = time.monotonic()
            err.print(f"{progress.done} of {progress.total}  {about}", highlight=False, soft_wrap=True)


@contextmanager
def show_progress(activity: str = "generating", made: str = "made") -> Iterator[ProgressDisplay]:
    """Show progress in the block: a bar, or lines if standard error is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[about]}"))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("loading the model", total=None, about="")
        yield ProgressDisplay(activity, made, bar, task)


def _about(progress: OperationProgress, made: str) -> str:
    parts = [f"{progress.made} {made}"]
    if progress.discarded:
        parts.append(f"{sum(progress.discarded.values())} discarded")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.rate:
        parts.append(f"{progress.rate:.2f}/s" if progress.rate >= 1 else f"{60 * progress.rate:.1f}/min")
    read = progress.tokens_computed + progress.tokens_reused
    parts.append(f"{read:,} tokens read, {progress.tokens_written:,} written")
    if progress.eta_s:
        parts.append(f"{duration(progress.eta_s)} left")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


_MAX_PROBLEMS = 10


def generators_table() -> Table:
    """A table of the generators: what each makes, the fields of its inputs, and its parameters."""
    table = Table(show_lines=True)
    for heading in ("generator", "makes", "inputs", "--set"):
        table.add_column(heading, overflow="fold")
    for kind, generator in sorted(GENERATORS.items()):
        table.add_row(
            f"[bold]{kind}[/]",
            escape(f"{generator.summary}\n{' → '.join(generator.steps)}"),
            escape(_fields(generator.Input)),
            escape(_fields(generator.Parameters)),
        )
    return table


def _fields(model: type[BaseModel]) -> str:
    lines = []
    for name, field in model.model_fields.items():
        if field.is_required():
            lines.append(f"{name} (required)")
        elif field.default in (None, "", ()) or field.default_factory is not None:
            lines.append(name)
        else:
            lines.append(f"{name}={field.default}")
    return "\n".join(lines)


def statistics_table(statistics: CorpusStatistics) -> Table:
    """A table of a corpus's statistics."""
    table = Table(
        title=f"{pluralize(statistics.rubrics, 'rubric')} from {pluralize(statistics.inputs, 'input')}",
        show_header=False,
    )
    table.add_column(style="bold")
    table.add_column()
    if statistics.rubrics:
        table.add_row("criteria per rubric", _distribution(statistics.criteria_per_rubric))
        table.add_row("weights", _distribution(statistics.weights))
        table.add_row("characters of a description", _distribution(statistics.description_characters))
        table.add_row("kinds of criteria", _counts(statistics.kinds))
        if statistics.tags:
            table.add_row("tags of criteria", _counts(statistics.tags))
        table.add_row("splits", _counts(statistics.splits))
    for kind, rate in statistics.validity.items():
        judged = f"{rate['valid']} valid, {rate['invalid']} invalid, {rate['unjudged']} without a verdict"
        table.add_row(f"validity, {escape(kind)}", judged)
    if statistics.flags:
        table.add_row("flags", _counts(statistics.flags))
    if statistics.discarded:
        table.add_row("discarded", _counts(statistics.discarded))
    return table


def report(progress: OperationProgress, problem: str | None, output: Path) -> bool:
    """Report a run on standard error; return whether every line was read and every input processed."""
    if problem is not None:
        err.print(
            f"[bold red]error:[/] {escape(problem)}. Results so far are kept; run the same command again to continue",
            highlight=False,
            soft_wrap=True,
        )
    discarded = sum(progress.discarded.values())
    parts = [pluralize(progress.made, "rubric")]
    if progress.added:
        parts.append(f"{progress.added} new in the store")
    if discarded:
        parts.append(f"{pluralize(discarded, 'input')} discarded")
    if progress.failed:
        parts.append(f"{pluralize(progress.failed, 'input')} failed")
    if progress.known:
        parts.append(f"{pluralize(progress.known, 'input')} done before")
    read = progress.tokens_computed + progress.tokens_reused
    pace = f", {progress.tokens_written / progress.seconds:.1f} a second" if progress.tokens_written else ""
    err.print(
        f"{', '.join(parts)}; {pluralize(progress.calls, 'call')}, {read:,} tokens read "
        f"({progress.tokens_reused:,} reused), {progress.tokens_written:,} written{pace}; {duration(progress.seconds)}",
        highlight=False,
        soft_wrap=True,
    )
    problems = [*read_failures(output)]
    for failure in problems[:_MAX_PROBLEMS]:
        where = f"line {failure['line']}, {failure['kind']}"
        err.print(f"[red]{where}:[/] {escape(failure['detail'])}", highlight=False, soft_wrap=True)
    if len(problems) > _MAX_PROBLEMS:
        err.print(
            f"… and {len(problems) - _MAX_PROBLEMS} more in {output / FAILED_FILE}", highlight=False, soft_wrap=True
        )
    if discarded:
        for reason, (line, detail) in first_discards(output, progress.discarded).items():
            err.print(f"[yellow]line {line}, {reason}:[/] {escape(detail)}", highlight=False, soft_wrap=True)
        err.print(f"the reason for each discarded input: {output / DISCARDED_FILE}", highlight=False, soft_wrap=True)
    return not (progress.failed or progress.refused or progress.unpublished)


def _distribution(distribution: Distribution) -> str:
    return (
        f"{distribution.mean:.1f} ± {distribution.deviation:.1f} on average; "
        f"{distribution.least:g} to {distribution.most:g}, "
        f"quartiles {distribution.lower:g}, {distribution.median:g}, {distribution.upper:g}"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{number} {name}" for name, number in counts.items()))


_JSON: TypeAdapter[Json] = TypeAdapter(Json)
INTERRUPTED = 130


def generate(
    kind: str | None,
    file: Path | None,
    output: Path | None,
    engine: str | None,
    assignments: list[str] | None,
    limit: int | None,
    concurrency: int | None,
    templates: Path | None,
    publish: bool,
    prefix: str,
    show_list: bool,
) -> None:
    """Run `adjudge generate`."""
    if show_list:
        out.print(generators_table())
        return
    if kind is None or file is None or output is None:
        exit_with_error(
            "give a generator, inputs and a folder for results: adjudge generate KIND INPUT.jsonl --output DIR", code=2
        )
    settings = Settings(engine_url=engine) if engine else Settings()
    try:
        request = GenerationSettings(
            kind, file, _parameters(assignments or []), publish, prefix, limit, concurrency, templates
        )
        progress, problem = asyncio.run(_generate(settings, request, output))
    except KeyboardInterrupt:
        err.print(
            f"[yellow]stopped;[/] results so far are in {escape(str(output))}. Run the same command again to continue",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    except (StartError, EngineStartError, OSError, ValueError) as error:
        exit_with_error(str(error))
    _report_and_exit(progress, problem, output)


async def _generate(
    settings: Settings, request: GenerationSettings, output: Path
) -> tuple[OperationProgress, str | None]:
    """Run to the end; return the progress, and why the run stopped early, if it did."""
    await prepare_store(settings)
    async with AsyncExitStack() as closing:
        rubrics = RubricStore(settings.store_url, actor=command_line_user)
        closing.push_async_callback(rubrics.close)
        engine = build_engine(settings)
        closing.push_async_callback(engine.close)
        folder = closing.enter_context(RunFolder(output))
        generator = await closing.enter_async_context(open_generator(request, rubrics))
        store = await closing.enter_async_context(command_store(folder.database))
        shown = closing.enter_context(show_progress())
        writer = Writer(engine, await engine.start())
        run = GenerationRun(request, generator, writer, folder, store, rubrics, report=shown.show)
        return await run.run()


def _report_and_exit(progress: OperationProgress, problem: str | None, output: Path) -> None:
    statistics = read_statistics(output) if problem is None else None
    if statistics is not None and statistics.inputs:
        out.print(statistics_table(statistics))
    complete = report(progress, problem, output)
    if problem is not None or not complete:
        raise typer.Exit(1)


def _parameters(assignments: list[str]) -> dict[str, Json]:
    parameters: dict[str, Json] = {}
    for pair in assignments:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise ValueError(f"--set {pair}: write it as NAME=VALUE")
        try:
            parameters[name] = _JSON.validate_json(text)
        except ValidationError:
            parameters[name] = text
    return parameters


def rows(run: Path, output: Path, inline: bool, messages: bool) -> None:
    """Run `adjudge rows`."""
    try:
        counts = write_rows(run, output, inline=inline, messages=messages)
    except (OSError, ValueError) as error:
        exit_with_error(str(error))
    summary = ", ".join(f"{count} {split}" for split, count in counts.items())
    out.print(f"{summary} rows in {escape(str(output))}", highlight=False, soft_wrap=True)
