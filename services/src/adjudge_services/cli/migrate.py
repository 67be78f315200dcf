"""`adjudge migrate`: bring the database schema to what this version needs, look where it stands, or take it back."""

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.schema import describe_schema_status
from adjudge_services.settings import Settings
from rubric_store import contents, migrations
from rubric_store.contents import IntegrityReport
from rubric_store.migrations import SchemaStatus

PENDING, UNUSABLE = 1, 2
"""Exit statuses of `adjudge migrate check`, beside 0."""

app = typer.Typer(help="Bring the database schema to what this version needs.", invoke_without_command=True)


@app.callback()
def migrate(context: typer.Context) -> None:
    """Upgrade the database schema. SQLite files are upgraded when a process starts; PostgreSQL waits for this."""
    if context.invoked_subcommand is not None:
        return
    settings = _settings()
    try:
        migrations.upgrade(settings.store_url)
    except (migrations.TablesInUseError, migrations.UnknownRevisionError) as error:
        exit_with_error(f"the database was not migrated: {error}")
    except Exception as error:  # noqa: BLE001 - drivers raise what they like; a person wants one line
        exit_with_error(f"the database could not be migrated: {error}. Check ADJUDGE_DATABASE_URL")
    out.print(f"schema is at {migrations.current(settings.store_url)}")


@app.command("check")
def check(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    with_contents: Annotated[
        bool, typer.Option("--contents", help="Read all rubrics and the ledger too, as after a restore.")
    ] = False,
) -> None:
    """Say where the database stands, what a migration would do, and what the way back would lose. Changes nothing.

    Ends with 0 where this version runs on the database as it is, 1 where a migration is pending, and 2 where it cannot
    run, or where something is wrong with the contents.
    """
    settings = _settings()
    try:
        found = migrations.read_status(settings.store_url)
        report = contents.check_integrity(settings.store_url) if with_contents and found.usable else None
    except Exception as error:  # noqa: BLE001 - drivers raise what they like; a person wants one line
        exit_with_error(f"the database cannot be read: {error}. Check ADJUDGE_DATABASE_URL", code=UNUSABLE)
    if as_json:
        print(json.dumps(_to_json(found, report)))
    else:
        _show(found, report)
        if with_contents and report is None:
            err.print("the contents were not read: this version does not work on the schema as it is")
    if found.state == "too new" or (report and report.problem_count):
        raise typer.Exit(UNUSABLE)
    raise typer.Exit(PENDING if found.pending else 0)


@app.command("down")
def down(
    revision: Annotated[str, typer.Argument(help="The revision to go back to; base: before the first.")],
    yes: Annotated[bool, typer.Option("--yes", help="Lose what it says.")] = False,
) -> None:
    """Take the schema back to an older revision. What newer revisions hold is lost, and first said.

    Processes of this version cannot run on an older schema: replace them by older ones before.
    """
    settings = _settings()
    try:
        downgrade_path = migrations.read_status(settings.store_url).downgrade_path(revision)
        for step in downgrade_path:
            err.print(f"the way back from {step.revision} loses {escape(step.loses)}", highlight=False, soft_wrap=True)
        if not yes:
            exit_with_error("nothing was changed; add --yes to do it. Make a backup before")
        migrations.downgrade(settings.store_url, revision)
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - drivers raise what they like; a person wants one line
        exit_with_error(f"the schema could not be taken back: {error}")
    out.print(f"schema is at {migrations.current(settings.store_url) or 'base'}")


def _settings() -> Settings:
    settings = Settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    return settings


def _to_json(found: SchemaStatus, report: IntegrityReport | None) -> dict[str, Any]:
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
    """What a way back takes back: of what is pending, or else the last step."""
    if found.pending:
        return found.pending[::-1]
    return found.revisions[-1:] if found.state == "current" else ()


def _show(found: SchemaStatus, report: IntegrityReport | None) -> None:
    table = Table("what", "how it is", title="adjudge migrate check", title_justify="left")
    table.add_row("database", found.revision or "empty")
    table.add_row("this version", found.head)
    table.add_row("state", escape(describe_schema_status(found)))
    for step in found.pending:
        table.add_row(f"pending: {step.revision}", escape(step.summary))
    if found.pending and found.revision is not None:
        table.add_row("meanwhile", _rolling_upgrade_note(found))
    for step in _downgrade_steps(found):
        table.add_row(f"back from {step.revision}", f"loses {escape(step.loses)}")
    if report is not None:
        seen = (
            f"{report.versions} rubric versions and {report.requests} requests were read, {report.problem_count} problems"
        )
        table.add_row("contents", escape("\n".join([seen, *report.problems])))
    out.print(table)


def _rolling_upgrade_note(found: SchemaStatus) -> str:
    if found.supports_rolling_upgrade:
        return f"processes of revision {found.revision} go on, and may start again; they can be replaced one by one"
    return f"processes of revision {found.revision} must be stopped before: they do not work on the new schema"
