"""The database that operations are kept in: transactions that have one operation to themselves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, and_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.database import WRITES, open_engine
from rubric_store.operations.tables import operations
from rubric_store.reachable import reachable


class OperationsDatabase:
    """Reads and transactions; raises `ConnectionError` wherever the database cannot be reached now."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
        self._writer = self._engine.execution_options(**{WRITES: True})

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.dispose()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read by."""
        with reachable():
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction."""
        with reachable():
            async with self._writer.begin() as connection:
                yield connection


async def lock_operation(connection: AsyncConnection, project_id: str, operation_id: str) -> Row[Any] | None:
    """The row of an operation, which nobody else changes until the transaction ends; None where there is none."""
    wanted = select(operations).where(of(operations, project_id, operation_id)).with_for_update()
    return (await connection.execute(wanted)).one_or_none()


async def change_operation(connection: AsyncConnection, row: Row[Any], **values: Any) -> None:
    """Change an operation that is locked; its revision grows."""
    where = of(operations, row.project_id, row.operation_id)
    await connection.execute(update(operations).where(where).values(revision=operations.c.revision + 1, **values))


def of(table: Table, project_id: str, operation_id: str, *more: ColumnElement[bool]) -> ColumnElement[bool]:
    """The rows of one operation."""
    return and_(table.c.project_id == project_id, table.c.operation_id == operation_id, *more)
