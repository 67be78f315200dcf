"""`adjudge rubrics validate`: a judge says of every criterion whether it is valid, and the store keeps what it said."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge_services.access import command_line_user
from adjudge_services.cli.generate_progress import show_progress
from adjudge_services.cli.output import err, exit_with_error
from adjudge_services.cli.rubrics.pages import summaries
from adjudge_services.cli.rubrics.validate_report import print_report
from adjudge_services.judges import build_engine
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
from judge_server.errors import EngineStartError, ServiceError
from judge_server.generation.validate_job import ValidateJob
from judge_server.generation.validity import ItemValidity
from judge_server.generation.writer import Writer
from judge_server.operations import InProcessOperations
from judge_server.ports import Engine, Operation
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import RubricStore
from trainer_client.wire import RubricVersion
from trainer_client.wire.operations import MAX_PAGE_RESULTS

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ValidationOutcome:
    """What became of the versions asked for: those with verdicts, and those without."""

    operation: Operation
    found: list[tuple[RubricVersion, list[ItemValidity]]]
    unjudged: list[RubricVersion]


def validate(
    references: Annotated[list[str] | None, typer.Argument(help="name, name@3, name@alias or sha256:…")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="The newest version of every rubric whose name begins with this.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL of the model that judges.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Only the rates by kind.")] = False,
) -> None:
    """Have a model judge whether criteria are true, about their question and of their kind; keep what it says.

    A version that the same model has judged in the same words is not judged again. Exits with 1 if a rubric that was
    named, or one that the model failed on, was not judged.
    """
    if bool(references) == (prefix is not None):
        exit_with_error("name the rubrics to judge, or give --prefix; one of the two")
    settings = Settings(engine_url=engine) if engine else Settings()
    try:
        judged = asyncio.run(_validate(settings, references or [], prefix))
    except KeyboardInterrupt:
        err.print("[yellow]stopped;[/] what was judged is kept. Give the same command again to go on", highlight=False)
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
    """The versions asked for, pinned, each once; raises `ServiceError` or `ValueError` where there are none."""
    if prefix is None:
        versions = [await find_rubric(store, PROJECT_ID, reference) for reference in references]
        return list(dict.fromkeys(version.reference for version in versions))
    named, _ = await summaries(store, prefix=prefix)
    if not named:
        raise ValueError(f"no rubric's name begins with {prefix!r}")
    return [f"{one.name}@{one.latest_version}" for one in named]


async def _run(engine: Engine, store: RubricStore, pinned: Sequence[str]) -> tuple[Operation, dict[str, Any]]:
    """Judge them; the operation when it has ended, and the items by reference.

    The operation's own folder is a passing one: the store keeps every version's verdicts as soon as they are there, so
    the next run goes on from them.
    """

    async def writer() -> Writer:
        return started

    with tempfile.TemporaryDirectory(prefix="adjudge-validate-") as folder:
        operations = InProcessOperations(Path(folder), {"validate_rubrics": ValidateJob(writer, store, store)})
        try:
            with show_progress(operations, "judging", "judged") as shown:
                started = Writer(engine, await engine.start())
                request: dict[str, Any] = {"references": list(pinned)}
                operation = await shown.follow(await operations.submit(PROJECT_ID, "validate_rubrics", request))
            return operation, await _results(operations, operation.id)
        finally:
            await operations.close()


async def _results(operations: InProcessOperations, operation_id: str) -> dict[str, Any]:
    items: dict[str, Any] = {}
    after: int | None = 0
    while after is not None:
        page = await operations.results(PROJECT_ID, operation_id, after=after, limit=MAX_PAGE_RESULTS)
        items |= {str(result["reference"]): result["items"] for result in page.results}
        after = page.next_after
    return items
