"""An engine, and how the parts of the store read and write through it."""

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
"""Seconds that reading may take, connecting included, before the database counts as away."""


def unknown_actor() -> str:
    """Who makes a change that nobody is named for."""
    return "unknown"


class BaseRepository:
    """A database that is read statement by statement, and written to in transactions.

    `actor` says who makes the change that is being made, for the audit rows.
    """

    def __init__(self, database: str | AsyncEngine, *, actor: Callable[[], str] = unknown_actor) -> None:
        self._actor = actor
        self._owns_engine = isinstance(database, str)
        self._engine = open_engine(database) if isinstance(database, str) else database
        configure_engine(self._engine.sync_engine)
        self._writer = self._engine.execution_options(**{WRITES: True})

    async def close(self) -> None:
        """Close the store's connections, unless its engine was handed in."""
        if self._owns_engine:
            await self._engine.dispose()

    async def _read(self, *statements: Select[Any], timeout_s: float = READ_TIMEOUT_S) -> tuple[Row[Any], ...]:
        """The rows of statements, one after another; raises `ConnectionError` where the database is away."""
        async with self._connect(timeout_s) as connection:
            return tuple([row for statement in statements for row in await connection.execute(statement)])

    @asynccontextmanager
    async def _connect(self, timeout_s: float = READ_TIMEOUT_S) -> AsyncIterator[AsyncConnection]:
        """A connection to read by; raises `ConnectionError` where the database is away or does not answer in time.

        To end the transaction may take as long again, since SQLAlchemy waits for that even when it is cancelled.
        """
        with translate_connection_errors(), statement_timeout(timeout_s):
            try:
                async with asyncio.timeout(timeout_s), self._engine.connect() as connection:
                    yield connection
            except TimeoutError as error:
                raise TimeoutError(f"the database has not answered within {timeout_s:g} s") from error

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[AsyncConnection]:
        """A transaction; raises `ConnectionError` where the database is away or does not answer in time."""
        with translate_connection_errors():
            async with self._writer.begin() as connection:
                yield connection

    @asynccontextmanager
    async def _begin_locked(self, project_id: str, name: str) -> AsyncIterator[AsyncConnection]:
        """A transaction that has an existing name to itself; raises `LookupError` where there is no such name."""
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
        """Say in the audit what the transaction changes; nothing where it leaves things as they were."""
        if before != after:
            actor = self._actor()
            await tables.add_entry(
                connection, project_id, actor=actor, action=action, subject=subject, before=before, after=after
            )
