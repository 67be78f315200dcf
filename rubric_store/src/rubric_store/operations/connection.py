"""The database that operations are kept in: transactions that have one operation to themselves, and one clock for all.

Clocks of hosts differ. Leases and pauses, which one process writes and another compares with, go by the database's.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, and_, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.database import WRITES, open_engine
from rubric_store.operations.tables import operations
from rubric_store.reachable import reachable
from rubric_store.tables import UTCDateTime

_TRUE_TIME = select(func.clock_timestamp(type_=UTCDateTime))
"""PostgreSQL's `now()` is when the transaction began, which may have waited for a lock since."""


def _now() -> datetime:
    return datetime.now(UTC)


class OperationsDatabase:
    """Reads and transactions; raises `ConnectionError` wherever the database cannot be reached now.

    `clock` is asked in place of the database's, and of this process's for what is only shown.
    """

    def __init__(self, url: str, clock: Callable[[], datetime] | None = None) -> None:
        self._engine = open_engine(url)
        self._clock = clock or _now
        self._asks_the_server = clock is None and self._engine.dialect.name == "postgresql"
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

    async def moment(self, connection: AsyncConnection) -> datetime:
        """What time it is, the same to all processes: those that share a SQLite file share a host, and its clock."""
        if not self._asks_the_server:
            return self._clock()
        told: datetime = (await connection.execute(_TRUE_TIME)).scalar_one()
        return told


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
