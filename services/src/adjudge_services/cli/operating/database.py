"""`adjudge migrate`, `adjudge backup` and `adjudge ledger`: maintain the database.

- `migrate`: upgrade the schema, check it, or downgrade it.
- `backup`: copy a SQLite database while processes use it.
- `ledger`: delete recorded requests by run or age, and handle rows that the database refused.
"""

import asyncio
import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.options import JsonOption
from adjudge_services.cli.output import err, exit_with_error, out, print_json
from rubric_store.tenants.rows import DEFAULT_PROJECT


def migrate(context: typer.Context) -> None:
    """Upgrade the database schema. SQLite is also upgraded when a process starts; PostgreSQL only by this command."""
    from sqlalchemy.exc import SQLAlchemyError

    from adjudge_services.cli.operating.database_work import database_settings
    from adjudge_services.wiring import register_bootstrap_key
    from rubric_store import migrations

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
        except (LookupError, ValueError, OSError, SQLAlchemyError) as error:
            exit_with_error(f"the key in ADJUDGE_BOOTSTRAP_KEY was not stored: {error}")
        state = "is stored" if is_new else f"was stored before, and is {key.state_at(datetime.now(UTC))}"
        out.print(f"bootstrap key {key.id} {state}", highlight=False)


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
    from adjudge_services.cli.operating.database_work import (
        PENDING,
        UNUSABLE,
        database_settings,
        show_status,
        status_json,
    )
    from rubric_store import migrations
    from rubric_store.backup import check_integrity

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
    from adjudge_services.cli.operating.database_work import database_settings
    from rubric_store import migrations

    settings = database_settings()
    try:
        downgrade_path = migrations.read_status(settings.store_url).downgrade_path(revision)
        for step in downgrade_path:
            err.print(f"downgrading from {step.revision} loses {escape(step.loses)}", highlight=False, soft_wrap=True)
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

    For PostgreSQL use pg_dump; docs/backup.md describes that and what else to back up.
    """
    from adjudge_services.settings import Settings
    from rubric_store.backup import copy_sqlite

    try:
        size = copy_sqlite(Settings().store_url, file)
    except (ValueError, OSError, sqlite3.Error) as error:
        exit_with_error(f"no backup was made: {error}")
    out.print(f"wrote {file}, {size} bytes", highlight=False, soft_wrap=True)


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
    from adjudge_services.cli.operating.database_work import purge_ledger
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError, prepare_store
    from rubric_store import SQLLedger

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
        purged = purge_ledger(SQLLedger(settings.store_url), project, run, before)
    except (StartError, OSError, ValueError) as error:
        exit_with_error(str(error))
    out.print(
        f"deleted {purged.requests:,} requests with {purged.uses:,} uses, and {purged.verdicts:,} verdicts and "
        f"{purged.texts:,} texts that nothing refers to"
        + (f"; {purged.labels:,} labels went with them" if purged.labels else ""),
        highlight=False,
        soft_wrap=True,
    )


def refused(as_json: JsonOption = False) -> None:
    """List the rows that the database refused, and why. They are kept in the data folder.

    Each line is a request, or a spool file that cannot be read.
    """
    from adjudge_services.cli.operating.database_work import describe_file, open_quarantine
    from adjudge_services.settings import Settings

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
    from adjudge_services.cli.operating.database_work import open_quarantine, retry_files
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError, prepare_store
    from judge_server.ledger.spool import QuarantineFull
    from rubric_store import SQLLedger

    settings = Settings()
    quarantine = open_quarantine(settings)
    quarantined = [one for one in quarantine.quarantined() if not files or one.path.stem in files]
    if missing := sorted(set(files or ()) - {one.path.stem for one in quarantined}):
        exit_with_error(
            f"no such file is kept aside: {', '.join(missing)}. List the files with `adjudge ledger refused`"
        )
    try:
        asyncio.run(prepare_store(settings))
        still_refused = retry_files(SQLLedger(settings.store_url), quarantine, quarantined)
    except (StartError, OSError, ValueError, QuarantineFull) as error:
        exit_with_error(str(error))
    written = len(quarantined) - still_refused
    out.print(f"{written} of {len(quarantined)} files were written; {still_refused} are still refused")
    if still_refused:
        raise typer.Exit(1)
