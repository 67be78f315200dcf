"""Transactions on operations, and the conversion between rows and messages.

The database that operations are kept in: transactions that have one operation to themselves, and one clock for all.

Clocks of hosts differ. Leases and pauses, which one process writes and another compares with, go by the database's.
SQLite has none: there they go by monotonic time, which is the same for all processes of a host, and which a clock that
is set back or forward does not change.

Between the rows of operations and the messages of the wire: packing, and how far an operation is.
"""

import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from time import monotonic
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, and_, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.database import WRITES, open_engine, translate_connection_errors
from rubric_store.operations.tables import chunks, operations
from rubric_store.rubrics.tables import UTCDateTime
from trainer_client.wire.operations import ChunkOutcome, Operation, OperationProgress, ResultPage
from trainer_client.wire.rewards import Usage

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


MAX_LISTED_BYTES = 16 * 1024
"""Of JSON, what a request may have to stand in a list, so that a list of large ones costs little."""

MAX_PAGE_BYTES = 2**20
"""What the results of a page have together, packed; their JSON is a multiple of it."""


def pack(value: Any) -> bytes:
    """A value as compressed JSON."""
    return zlib.compress(as_json(value))


def unpack(body: bytes) -> Any:
    """The value that was packed."""
    return json.loads(zlib.decompress(body))


def unpack_small(body: bytes | None) -> Any:
    """The value that was packed; an empty object for what is not there, or has more than `MAX_LISTED_BYTES`."""
    text = b"" if body is None else zlib.decompressobj().decompress(body, MAX_LISTED_BYTES + 1)
    return json.loads(text) if 0 < len(text) <= MAX_LISTED_BYTES else {}


def as_json(value: Any) -> bytes:
    """Canonical JSON; half a surrogate pair is written as its escape."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def digest(text: bytes) -> bytes:
    """32 bytes that stand for a text."""
    return hashlib.sha256(text).digest()


def operation_of(row: Row[Any], now: datetime, *, listed: bool = False) -> Operation:
    """An operation as it stands, with how long it has taken and will take; in a list, without a large request.

    Takes as long as its request is large: not for an event loop.
    """
    progress = OperationProgress.model_validate(row.progress)
    seconds = 0.0 if row.started_at is None else max(0.0, ((row.ended_at or now) - row.started_at).total_seconds())
    new, left = progress.done - progress.known, (progress.total or 0) - progress.done
    rate = new / seconds if new > 0 and seconds > 0 else None
    eta_s = left / rate if rate and row.ended_at is None else None
    return Operation(
        id=row.operation_id,
        project_id=row.project_id,
        kind=row.kind,
        request=unpack_small(row.request) if listed else unpack(row.request),
        state=row.state,
        revision=row.revision,
        progress=progress.model_copy(update={"seconds": seconds, "rate": rate, "eta_s": eta_s}),
        usage=Usage.model_validate(row.usage),
        summary=None if row.summary is None else unpack(row.summary),
        problem=row.problem,
        tries=row.tries,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        expires_at=row.expires_at,
    )


def results_per_page(sizes: Sequence[int]) -> int:
    """How many results of these sizes go into a page: the first, and all that `MAX_PAGE_BYTES` have room for."""
    return max(1, sum(total_bytes <= MAX_PAGE_BYTES for total_bytes in accumulate(sizes)))


def result_page(bodies: Sequence[bytes], next_after: int | None) -> ResultPage:
    """A page of packed results; not for an event loop."""
    return ResultPage(results=tuple([unpack(body) for body in bodies]), next_after=next_after)


def values_after_chunk(row: Row[Any], inputs: int, outcome: ChunkOutcome) -> dict[str, Any]:
    """The values of an operation's row once a chunk's outcome entered it: progress, usage, how many results."""
    progress = dict(row.progress)
    discarded = dict(progress.get("discarded", {}))
    for reason, count in outcome.discarded.items():
        discarded[reason] = discarded.get(reason, 0) + count
    counts = {"done": inputs, "made": len(outcome.results), **outcome.counts, **_tokens(outcome.usage)}
    for name, count in counts.items():
        progress[name] = progress.get(name, 0) + count
    progress["discarded"] = discarded
    return {**values_after_attempt(row, outcome, progress), "results": row.results + len(outcome.results)}


def values_after_attempt(
    row: Row[Any], outcome: ChunkOutcome, progress: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The same for an attempt that left the chunk undone: what it cost, and nothing else."""
    if progress is None:
        progress = dict(row.progress)
        for name, count in _tokens(outcome.usage).items():
            progress[name] = progress.get(name, 0) + count
    used = {name: row.usage.get(name, 0) + spent for name, spent in outcome.usage.model_dump().items()}
    return {"progress": progress, "usage": used}


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "calls": usage.judge_calls,
        "tokens_computed": usage.prompt_tokens_computed,
        "tokens_reused": usage.prompt_tokens_reused,
        "tokens_written": usage.tokens_written,
    }
