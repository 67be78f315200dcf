"""`BaseRepository`: how every store reads and writes through an engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Row, Select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rubric_store.database import WRITES, configure_engine, open_engine, statement_timeout, translate_connection_errors
from rubric_store.rubrics import queries
from rubric_store.tenants import tables

READ_TIMEOUT_S = 5.0
"""Seconds that a read may take, connecting included, before the database counts as unavailable."""


def unknown_actor() -> str:
    """The actor of a change for which none is given."""
    return "unknown"


class BaseRepository:
    """A database: statements to read, transactions to write.

    Args:
        database: a URL, or an engine; an engine that is passed in stays the caller's.
        actor: returns who makes the current change, for the audit log.
    """

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

    async def _read(self, *statements: Select[Any], timeout_s: float = READ_TIMEOUT_S) -> tuple[Row[Any], ...]:
        """Run statements in order and return their rows; raises `ConnectionError` if the database is unavailable."""
        async with self._connect(timeout_s) as connection:
            return tuple([row for statement in statements for row in await connection.execute(statement)])

    @asynccontextmanager
    async def _connect(self, timeout_s: float = READ_TIMEOUT_S) -> AsyncIterator[AsyncConnection]:
        """Open a connection for reading; raises `ConnectionError` if the database is unavailable or too slow.

        Ending the transaction may take as long again: SQLAlchemy waits for it even when it is cancelled.
        """
        with translate_connection_errors(), statement_timeout(timeout_s):
            try:
                async with asyncio.timeout(timeout_s), self._engine.connect() as connection:
                    yield connection
            except TimeoutError as error:
                raise TimeoutError(f"the database did not answer within {timeout_s:g} s") from error

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction for writing; raises `ConnectionError` if the database is unavailable or too slow."""
        with translate_connection_errors():
            async with self._writer.begin() as connection:
                yield connection

    @asynccontextmanager
    async def _begin_locked(self, project_id: str, name: str) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that holds the lock of an existing name; raises `LookupError` for an unknown name."""
        async with self._begin() as connection:
            if (await connection.execute(queries.lock_name(project_id, name))).one_or_none() is None:
                raise LookupError(f"there is no rubric {name!r}")
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
            actor = self._actor()
            await tables.add_entry(
                connection, project_id, actor=actor, action=action, subject=subject, before=before, after=after
            )
