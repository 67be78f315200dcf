"""`adjudge ledger`: delete what was recorded, by run or by age."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from adjudge_services.cli.output import err, give_up, out
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
from judge_server.rubrics import PROJECT_ID
from rubric_store import SQLLedger
from trainer_client.wire.ledger_rows import Purged

app = typer.Typer(help="Keep the ledger small.", no_args_is_help=True)


@app.callback()
def _ledger() -> None:
    """Keep the ledger small."""


@app.command("purge")
def purge(
    run: Annotated[str | None, typer.Option(help="Delete this run; '' for what was judged under no name.")] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, help="Delete what was judged this many days ago or earlier.")
    ] = None,
    project: Annotated[str, typer.Option(help="Whose.")] = PROJECT_ID,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a run, or what is old, or what is both; and the verdicts and texts that nothing refers to then.

    Stop a run before you delete it: what a service still has in its spool is written afterwards.
    """
    if run is None and older_than is None:
        give_up("say what to delete: --run NAME, --older-than DAYS, or both")
    what = " ".join(
        [
            "everything" if run is None else f"run {run!r}",
            "" if older_than is None else f"older than {older_than:g} days",
        ]
    ).strip()
    if not yes and not typer.confirm(f"Delete {what} of project {project} from the ledger for good?"):
        give_up("nothing was deleted")
    before = None if older_than is None else datetime.now(UTC) - timedelta(days=older_than)
    settings = Settings()
    try:
        asyncio.run(prepare_store(settings))
        purged = _purge(SQLLedger(settings.store_url), project, run, before)
    except (StartError, OSError, ValueError) as error:
        give_up(str(error))
    out.print(
        f"deleted {purged.requests:,} requests with {purged.uses:,} uses, and {purged.verdicts:,} verdicts and "
        f"{purged.texts:,} texts that nothing refers to",
        highlight=False,
        soft_wrap=True,
    )


def _purge(ledger: SQLLedger, project: str, run: str | None, before: datetime | None) -> Purged:
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,} uses"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("deleting", total=None)
        try:
            return ledger.purge(project, run=run, before=before, advance=lambda n: progress.advance(task, n))
        finally:
            asyncio.run(ledger.close())
