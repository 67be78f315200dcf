"""`adjudge rubrics publish | show | list`: the store from the command line."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import give_up, out
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
from judge_server.errors import ServiceError
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import FormatError, RubricStore, read_rubric
from trainer_client.wire import RubricPage

app = typer.Typer(help="Publish, show and list rubrics.", no_args_is_help=True)
Result = TypeVar("Result")


@app.command("publish")
def publish(
    name: Annotated[str, typer.Argument(help="For example math/quadratics.")],
    file: Annotated[Path, typer.Argument(help="JSON, SRaR tag lines, or HealthBench points.", exists=True)],
    format: Annotated[str | None, typer.Option(help="native, srar or healthbench; recognised unless given.")] = None,
) -> None:
    """Publish a file as the next version of a rubric; the same content again is the version there is."""
    try:
        content = read_rubric(file.read_text(encoding="utf-8"), format)
    except (FormatError, UnicodeDecodeError) as error:
        give_up(f"{file}: {error}")
    version, added = _with_store(lambda store: store.publish(PROJECT_ID, name, content))
    what = "published" if added else "unchanged:"
    out.print(
        f"{what} {version.reference}  {version.digest[:19]}…  {len(version.criteria)} criteria",
        highlight=False,
    )


@app.command("show")
def show(reference: Annotated[str, typer.Argument(help="name, name@3 or sha256:…")]) -> None:
    """Print a version's criteria."""
    try:
        version = _with_store(lambda store: find_rubric(store, PROJECT_ID, reference))
    except ServiceError as error:
        give_up(error.detail)
    table = Table("id", "kind", "weight", "criterion", title=f"{version.reference}  {version.digest[:19]}…")
    for criterion in version.criteria:
        table.add_row(criterion.id, criterion.kind, f"{criterion.weight:g}", escape(criterion.description))
    out.print(table)


@app.command("list")
def list_rubrics(
    prefix: Annotated[str, typer.Argument(help="Only names that begin with this.")] = "",
) -> None:
    """List rubrics with their newest version."""
    table = Table("name", "newest", "criteria", "published")
    after: str | None = None
    while True:
        page = _with_store(partial(_page, prefix, after))
        for row in page.rubrics:
            table.add_row(
                row.name, str(row.latest_version), str(row.criteria_count), f"{row.created_at:%Y-%m-%d %H:%M}"
            )
        after = page.next_cursor
        if after is None:
            break
    out.print(table)


async def _page(prefix: str, after: str | None, store: RubricStore) -> RubricPage:
    return await store.list(PROJECT_ID, prefix=prefix, after=after, limit=500)


def _with_store(work: Callable[[RubricStore], Coroutine[Any, Any, Result]]) -> Result:
    async def run() -> Result:
        settings = Settings()
        await prepare_store(settings)
        store = RubricStore(settings.store_url)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except (StartError, ValueError) as error:
        give_up(str(error))
