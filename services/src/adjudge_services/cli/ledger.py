"""`adjudge ledger`: delete what was recorded, by run or by age; and see to rows that the database refused."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
from judge_server.recording.quarantine import Quarantine, QuarantinedFile, QuarantineFull
from judge_server.recording.spool import QUARANTINE_FOLDER
from judge_server.rubrics import PROJECT_ID
from rubric_store import SQLLedger
from trainer_client.wire.ledger_rows import PurgeCounts

app = typer.Typer(help="Delete from the ledger, and see to rows that it refused.", no_args_is_help=True)


@app.callback()
def _ledger() -> None:
    """Delete from the ledger, and see to rows that it refused."""


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
        exit_with_error("say what to delete: --run NAME, --older-than DAYS, or both")
    what = " ".join(
        [
            "everything" if run is None else f"run {run!r}",
            "" if older_than is None else f"older than {older_than:g} days",
        ]
    ).strip()
    if not yes and not typer.confirm(f"Delete {what} of project {project} from the ledger for good?"):
        exit_with_error("nothing was deleted")
    before = None if older_than is None else datetime.now(UTC) - timedelta(days=older_than)
    settings = Settings()
    try:
        asyncio.run(prepare_store(settings))
        purged = _purge(SQLLedger(settings.store_url), project, run, before)
    except (StartError, OSError, ValueError) as error:
        exit_with_error(str(error))
    out.print(
        f"deleted {purged.requests:,} requests with {purged.uses:,} uses, and {purged.verdicts:,} verdicts and "
        f"{purged.texts:,} texts that nothing refers to",
        highlight=False,
        soft_wrap=True,
    )


@app.command("refused")
def refused() -> None:
    """List the rows that the database refused, which are kept aside in the data folder, and why.

    Each line is a request, or the file of a spool that cannot be read.
    """
    quarantined = _quarantine(Settings()).quarantined()
    table = Table("file", "kept since", "project", "run", "request", "verdicts", "reason")
    for one in quarantined:
        table.add_row(*map(escape, (one.path.stem, f"{one.at:%Y-%m-%d %H:%M:%S}", *_about(one), one.reason)))
    if quarantined:
        out.print(table)
    out.print(
        f"{len(quarantined)} files are kept aside"
        + (": try them again by `adjudge ledger retry`" if quarantined else "")
    )


@app.command("retry")
def retry(
    files: Annotated[
        list[str] | None, typer.Argument(help="As `adjudge ledger refused` lists them; all unless given.")
    ] = None,
) -> None:
    """Write rows that were kept aside to the database again, as after an upgrade; what it refuses still is kept.

    Ends with status 1 where something is refused still.
    """
    settings = Settings()
    quarantine = _quarantine(settings)
    quarantined = [one for one in quarantine.quarantined() if not files or one.path.stem in files]
    if missing := sorted(set(files or ()) - {one.path.stem for one in quarantined}):
        exit_with_error(f"no such file is kept aside: {', '.join(missing)}. List them by `adjudge ledger refused`")
    try:
        asyncio.run(prepare_store(settings))
        still = _retry(SQLLedger(settings.store_url), quarantine, quarantined)
    except (StartError, OSError, ValueError, QuarantineFull) as error:
        exit_with_error(str(error))
    out.print(f"{len(quarantined) - still} of {len(quarantined)} files were written; {still} are refused still")
    if still:
        raise typer.Exit(1)


def _quarantine(settings: Settings) -> Quarantine:
    return Quarantine(settings.ledger_spool / QUARANTINE_FOLDER)


def _about(quarantined: QuarantinedFile) -> Sequence[str]:
    """Project, run, request and number of verdicts of what is kept aside."""
    if quarantined.rows is None:
        return "", "", "", ""
    requests = [row.request_id for row in quarantined.rows.requests]
    row = next((row for kind in reversed(quarantined.rows) for row in kind), None)
    run = next(
        (
            row.run
            for kind in (quarantined.rows.uses, quarantined.rows.responses, quarantined.rows.requests)
            for row in kind
        ),
        "",
    )
    return "" if row is None else row.project_id, run, ", ".join(requests), str(len(quarantined.rows.uses))


def _retry(ledger: SQLLedger, quarantine: Quarantine, quarantined: Sequence[QuarantinedFile]) -> int:
    """Write what is kept aside; how many files hold something that is refused still."""
    still = 0
    try:
        for one in quarantined:
            refused = None if one.rows is None else ledger.salvage(one.rows)
            still += refused is None or bool(refused)
            if refused is not None:
                quarantine.replace(one, refused)
    finally:
        asyncio.run(ledger.close())
    return still


def _purge(ledger: SQLLedger, project: str, run: str | None, before: datetime | None) -> PurgeCounts:
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,} uses"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("deleting", total=None)
        try:
            return ledger.purge(project, run=run, before=before, advance=lambda n: progress.advance(task, n))
        finally:
            asyncio.run(ledger.close())
