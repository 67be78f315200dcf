"""The database that operations are kept in: transactions that have one operation to themselves, and one clock for all.

Clocks of hosts differ. Leases and pauses, which one process writes and another compares with, go by the database's.
SQLite has none: there they go by monotonic time, which is the same for all processes of a host, and which a clock that
is set back or forward does not change.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, and_, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.database import WRITES, open_engine
from rubric_store.operations.tables import chunks, operations
from rubric_store.reachable import translate_connection_errors
from rubric_store.tables import UTCDateTime

_SERVER_CLOCK = select(func.clock_timestamp(type_=UTCDateTime))
"""PostgreSQL's `now()` is when the transaction began, which may have waited for a lock since."""


_MAX_DELAY = timedelta(hours=1)
"""No chunk waits for so long: one that would was put off by a clock that was set back since."""


def _now() -> datetime:
    return datetime.now(UTC)


def _monotonic_time() -> timedelta:
    return timedelta(seconds=monotonic())


class OperationsDatabase:
    """Reads and transactions; raises `ConnectionError` wherever the database cannot be reached now.

    `clock` is asked in place of the database's, and of this process's for what is only shown.
    """

    def __init__(self, url: str, clock: Callable[[], datetime] | None = None) -> None:
        self._engine = open_engine(url)
        self._clock = clock or _now
        self._has_injected_clock = clock is not None
        self._uses_server_clock = clock is None and self._engine.dialect.name == "postgresql"
        self._clock_epoch: datetime | None = None  # when monotonic time was 0, on a database without a clock
        self._writer = self._engine.execution_options(**{WRITES: True})

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.dispose()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read by."""
        with translate_connection_errors():
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A transaction."""
        with translate_connection_errors():
            async with self._writer.begin() as connection:
                yield connection

    async def timestamp(self, connection: AsyncConnection) -> datetime:
        """What time it is, the same to all processes: those that share a SQLite file share a host.

        On SQLite the time goes on from where it stood when this store was opened, or from the latest moment that the
        database knows where the host's clock stands before that: it was set back since, and what was put off then is
        not to wait for it to catch up.
        """
        if self._uses_server_clock:
            server_time: datetime = (await connection.execute(_SERVER_CLOCK)).scalar_one()
            return server_time
        if self._has_injected_clock:
            return self._clock()
        if self._clock_epoch is None:
            self._clock_epoch = await _database_time(connection, self._clock()) - _monotonic_time()
        return self.now()

    def now(self) -> datetime:
        """What time it is by this process, for what is only shown."""
        return self._clock() if self._clock_epoch is None else self._clock_epoch + _monotonic_time()


async def _database_time(connection: AsyncConnection, now: datetime) -> datetime:
    """What time it is: `now` by the host's clock, or later where that was set back since the database was written."""
    recorded = (
        await connection.execute(select(func.max(operations.c.started_at), func.max(operations.c.ended_at)))
    ).one()
    enqueued = (await connection.execute(select(func.max(chunks.c.announced_at)))).one()
    postponed = (await connection.execute(select(func.max(chunks.c.due_at), func.max(chunks.c.lease_until)))).one()
    was_set_back = any(timestamp > now for timestamp in (*recorded, *enqueued) if timestamp is not None)
    if was_set_back or (postponed[0] is not None and postponed[0] > now + _MAX_DELAY):
        latest: datetime = max(
            timestamp for timestamp in (now, *recorded, *enqueued, *postponed) if timestamp is not None
        )
        return latest
    return now


async def lock_operation(connection: AsyncConnection, project_id: str, operation_id: str) -> Row[Any] | None:
    """The row of an operation, which nobody else changes until the transaction ends; None where there is none."""
    wanted = select(operations).where(in_operation(operations, project_id, operation_id)).with_for_update()
    return (await connection.execute(wanted)).one_or_none()


async def change_operation(connection: AsyncConnection, row: Row[Any], **values: Any) -> None:
    """Change an operation that is locked; its revision grows."""
    where = in_operation(operations, row.project_id, row.operation_id)
    await connection.execute(update(operations).where(where).values(revision=operations.c.revision + 1, **values))


def in_operation(table: Table, project_id: str, operation_id: str, *more: ColumnElement[bool]) -> ColumnElement[bool]:
    """The rows of one operation."""
    return and_(table.c.project_id == project_id, table.c.operation_id == operation_id, *more)
