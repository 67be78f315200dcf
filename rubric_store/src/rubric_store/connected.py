"""An engine, and how the parts of the store read and write through it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Row, Select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rubric_store import queries
from rubric_store.database import WRITES, open_engine, prepare


class Connected:
    """A database that is read statement by statement, and written to in transactions."""

    def __init__(self, database: str | AsyncEngine) -> None:
        self._owns_engine = isinstance(database, str)
        self._engine = open_engine(database) if isinstance(database, str) else database
        prepare(self._engine.sync_engine)
        self._writer = self._engine.execution_options(**{WRITES: True})

    async def close(self) -> None:
        """Close the store's connections, unless its engine was handed in."""
        if self._owns_engine:
            await self._engine.dispose()

    async def _read(self, *statements: Select[Any]) -> tuple[Row[Any], ...]:
        """The rows of statements, one after another."""
        async with self._engine.connect() as connection:
            return tuple([row for statement in statements for row in await connection.execute(statement)])

    @asynccontextmanager
    async def _changing(self, project_id: str, name: str) -> AsyncIterator[AsyncConnection]:
        """A transaction that has an existing name to itself; raises `LookupError` where there is no such name."""
        async with self._writer.begin() as connection:
            if (await connection.execute(queries.lock_name(project_id, name))).one_or_none() is None:
                raise LookupError(f"there is no rubric {name!r}")
            yield connection
