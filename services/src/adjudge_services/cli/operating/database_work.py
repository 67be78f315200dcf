"""Check and change the database and the ledger for the commands that do."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.markup import escape
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from adjudge_services.cli.output import err, out
from adjudge_services.settings import Settings
from adjudge_services.store import describe_schema_status
from judge_server.ledger.spool import QUARANTINE_FOLDER, Quarantine, QuarantinedFile
from rubric_store import SQLLedger, migrations
from rubric_store.backup import IntegrityReport
from rubric_store.ledger.rows import PurgeCounts
from rubric_store.migrations import SchemaStatus

PENDING, UNUSABLE = 1, 2
"""Exit statuses of `adjudge migrate check`, beside 0."""


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
    try:
        for one in quarantined:
            refused = None if one.rows is None else ledger.salvage(one.rows)
            still_refused += refused is None or bool(refused)
            if refused is not None:
                quarantine.replace(one, refused)
    finally:
        asyncio.run(ledger.close())
    return still_refused


def purge_ledger(ledger: SQLLedger, project: str, run: str | None, before: datetime | None) -> PurgeCounts:
    """Delete from the ledger, with progress on a terminal."""
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,} uses"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("deleting", total=None)
        try:
            return ledger.purge(project, run=run, before=before, advance=lambda n: progress.advance(task, n))
        finally:
            asyncio.run(ledger.close())
