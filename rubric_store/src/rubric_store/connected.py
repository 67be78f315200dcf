"""An engine, and how the parts of the store read and write through it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Row, Select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rubric_store import queries
from rubric_store.database import WRITES, open_engine, prepare
from rubric_store.patience import answered_within
from rubric_store.reachable import reachable
from rubric_store.tenants import audit

READS_WITHIN_S = 5.0
"""Seconds that reading may take, connecting included, before the database counts as away."""


def nobody() -> str:
    """Who makes a change that nobody is named for."""
    return "unknown"


class Connected:
    """A database that is read statement by statement, and written to in transactions.

    `actor` says who makes the change that is being made, for the audit rows.
    """

    def __init__(self, database: str | AsyncEngine, *, actor: Callable[[], str] = nobody) -> None:
        self._actor = actor
        self._owns_engine = isinstance(database, str)
        self._engine = open_engine(database) if isinstance(database, str) else database
        prepare(self._engine.sync_engine)
        self._writer = self._engine.execution_options(**{WRITES: True})

    async def close(self) -> None:
        """Close the store's connections, unless its engine was handed in."""
        if self._owns_engine:
            await self._engine.dispose()

    async def _read(self, *statements: Select[Any], within_s: float = READS_WITHIN_S) -> tuple[Row[Any], ...]:
        """The rows of statements, one after another; raises `ConnectionError` where the database is away."""
        async with self._reading(within_s) as connection:
            return tuple([row for statement in statements for row in await connection.execute(statement)])

    @asynccontextmanager
    async def _reading(self, within_s: float = READS_WITHIN_S) -> AsyncIterator[AsyncConnection]:
        """A connection to read by; raises `ConnectionError` where the database is away or does not answer in time.

        To end the transaction may take as long again, since SQLAlchemy waits for that even when it is cancelled.
        """
        with reachable(), answered_within(within_s):
            try:
                async with asyncio.timeout(within_s), self._engine.connect() as connection:
                    yield connection
            except TimeoutError as error:
                raise TimeoutError(f"the database has not answered within {within_s:g} s") from error

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction; raises `ConnectionError` where the database is away or does not answer in time."""
        with reachable():
            async with self._writer.begin() as connection:
                yield connection

    @asynccontextmanager
    async def _changing(self, project_id: str, name: str) -> AsyncIterator[AsyncConnection]:
        """A transaction that has an existing name to itself; raises `LookupError` where there is no such name."""
        async with self._writing() as connection:
            if (await connection.execute(queries.lock_name(project_id, name))).one_or_none() is None:
                raise LookupError(f"there is no rubric {name!r}")
            yield connection

    async def _note(
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
            who = self._actor()
            await audit.note(
                connection, project_id, actor=who, action=action, subject=subject, before=before, after=after
            )
