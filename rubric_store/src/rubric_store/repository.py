"""What every store has in common: reads and writes through an engine, the audit log, and the cursors of pages.

An audit entry is added in the transaction of the change that it records, read newest first, and never changed.
Migration 0005 creates the log's table; a test compares the two.
"""

import asyncio
import base64
import binascii
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Row, Select, Text, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rubric_store.database import (
    WRITES,
    configure_engine,
    open_engine,
    statement_timeout,
    translate_connection_errors,
)
from rubric_store.schema import UTCDateTime, declare, digest, key, optional, required
from trainer_client.wire.tenants import AuditEntry

T = TypeVar("T")

READ_TIMEOUT_S = 5.0
"""Seconds that a read may take, connecting included, before the database counts as unavailable. After it, Adjudge
answers 503 and the client retries."""


audit = declare(
    "audit",
    [key("project_id"), digest("entry", 16)],
    required(UTCDateTime, "at"),
    required(Text, "actor", "action", "subject"),
    optional(Text, "before", "after"),
)
"""One row per change; `entry` sorts by time."""


def unknown_actor() -> str:
    """The actor of a change for which none is given."""
    return "unknown"


class BaseRepository:
    """A database: statements to read, transactions to write.

    Args:
        database: a URL, or an engine; an engine that is passed in stays the caller's.
        actor: returns who makes the current change, for the audit log.
    """

    _read_timeout_s = READ_TIMEOUT_S

    def __init__(self, database: str | AsyncEngine, *, actor: Callable[[], str] = unknown_actor) -> None:
        self._actor = actor
        self._owns_engine = isinstance(database, str)
        self._engine = open_engine(database) if isinstance(database, str) else database
        configure_engine(self._engine.sync_engine)
        self._writer = self._engine.execution_options(**{WRITES: True})

    async def close(self) -> None:
        """Close the connections, unless the engine was passed in."""
        if self._owns_engine:
            await self._engine.dispose()

    async def _read(self, *statements: Select[Any], timeout_s: float | None = None) -> tuple[Row[Any], ...]:
        """Run statements in order and return their rows; raises `ConnectionError` if the database is unavailable."""
        async with self._connect(timeout_s) as connection:
            return tuple([row for statement in statements for row in await connection.execute(statement)])

    @asynccontextmanager
    async def _connect(self, timeout_s: float | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a connection for reading; raises `ConnectionError` if the database is unavailable or too slow.

        Ending the transaction may take as long again: SQLAlchemy waits for it even when it is cancelled.
        """
        timeout_s = self._read_timeout_s if timeout_s is None else timeout_s
        with translate_connection_errors(), statement_timeout(timeout_s) as limit_s:
            try:
                async with asyncio.timeout(limit_s), self._engine.connect() as connection:
                    yield connection
            except TimeoutError as error:
                raise TimeoutError(f"the database did not answer within {limit_s:g} s") from error

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction for writing; raises `ConnectionError` if the database is unavailable or too slow."""
        with translate_connection_errors():
            async with self._writer.begin() as connection:
                yield connection

    async def _add_audit_entry(
        self,
        connection: AsyncConnection,
        project_id: str,
        action: str,
        subject: str,
        before: str | None,
        after: str | None,
    ) -> None:
        """Add an audit entry for what the transaction changes; no entry if `before` equals `after`."""
        if before != after:
            entry = time.time_ns().to_bytes(8, "big") + secrets.token_bytes(8)
            row = {"project_id": project_id, "entry": entry, "at": datetime.now(UTC), "actor": self._actor()}
            values = {**row, "action": action, "subject": subject, "before": before, "after": after}
            await connection.execute(insert(audit).values(values))


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


UNKNOWN_CURSOR = "this cursor is invalid; pass a page's next_cursor unchanged"


class CursorError(ValueError):
    """A cursor that was not returned with a page."""


def to_cursor(last: str) -> str:
    """The opaque cursor that continues after a name or a number."""
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def take_page(rows: Sequence[T], limit: int, cursor_of: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """The rows of a page, of which one more than `limit` was read, and the cursor after them if there are more."""
    shown = rows[:limit]
    return shown, cursor_of(shown[-1]) if len(rows) > limit else None


def to_time_cursor(at: datetime, name: str) -> str:
    """The cursor that continues after what has this time and this name."""
    return to_cursor(f"{at.isoformat()} {name}")


def from_time_cursor(cursor: str) -> tuple[datetime, str]:
    """The time and name that a cursor continues after; raises `CursorError` for an invalid cursor."""
    text, _, name = text_from_cursor(cursor).partition(" ")
    try:
        at = datetime.fromisoformat(text)
        if at.utcoffset() is None or "\0" in name:
            raise CursorError(UNKNOWN_CURSOR)
        return at.astimezone(UTC), name
    except (ValueError, OverflowError):
        raise CursorError(UNKNOWN_CURSOR) from None


def text_from_cursor(cursor: str) -> str:
    """The text that a cursor encodes; raises `CursorError` for an invalid cursor."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (UnicodeError, binascii.Error):
        raise CursorError(UNKNOWN_CURSOR) from None


def entry_from_cursor(cursor: str) -> bytes:
    """The entry that a cursor continues after; raises `CursorError` for an invalid cursor."""
    try:
        return bytes.fromhex(text_from_cursor(cursor))
    except ValueError:
        raise CursorError(UNKNOWN_CURSOR) from None
