"""`adjudge migrate`, `adjudge backup` and `adjudge ledger`: maintain the database.

- `migrate`: upgrade the schema, check it, or downgrade it.
- `backup`: copy a SQLite database while processes use it.
- `ledger`: delete recorded requests by run or age, and handle rows that the database refused.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import TextColumn, TimeElapsedColumn
from rich.table import Table

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import JsonOption, UsageError
from adjudge_services.cli.output import err, exit_with_error, out, print_json, print_line, show_progress
from rubric_store.tenants.rows import DEFAULT_PROJECT

if not OPTIONS_ONLY:
    from sqlalchemy.exc import SQLAlchemyError

    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError, describe_schema_status, use_store
    from adjudge_services.wiring import register_bootstrap_key
    from judge_server.ledger.spool import QUARANTINE_FOLDER, Quarantine, QuarantinedFile
    from rubric_store import SQLLedger, migrations
    from rubric_store.backup import IntegrityReport, check_integrity, copy_sqlite
    from rubric_store.ledger.rows import PurgeCounts
    from rubric_store.migrations import SchemaStatus

PENDING, UNUSABLE = 1, 2
"""Exit statuses of `adjudge migrate check`, beside 0."""


def migrate(context: typer.Context) -> None:
    """Upgrade the database schema. SQLite is also upgraded when a process starts; PostgreSQL only by this command."""
    settings = database_settings()
    try:
        migrations.upgrade(settings.store_url)
    except (migrations.TablesInUseError, migrations.UnknownRevisionError) as error:
        exit_with_error(f"the database was not migrated: {error}")
    except Exception as error:  # noqa: BLE001 - drivers raise various errors; show one line
        exit_with_error(f"the database could not be migrated: {error}. Check ADJUDGE_DATABASE_URL")
    out.print(f"schema is at {migrations.current(settings.store_url)}")
    if settings.bootstrap_key is not None:
        try:
            key, is_new = asyncio.run(register_bootstrap_key(settings, settings.bootstrap_key.get_secret_value()))
        except (StartError, LookupError, ValueError, OSError, SQLAlchemyError) as error:
            exit_with_error(f"the key in ADJUDGE_BOOTSTRAP_KEY was not stored: {error}")
        state = "is stored" if is_new else f"was stored before, and is {key.state_at(datetime.now(UTC))}"
        out.print(f"bootstrap key {key.id} {state}")


def check(
    as_json: JsonOption = False,
    with_contents: Annotated[
        bool,
        typer.Option("--contents", help="Also read all rubrics and the ledger and check them, as after a restore."),
    ] = False,
) -> None:
    """Show the schema status, what a migration would do, and what a downgrade would lose. Changes nothing.

    Exits with 0 if this version runs on the database as it is, 1 if a migration is pending, and 2 if this version
    cannot run on it or the contents have problems.
    """
    settings = database_settings()
    try:
        found = migrations.read_status(settings.store_url)
        report = check_integrity(settings.store_url) if with_contents and found.usable else None
    except Exception as error:  # noqa: BLE001 - drivers raise various errors; show one line
        exit_with_error(f"the database cannot be read: {error}. Check ADJUDGE_DATABASE_URL", code=UNUSABLE)
    if as_json:
        print(json.dumps(status_json(found, report)))
    else:
        show_status(found, report)
        if with_contents and report is None:
            err.print("the contents were not checked: this version does not work on the schema as it is")
    if found.state == "too new" or (report and report.problem_count):
        raise typer.Exit(UNUSABLE)
    raise typer.Exit(PENDING if found.pending else 0)


def down(
    revision: Annotated[str, typer.Argument(help="The revision to downgrade to; base: before the first.")],
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the downgrade and its loss of data.")] = False,
) -> None:
    """Downgrade the schema to an older revision. Data of newer revisions is lost; without --yes it is only listed.

    Processes of this version cannot run on an older schema: replace them with older ones first.
    """
    settings = database_settings()
    try:
        downgrade_path = migrations.read_status(settings.store_url).downgrade_path(revision)
        for step in downgrade_path:
            err.print(f"downgrading from {step.revision} loses {escape(step.loses)}")
        if not yes:
            exit_with_error("nothing was changed; make a backup, then add --yes to downgrade")
        migrations.downgrade(settings.store_url, revision)
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - drivers raise various errors; show one line
        exit_with_error(f"the schema could not be downgraded: {error}")
    out.print(f"schema is at {migrations.current(settings.store_url) or 'base'}")


def backup(file: Annotated[Path, typer.Argument(help="The copy to write; the file must not exist.")]) -> None:
    """Copy the SQLite database to a file, as of one moment. Services may keep running.

    For PostgreSQL use pg_dump; docs/how-to/back-up-and-restore.md describes that and what else to back up.
    """
    try:
        size = copy_sqlite(Settings().store_url, file)
    except (ValueError, OSError, sqlite3.Error) as error:
        exit_with_error(f"no backup was made: {error}")
    print_line(escape(f"wrote {file}, {size:,} bytes"))


def purge(
    run: Annotated[str | None, typer.Option(help="Delete this run; '' for requests without a run.")] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, help="Delete requests older than this many days.")
    ] = None,
    project: Annotated[str, typer.Option(help="The project to delete from.")] = DEFAULT_PROJECT,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete recorded requests by run, by age, or by both, and then unreferenced verdicts and texts.

    Stop a run before you delete it: rows that a service still has in its spool are written afterwards.
    """
    if run is None and older_than is None:
        raise UsageError("say what to delete: --run NAME, --older-than DAYS, or both")
    what = " ".join(
        [
            "everything" if run is None else f"run {run!r}",
            "" if older_than is None else f"older than {older_than:g} days",
        ]
    ).strip()
    if not yes and not typer.confirm(f"Delete {what} of project {project} from the ledger for good?"):
        exit_with_error("nothing was deleted")
    before = None if older_than is None else datetime.now(UTC) - timedelta(days=older_than)
    purged = use_store(SQLLedger, lambda ledger: asyncio.to_thread(purge_ledger, ledger, project, run, before))
    print_line(
        f"deleted {purged.requests:,} requests with {purged.uses:,} uses, and {purged.verdicts:,} verdicts and "
        f"{purged.texts:,} texts that nothing refers to"
        + (f"; {purged.labels:,} labels went with them" if purged.labels else "")
    )


def refused(as_json: JsonOption = False) -> None:
    """List the rows that the database refused, and why. They are kept in the data folder.

    Each line is a request, or a spool file that cannot be read.
    """
    quarantined = open_quarantine(Settings()).quarantined()
    columns = ("file", "kept since", "project", "run", "request", "verdicts", "reason")
    rows = [(one.path.stem, f"{one.at:%Y-%m-%d %H:%M:%S}", *describe_file(one), one.reason) for one in quarantined]
    if as_json:
        print_json([dict(zip(("file", "kept_since", *columns[2:]), row, strict=True)) for row in rows])
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*map(escape, row))
    if quarantined:
        out.print(table)
    out.print(
        f"{len(quarantined)} files are kept aside"
        + ("; write them again with `adjudge ledger retry`" if quarantined else "")
    )


def retry(
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, as `adjudge ledger refused` lists them; by default all.")
    ] = None,
) -> None:
    """Write refused rows to the database again, as after an upgrade. Rows that are still refused are kept.

    Exits with 1 if any row is still refused.
    """
    quarantine = open_quarantine(Settings())
    quarantined = [one for one in quarantine.quarantined() if not files or one.path.stem in files]
    if missing := sorted(set(files or ()) - {one.path.stem for one in quarantined}):
        exit_with_error(
            f"no such file is kept aside: {', '.join(missing)}. List the files with `adjudge ledger refused`"
        )
    still_refused = use_store(SQLLedger, lambda ledger: asyncio.to_thread(retry_files, ledger, quarantine, quarantined))
    written = len(quarantined) - still_refused
    out.print(f"{written} of {len(quarantined)} files were written; {still_refused} are still refused")
    if still_refused:
        raise typer.Exit(1)


def database_settings() -> Settings:
    """The settings, with their data folder made."""
    settings = Settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    return settings


def status_json(found: SchemaStatus, report: IntegrityReport | None) -> dict[str, Any]:
    """The state of the schema as JSON."""
    return {
        "database": found.revision,
        "this_version": found.head,
        "state": found.state,
        "works_from": found.works_from,
        "pending": [{"revision": step.revision, "summary": step.summary} for step in found.pending],
        "supports_rolling_upgrade": found.supports_rolling_upgrade,
        "back": [{"from": step.revision, "loses": step.loses} for step in _downgrade_steps(found)],
        "contents": None if report is None else report._asdict(),
    }


def _downgrade_steps(found: SchemaStatus) -> tuple[migrations.Revision, ...]:
    """The revisions that a downgrade would undo: the pending ones after a migration, or else the last one."""
    if found.pending:
        return found.pending[::-1]
    return found.revisions[-1:] if found.state == "current" else ()


def show_status(found: SchemaStatus, report: IntegrityReport | None) -> None:
    """Print the state of the schema."""
    table = Table("item", "status", title="adjudge migrate check", title_justify="left")
    table.add_row("database", found.revision or "empty")
    table.add_row("this version", found.head)
    table.add_row("state", escape(describe_schema_status(found)))
    for step in found.pending:
        table.add_row(f"pending: {step.revision}", escape(step.summary))
    if found.pending and found.revision is not None:
        table.add_row("meanwhile", _rolling_upgrade_note(found))
    for step in _downgrade_steps(found):
        table.add_row(f"downgrade from {step.revision}", f"loses {escape(step.loses)}")
    if report is not None:
        counts = f"{report.versions} rubric versions and {report.requests} requests were read"
        seen = f"{counts}, {report.problem_count} problems"
        table.add_row("contents", escape("\n".join([seen, *report.problems])))
    out.print(table)


def _rolling_upgrade_note(found: SchemaStatus) -> str:
    if found.supports_rolling_upgrade:
        return f"processes of revision {found.revision} keep working and may restart; replace them one by one"
    return f"processes of revision {found.revision} must be stopped first: they do not work on the new schema"


def open_quarantine(settings: Settings) -> Quarantine:
    """The folder of refused rows."""
    return Quarantine(settings.ledger_spool / QUARANTINE_FOLDER)


def describe_file(quarantined: QuarantinedFile) -> Sequence[str]:
    """Project, run, requests and number of verdicts of a quarantined file."""
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


def retry_files(ledger: SQLLedger, quarantine: Quarantine, quarantined: Sequence[QuarantinedFile]) -> int:
    """Write quarantined rows again; return how many files still have refused rows."""
    still_refused = 0
    for one in quarantined:
        refused = None if one.rows is None else ledger.salvage(one.rows)
        still_refused += refused is None or bool(refused)
        if refused is not None:
            quarantine.replace(one, refused)
    return still_refused


def purge_ledger(ledger: SQLLedger, project: str, run: str | None, before: datetime | None) -> PurgeCounts:
    """Delete from the ledger, with progress on a terminal."""
    with show_progress(TextColumn("{task.completed:,} uses"), TimeElapsedColumn()) as progress:
        task = progress.add_task("deleting", total=None)
        return ledger.purge(project, run=run, before=before, advance=lambda n: progress.advance(task, n))
