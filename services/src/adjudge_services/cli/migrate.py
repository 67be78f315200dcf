"""`adjudge migrate`: bring the database schema to what this version needs, look where it stands, or take it back."""

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import err, give_up, out
from adjudge_services.schema import said
from adjudge_services.settings import Settings
from rubric_store import contents, migrations
from rubric_store.contents import Contents
from rubric_store.migrations import Standing

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
        give_up(f"the database was not migrated: {error}")
    except Exception as error:  # noqa: BLE001 - drivers raise what they like; a person wants one line
        give_up(f"the database could not be migrated: {error}. Check ADJUDGE_DATABASE_URL")
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
        found = migrations.standing(settings.store_url)
        whole = contents.look_through(settings.store_url) if with_contents and found.usable else None
    except Exception as error:  # noqa: BLE001 - drivers raise what they like; a person wants one line
        give_up(f"the database cannot be read: {error}. Check ADJUDGE_DATABASE_URL", code=UNUSABLE)
    if as_json:
        print(json.dumps(_as_data(found, whole)))
    else:
        _show(found, whole)
        if with_contents and whole is None:
            err.print("the contents were not read: this version does not work on the schema as it is")
    if found.state == "too new" or (whole and whole.wrong):
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
        undone = migrations.standing(settings.store_url).undone(revision)
        for step in undone:
            err.print(f"the way back from {step.revision} loses {escape(step.loses)}", highlight=False, soft_wrap=True)
        if not yes:
            give_up("nothing was changed; add --yes to do it. Make a backup before")
        migrations.downgrade(settings.store_url, revision)
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - drivers raise what they like; a person wants one line
        give_up(f"the schema could not be taken back: {error}")
    out.print(f"schema is at {migrations.current(settings.store_url) or 'base'}")


def _settings() -> Settings:
    settings = Settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    return settings


def _as_data(found: Standing, whole: Contents | None) -> dict[str, Any]:
    return {
        "database": found.revision,
        "this_version": found.head,
        "state": found.state,
        "works_from": found.works_from,
        "pending": [{"revision": step.revision, "does": step.does} for step in found.pending],
        "older_processes_go_on": found.older_goes_on,
        "back": [{"from": step.revision, "loses": step.loses} for step in _back(found)],
        "contents": None if whole is None else whole._asdict(),
    }


def _back(found: Standing) -> tuple[migrations.Step, ...]:
    """What a way back takes back: of what is pending, or else the last step."""
    if found.pending:
        return found.pending[::-1]
    return found.steps[-1:] if found.state == "current" else ()


def _show(found: Standing, whole: Contents | None) -> None:
    table = Table("what", "how it is", title="adjudge migrate check", title_justify="left")
    table.add_row("database", found.revision or "empty")
    table.add_row("this version", found.head)
    table.add_row("state", escape(said(found)))
    for step in found.pending:
        table.add_row(f"pending: {step.revision}", escape(step.does))
    if found.pending and found.revision is not None:
        table.add_row("meanwhile", _meanwhile(found))
    for step in _back(found):
        table.add_row(f"back from {step.revision}", f"loses {escape(step.loses)}")
    if whole is not None:
        seen = f"{whole.versions} rubric versions and {whole.requests} requests were read, {whole.wrong} things wrong"
        table.add_row("contents", escape("\n".join([seen, *whole.said])))
    out.print(table)


def _meanwhile(found: Standing) -> str:
    if found.older_goes_on:
        return f"processes of revision {found.revision} go on, and may start again; they can be replaced one by one"
    return f"processes of revision {found.revision} must be stopped before: they do not work on the new schema"
