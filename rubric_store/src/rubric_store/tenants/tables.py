"""The tables of projects, keys, ended sessions and usage, and the audit log.

Migrations 0005 and 0020 create them; a test compares the two.

Audit entries are added in the transaction of the change that they record, read newest first, and never changed.
"""

import secrets
import time
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Date,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Select,
    Table,
    Text,
    UniqueConstraint,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.rubrics.queries import UNKNOWN_CURSOR, CursorError, text_from_cursor
from rubric_store.rubrics.tables import UTCDateTime, key_column, metadata
from trainer_client.wire.tenants import AuditEntry

projects = Table(
    "projects",
    metadata,
    key_column("project_id"),
    Column("created_at", UTCDateTime, nullable=False),
    Column("weight", Double, nullable=False, server_default="1"),
    Column("requests_per_minute", Integer),
    Column("tokens_per_day", BigInteger),
    Column("tokens_total", BigInteger),
    PrimaryKeyConstraint("project_id", name="pk_projects"),
)
"""One row per project, with its limits; NULL for no limit."""

api_keys = Table(
    "api_keys",
    metadata,
    key_column("project_id"),
    key_column("key_id", 32),
    Column("secret_digest", LargeBinary(32), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("label", Text, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    Column("expires_at", UTCDateTime),
    Column("revoked_at", UTCDateTime),
    Column("last_used_at", UTCDateTime),
    PrimaryKeyConstraint("project_id", "key_id", name="pk_api_keys"),
    UniqueConstraint("key_id", name="uq_api_keys_key_id"),
    ForeignKeyConstraint(["project_id"], ["projects.project_id"], name="fk_api_keys_projects"),
)
"""One row per key, with the SHA-256 of its secret. Rows of revoked keys stay."""

ended_sessions = Table(
    "ended_sessions",
    metadata,
    key_column("project_id"),
    key_column("session_id", 32),
    Column("expires_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("project_id", "session_id", name="pk_ended_sessions"),
    Index("ix_ended_sessions_expires_at", "expires_at"),
)
"""One row per session of the console that ended before it expired, until it expires."""

project_usage = Table(
    "project_usage",
    metadata,
    key_column("project_id"),
    Column("day", Date, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    PrimaryKeyConstraint("project_id", "day", name="pk_project_usage"),
    ForeignKeyConstraint(["project_id"], ["projects.project_id"], name="fk_project_usage_projects"),
)
"""A project's usage on a day (UTC): requests, and prompt tokens that the engine computed."""

audit = Table(
    "audit",
    metadata,
    key_column("project_id"),
    Column("entry", LargeBinary(16), nullable=False),
    Column("at", UTCDateTime, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    PrimaryKeyConstraint("project_id", "entry", name="pk_audit"),
)
"""One row per change; `entry` sorts by time."""


def entry_from_cursor(cursor: str) -> bytes:
    """The entry that a cursor continues after; raises `CursorError` for an invalid cursor."""
    try:
        return bytes.fromhex(text_from_cursor(cursor))
    except ValueError:
        raise CursorError(UNKNOWN_CURSOR) from None


async def add_entry(
    connection: AsyncConnection,
    project_id: str,
    *,
    actor: str,
    action: str,
    subject: str,
    before: str | None = None,
    after: str | None = None,
) -> None:
    """Add an entry for a change made in this transaction."""
    entry = time.time_ns().to_bytes(8, "big") + secrets.token_bytes(8)
    row = {"project_id": project_id, "entry": entry, "at": datetime.now(UTC), "actor": actor, "action": action}
    await connection.execute(insert(audit).values(**row, subject=subject, before=before, after=after))


def select_newest(
    project_id: str | None, *, subject: str | None, limit: int, before: bytes | None = None
) -> Select[Any]:
    """The newest entries older than the entry `before`, of one project and one subject if given."""
    columns = [audit.c[name] for name in (*AuditEntry.model_fields, "entry")]
    rows = select(*columns).order_by(audit.c.entry.desc()).limit(limit)
    if before is not None:
        rows = rows.where(audit.c.entry < before)
    if project_id is not None:
        rows = rows.where(audit.c.project_id == project_id)
    return rows if subject is None else rows.where(audit.c.subject == subject)
