"""What a run of `adjudge generate` came to, for a terminal: its corpus as a table, and what went wrong."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.generate_progress import duration
from adjudge_services.cli.output import err
from judge_server.generation.folder import DISCARDED_FILE, FAILED_FILE, first_discards, read_failures
from judge_server.generation.registry import GENERATORS
from judge_server.generation.statistics import CorpusStatistics, Distribution
from trainer_client.wire.operations import Operation

_MAX_PROBLEMS = 10


def generators_table() -> Table:
    """Every generator: what it does, what its inputs hold, and what it may be told."""
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
            lines.append(f"{name} (needed)")
        elif field.default in (None, "", ()) or field.default_factory is not None:
            lines.append(name)
        else:
            lines.append(f"{name}={field.default}")
    return "\n".join(lines)


def statistics_table(statistics: CorpusStatistics) -> Table:
    """A corpus in numbers, a row each."""
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


def report(operation: Operation, output: Path) -> bool:
    """Say on standard error what became of the run; whether every line was read and every input done."""
    progress = operation.progress
    if operation.state != "done":
        why = operation.problem or f"the run was {operation.state}"
        err.print(
            f"[bold red]error:[/] {escape(why)}. What was made is kept; give the same command again to go on",
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
        parts.append(f"{pluralize(progress.failed, 'input')} left undone")
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
    for problem in problems[:_MAX_PROBLEMS]:
        where = f"line {problem['line']}, {problem['kind']}"
        err.print(f"[red]{where}:[/] {escape(problem['detail'])}", highlight=False, soft_wrap=True)
    if len(problems) > _MAX_PROBLEMS:
        err.print(
            f"… and {len(problems) - _MAX_PROBLEMS} more in {output / FAILED_FILE}", highlight=False, soft_wrap=True
        )
    if discarded:
        for reason, (line, detail) in first_discards(output, progress.discarded).items():
            err.print(f"[yellow]line {line}, {reason}:[/] {escape(detail)}", highlight=False, soft_wrap=True)
        err.print(f"why each input was discarded: {output / DISCARDED_FILE}", highlight=False, soft_wrap=True)
    return not (progress.failed or progress.refused or progress.unpublished)


def pluralize(number: int, noun: str) -> str:
    """A number of things: 1 input, 2 inputs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _distribution(distribution: Distribution) -> str:
    return (
        f"{distribution.mean:.1f} ± {distribution.deviation:.1f} on average; {distribution.least:g} to {distribution.most:g}, "
        f"quartiles {distribution.lower:g}, {distribution.median:g}, {distribution.upper:g}"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{number} {name}" for name, number in counts.items()))
