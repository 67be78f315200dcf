"""`adjudge generate` and `adjudge rows`: have a model write rubrics, and turn them into training rows.

The output folder of a run has operations of its own, so that a stopped run is continued from the folder of its results.

`adjudge rubrics validate` has a judge check each criterion for validity, and stores its verdicts.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Table

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import InputsArgument, UsageError
from adjudge_services.cli.output import err, out, pluralize, print_line, show_progress

if not OPTIONS_ONLY:
    from pydantic import BaseModel
    from pydantic import JsonValue as Json

    from adjudge_services.cli.rubrics.files import summaries
    from adjudge_services.judges import build_engine
    from adjudge_services.settings import Settings
    from adjudge_services.store import command_line_user, command_store, open_store
    from judge_server.generation.kinds import GENERATORS
    from judge_server.generation.results import (
        DISCARDED_FILE,
        FAILED_FILE,
        CorpusStatistics,
        Distribution,
        RunFolder,
        first_discards,
        read_failures,
        read_statistics,
        write_rows,
    )
    from judge_server.generation.validity import ItemValidity, published_validity, question_of, rates_by_kind
    from judge_server.generation.writer import Writer
    from judge_server.operations.generation_run import GenerationRun, GenerationSettings, open_generator_of
    from judge_server.operations.handlers.generate import ValidateHandler
    from judge_server.operations.runner import SingleAttempts, work_on
    from judge_server.operations.service import Operations
    from judge_server.ports import Engine
    from judge_server.ports.operations import MAX_PAGE_RESULTS
    from judge_server.scoring.rubrics import PROJECT_ID, find_rubric
    from rubric_store import RubricStore
    from rubric_store.rubrics.rows import CriterionValidity, RubricValidation
    from trainer_client.wire import RubricVersion
    from trainer_client.wire.operations import Operation, OperationProgress

_LINE_INTERVAL_S = 30.0
_MAX_PROBLEMS = 10
INTERRUPTED = 130
_MAX_UNJUDGED_SHOWN = 10
_VALIDITY_LABELS: Final[Mapping[bool | None, str]] = {
    True: "[green]valid[/]",
    False: "[bold red]not valid[/]",
    None: "[yellow]not judged[/]",
}
_COUNTS: Final = ("valid", "invalid", "unjudged")


def generate(
    kind: Annotated[str | None, typer.Argument(help="A generator; see --list.")] = None,
    file: InputsArgument = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the results; an unfinished run in it is continued.",
            file_okay=False,
        ),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL of the model that writes the rubrics.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of the generator; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first N lines.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Inputs to process at a time.")] = None,
    templates: Annotated[
        Path | None,
        typer.Option(help="Folder of prompt templates that replace the generator's.", exists=True, file_okay=False),
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Whether to publish the rubrics to the store.")
    ] = True,
    prefix: Annotated[str, typer.Option(help="Prefix of the rubrics' names, for example team/math/.")] = "",
    show_list: Annotated[
        bool, typer.Option("--list", help="List the generators with their inputs and parameters, and exit.")
    ] = False,
) -> None:
    """Have a model write a rubric for every input, and publish the rubrics that pass the checks.

    To continue a stopped run, give the same command again. Exits with 1 if any line could not be read or processed.
    """
    if show_list:
        out.print(generators_table())
        return
    if kind is None or file is None or output is None:
        raise UsageError(
            "give a generator, inputs and a folder for results: adjudge generate KIND INPUT.jsonl --output DIR"
        )
    settings = Settings(engine_url=engine) if engine else Settings()
    try:
        request = GenerationSettings(
            kind, file, read_parameters(assignments or []), publish, prefix, limit, concurrency, templates
        )
        progress, problem = asyncio.run(generate_rubrics(settings, request, output))
    except KeyboardInterrupt:
        err.print(
            f"[yellow]stopped;[/] results so far are in {escape(str(output))}. Run the same command again to continue"
        )
        raise typer.Exit(INTERRUPTED) from None
    statistics = read_statistics(output) if problem is None else None
    if statistics is not None and statistics.inputs:
        out.print(statistics_table(statistics))
    if not report(progress, problem, output) or problem is not None:
        raise typer.Exit(1)


def rows(
    run: Annotated[
        Path, typer.Argument(help="The --output folder of an `adjudge generate` run.", exists=True, file_okay=False)
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for train.jsonl, validation.jsonl and test.jsonl.", file_okay=False
        ),
    ],
    inline: Annotated[
        bool, typer.Option("--inline", help="Put the criteria into the rows instead of the published reference.")
    ] = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="Write prompts as chat messages instead of text.")
    ] = False,
) -> None:
    """Write a run's splits as rows for a trainer: prompt, rubric, grounding, ground_truth and reference_answer."""
    counts = write_rows(run, output, inline=inline, messages=messages)
    summary = ", ".join(f"{count} {split}" for split, count in counts.items())
    print_line(f"{summary} rows in {escape(str(output))}")


def validate(
    references: Annotated[list[str] | None, typer.Argument(help="name, name@3, name@alias or sha256:…")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Judge the newest version of every rubric whose name begins with this.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL of the model that judges.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Print only the rates by kind.")] = False,
) -> None:
    """Have a model judge whether criteria are true, about their question and of the right kind; store its verdicts.

    A version that the same model has judged with the same template is not judged again. Exits with 1 if a rubric that
    was named was not judged, or the model failed on one.
    """
    if bool(references) == (prefix is not None):
        raise UsageError("give either the rubrics to judge or --prefix")
    settings = Settings(engine_url=engine) if engine else Settings()
    try:
        judged = asyncio.run(validate_rubrics(settings, references or [], prefix))
    except KeyboardInterrupt:
        err.print("[yellow]stopped;[/] verdicts so far are kept. Run the same command again to continue")
        raise typer.Exit(INTERRUPTED) from None
    print_report(judged.operation, judged.found, judged.unjudged, summary=summary)
    if judged.operation.state != "done" or judged.operation.progress.failed or (judged.unjudged and references):
        raise typer.Exit(1)


@contextmanager
def show_operation(activity: str = "generating", made: str = "made") -> Iterator[Callable[[OperationProgress], None]]:
    """Yield a function that shows the progress of an operation: a bar, or occasional lines without a terminal."""
    with show_progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[about]}")) as bar:
        task = bar.add_task("loading the model", total=None, about="")
        last_line_at = time.monotonic()

        def show(progress: OperationProgress) -> None:
            nonlocal last_line_at
            about = _about(progress, made)
            bar.update(task, description=activity, completed=progress.done, total=progress.total, about=about)
            if bar.disable and time.monotonic() - last_line_at > _LINE_INTERVAL_S:
                last_line_at = time.monotonic()
                err.print(f"{progress.done} of {progress.total}  {about}")

        yield show


def _about(progress: OperationProgress, made: str) -> str:
    parts = [f"{progress.made} {made}"]
    if progress.discarded:
        parts.append(f"{sum(progress.discarded.values())} discarded")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.rate:
        parts.append(f"{progress.rate:.2f}/s" if progress.rate >= 1 else f"{60 * progress.rate:.1f}/min")
    parts.append(_tokens(progress))
    if progress.eta_s:
        parts.append(f"{duration(progress.eta_s)} left")
    return " · ".join(parts)


def _tokens(progress: OperationProgress, *, reused: bool = False) -> str:
    read = f"{progress.tokens_computed + progress.tokens_reused:,} tokens read"
    return f"{read}{f' ({progress.tokens_reused:,} reused)' if reused else ''}, {progress.tokens_written:,} written"


def duration(seconds: float) -> str:
    """Format seconds: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


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
            f"[bold red]error:[/] {escape(problem)}. Results so far are kept; run the same command again to continue"
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
    pace = f", {progress.tokens_written / progress.seconds:.1f} a second" if progress.tokens_written else ""
    err.print(
        f"{', '.join(parts)}; {pluralize(progress.calls, 'call')}, {_tokens(progress, reused=True)}{pace}; "
        f"{duration(progress.seconds)}"
    )
    problems = [*read_failures(output)]
    for failure in problems[:_MAX_PROBLEMS]:
        where = f"line {failure['line']}, {failure['kind']}"
        err.print(f"[red]{where}:[/] {escape(failure['detail'])}")
    if len(problems) > _MAX_PROBLEMS:
        err.print(f"… and {len(problems) - _MAX_PROBLEMS} more in {output / FAILED_FILE}", markup=False)
    if discarded:
        for reason, (line, detail) in first_discards(output, progress.discarded).items():
            err.print(f"[yellow]line {line}, {reason}:[/] {escape(detail)}")
        err.print(f"the reason for each discarded input: {output / DISCARDED_FILE}", markup=False)
    return not (progress.failed or progress.refused or progress.unpublished)


def _distribution(distribution: Distribution) -> str:
    return (
        f"{distribution.mean:.1f} ± {distribution.deviation:.1f} on average; "
        f"{distribution.least:g} to {distribution.most:g}, "
        f"quartiles {distribution.lower:g}, {distribution.median:g}, {distribution.upper:g}"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{number} {name}" for name, number in counts.items()))


async def generate_rubrics(
    settings: Settings, request: GenerationSettings, output: Path
) -> tuple[OperationProgress, str | None]:
    """Run to the end; return the progress, and why the run stopped early, if it did."""
    async with AsyncExitStack() as closing:
        make_store = partial(RubricStore, actor=command_line_user)
        rubrics = await closing.enter_async_context(open_store(make_store, settings))
        engine = build_engine(settings)
        closing.push_async_callback(engine.close)
        folder = closing.enter_context(RunFolder(output))
        generator = await closing.enter_async_context(open_generator_of(request, rubrics))
        store = await closing.enter_async_context(command_store(folder.database))
        show = closing.enter_context(show_operation())
        writer = Writer(engine, await engine.start())
        run = GenerationRun(request, generator, writer, folder, store, rubrics, report=show)
        return await run.run()


def read_parameters(assignments: list[str]) -> dict[str, Json]:
    """Read parameters that are written as NAME=JSON."""
    parameters: dict[str, Json] = {}
    for pair in assignments:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"--set {pair}: write it as NAME=VALUE")
        try:
            parameters[name] = json.loads(text)
        except ValueError:
            parameters[name] = text
    return parameters


def print_report(
    operation: Operation,
    found: Sequence[tuple[RubricVersion, Sequence[ItemValidity]]],
    left: Sequence[RubricVersion],
    *,
    summary: bool,
) -> None:
    """Print verdicts (unless `summary`) and rates; report on standard error what was not judged."""
    if not summary:
        for version, items in found:
            out.print(_criteria_table(version, items))
    rates = rates_by_kind(item for _, items in found for item in items)
    if rates:
        out.print(_rates_table(rates, pluralize(len(found), "rubric")))
    if operation.state != "done":
        err.print(f"[bold red]error:[/] {escape(operation.problem or f'the pass was {operation.state}')}")
    for version in left[:_MAX_UNJUDGED_SHOWN]:
        err.print(f"[red]not judged:[/] {escape(_why_unjudged(version))}")
    if len(left) > _MAX_UNJUDGED_SHOWN:
        err.print(f"… and {len(left) - _MAX_UNJUDGED_SHOWN} more that were not judged")
    err.print(_totals(operation, len(found), len(left)))


def validity_line(version: RubricVersion, kept: Sequence[RubricValidation]) -> str | None:
    """The newest validity of a version in one line: of stored passes, else as published; None without any."""
    items: Sequence[CriterionValidity | ItemValidity]
    if kept:
        items, model, at = kept[0].items, kept[0].model, kept[0].created_at
    elif (published := published_validity(version)) is not None:
        (model, items), at = published, version.created_at
    else:
        return None
    criteria = len(version.criteria)
    valid, invalid = (sum(item.valid is verdict for item in items) for verdict in (True, False))
    parts = [f"{valid} of {criteria} criteria valid"]
    if invalid:
        parts.append(f"{invalid} not")
    if unjudged := criteria - valid - invalid:
        parts.append(f"{unjudged} not judged")
    by = f"; by {model}" if model else ""
    return f"{', '.join(parts)}{by}, {at:%Y-%m-%d %H:%M} UTC"


def _criteria_table(version: RubricVersion, items: Sequence[ItemValidity]) -> Table:
    table = Table("id", "kind", "valid", "criterion", "reason", title=escape(version.reference), title_justify="left")
    table.columns[0].overflow = "fold"
    descriptions = {criterion.id: criterion.description for criterion in version.criteria}
    for item in items:
        table.add_row(
            escape(item.id), item.kind, _VALIDITY_LABELS[item.valid], escape(descriptions[item.id]), escape(item.reason)
        )
    return table


def _rates_table(rates: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    table = Table("kind", "criteria", "valid", "not valid", "not judged", "rate", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, rate in rates.items():
        _add_rate(table, kind, rate)
    if len(rates) > 1:
        table.add_section()
        counts = {name: sum(rate[name] for rate in rates.values()) for name in ("items", *_COUNTS)}
        judged = counts["valid"] + counts["invalid"]
        _add_rate(table, "all", {**counts, "rate": counts["valid"] / judged if judged else None})
    return table


def _add_rate(table: Table, kind: str, rate: Mapping[str, Any]) -> None:
    share = "–" if rate["rate"] is None else f"{rate['rate']:.0%}"
    table.add_row(kind, str(rate["items"]), *(str(rate[name]) for name in _COUNTS), share)


def _why_unjudged(version: RubricVersion) -> str:
    try:
        question_of(version)
    except ValueError as error:
        return str(error)
    return f"the engine gave no answer about {version.reference}; run the same command again to continue"


def _totals(operation: Operation, found: int, left: int) -> str:
    progress = operation.progress
    parts = [f"{pluralize(found, 'rubric')} judged"]
    if before := progress.made - progress.added:
        parts.append(f"{before} of them before")
    if left:
        parts.append(f"{left} not judged")
    calls = pluralize(progress.calls, "call")
    return f"{', '.join(parts)}; {calls}, {_tokens(progress, reused=True)}; {duration(progress.seconds)}"


@dataclass(frozen=True, slots=True)
class ValidationOutcome:
    """The requested versions: those with verdicts, and those without."""

    operation: Operation
    found: list[tuple[RubricVersion, list[ItemValidity]]]
    unjudged: list[RubricVersion]


async def validate_rubrics(settings: Settings, references: Sequence[str], prefix: str | None) -> ValidationOutcome:
    """Judge the criteria of stored rubrics."""
    async with open_store(partial(RubricStore, actor=command_line_user), settings) as store:
        pinned = await _resolve_references(store, references, prefix)
        engine = build_engine(settings)
        try:
            operation, results = await _run(engine, store, pinned)
        finally:
            await engine.close()
        found, unjudged = [], []
        for reference in pinned:
            version = await find_rubric(store, PROJECT_ID, reference)
            if items := results.get(reference):
                found.append((version, [ItemValidity(**item) for item in items]))
            else:
                unjudged.append(version)
        return ValidationOutcome(operation, found, unjudged)


async def _resolve_references(store: RubricStore, references: Sequence[str], prefix: str | None) -> list[str]:
    """The requested versions as pinned references without duplicates; raises `ServiceError` or `ValueError`."""
    if prefix is None:
        versions = [await find_rubric(store, PROJECT_ID, reference) for reference in references]
        return list(dict.fromkeys(version.reference for version in versions))
    named, _ = await summaries(store, prefix=prefix)
    if not named:
        raise ValueError(f"no rubric's name begins with {prefix!r}")
    return [f"{one.name}@{one.latest_version}" for one in named]


async def _run(engine: Engine, store: RubricStore, pinned: Sequence[str]) -> tuple[Operation, dict[str, Any]]:
    """Judge versions; return the operation at its end, and the items by reference.

    The operation's database is temporary: the store keeps each version's verdicts at once, so the next run continues
    from them.
    """
    with (
        tempfile.TemporaryDirectory(prefix="adjudge-validate-") as folder,
        show_operation("judging", "judged") as show,
    ):
        writer = Writer(engine, await engine.start())

        async def new_writer() -> Writer:
            return writer.with_own_usage()

        concurrency = writer.identity.concurrent_batches
        attempts = SingleAttempts(ValidateHandler(new_writer, store, store), concurrency)
        async with (
            command_store(Path(folder, "operations.db")) as operation_store,
            work_on(operation_store, {"validate_rubrics": attempts}, concurrency=concurrency) as operations,
        ):
            operation = await operations.submit(PROJECT_ID, "validate_rubrics", {"references": list(pinned)})
            async for now in attempts.follow(operations, operation):
                operation = now
                show(now.progress)
            return operation, await _results(operations, operation.id)


async def _results(operations: Operations, operation_id: str) -> dict[str, Any]:
    items: dict[str, Any] = {}
    after: int | None = 0
    while after is not None:
        page = await operations.results(PROJECT_ID, operation_id, after=after, limit=MAX_PAGE_RESULTS)
        items |= {str(result["reference"]): result["items"] for result in page.results}
        after = int(page.next_cursor) if page.results and page.next_cursor is not None else None
    return items
