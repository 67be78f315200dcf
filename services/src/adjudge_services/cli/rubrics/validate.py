"""`adjudge rubrics validate`: have a judge check each criterion for validity, and store its verdicts."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import err, exit_with_error, out, pluralize
from adjudge_services.cli.rubrics.generate import duration, show_progress
from adjudge_services.cli.rubrics.store import summaries
from adjudge_services.judges import build_engine
from adjudge_services.operations import command_store
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, command_line_user, prepare_store
from judge_server.errors import EngineStartError, ServiceError
from judge_server.generation.validity import ItemValidity, published_validity, question_of, rates_by_kind
from judge_server.generation.writer import Writer
from judge_server.operations.handlers.validate import ValidateHandler
from judge_server.operations.local import SingleAttempts, work_on
from judge_server.operations.service import Operations
from judge_server.ports import Engine, Operation
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import RubricStore
from trainer_client.wire import RubricVersion
from trainer_client.wire.operations import MAX_PAGE_RESULTS
from trainer_client.wire.rubrics import CriterionValidity, RubricValidation

_MAX_UNJUDGED_SHOWN = 10
_VALIDITY_LABELS: Final[Mapping[bool | None, str]] = {
    True: "[green]valid[/]",
    False: "[bold red]not valid[/]",
    None: "[yellow]not judged[/]",
}


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
        _print(f"[bold red]error:[/] {escape(operation.problem or f'the pass was {operation.state}')}")
    for version in left[:_MAX_UNJUDGED_SHOWN]:
        _print(f"[red]not judged:[/] {escape(_why_unjudged(version))}")
    if len(left) > _MAX_UNJUDGED_SHOWN:
        _print(f"… and {len(left) - _MAX_UNJUDGED_SHOWN} more that were not judged")
    _print(_totals(operation, len(found), len(left)))


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


_COUNTS: Final = ("valid", "invalid", "unjudged")


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
    read = progress.tokens_computed + progress.tokens_reused
    return (
        f"{', '.join(parts)}; {pluralize(progress.calls, 'call')}, {read:,} tokens read "
        f"({progress.tokens_reused:,} reused), {progress.tokens_written:,} written; {duration(progress.seconds)}"
    )


def _print(text: str) -> None:
    err.print(text, highlight=False, soft_wrap=True)


INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ValidationOutcome:
    """The requested versions: those with verdicts, and those without."""

    operation: Operation
    found: list[tuple[RubricVersion, list[ItemValidity]]]
    unjudged: list[RubricVersion]


def validate(references: list[str] | None, prefix: str | None, engine: str | None, summary: bool) -> None:
    """Run `adjudge rubrics validate`."""
    if bool(references) == (prefix is not None):
        exit_with_error("give either the rubrics to judge or --prefix")
    settings = Settings(engine_url=engine) if engine else Settings()
    try:
        judged = asyncio.run(_validate(settings, references or [], prefix))
    except KeyboardInterrupt:
        err.print(
            "[yellow]stopped;[/] verdicts so far are kept. Run the same command again to continue", highlight=False
        )
        raise typer.Exit(INTERRUPTED) from None
    except ServiceError as error:
        exit_with_error(error.detail)
    except (StartError, EngineStartError, OSError, ValueError) as error:
        exit_with_error(str(error))
    print_report(judged.operation, judged.found, judged.unjudged, summary=summary)
    if judged.operation.state != "done" or judged.operation.progress.failed or (judged.unjudged and references):
        raise typer.Exit(1)


async def _validate(settings: Settings, references: Sequence[str], prefix: str | None) -> ValidationOutcome:
    await prepare_store(settings)
    store = RubricStore(settings.store_url, actor=command_line_user)
    try:
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
    finally:
        await store.close()


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
    with tempfile.TemporaryDirectory(prefix="adjudge-validate-") as folder, show_progress("judging", "judged") as shown:
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
                shown.show(now.progress)
            return operation, await _results(operations, operation.id)


async def _results(operations: Operations, operation_id: str) -> dict[str, Any]:
    items: dict[str, Any] = {}
    after: int | None = 0
    while after is not None:
        page = await operations.results(PROJECT_ID, operation_id, after=after, limit=MAX_PAGE_RESULTS)
        items |= {str(result["reference"]): result["items"] for result in page.results}
        after = int(page.next_cursor) if page.results and page.next_cursor is not None else None
    return items
