"""Transactions on operations with one clock for all, and the conversion between rows and messages.

Hosts' clocks differ, so leases and delays, which one process writes and another compares, use the database's clock.
SQLite has none. There, processes share a host, and the time is monotonic: it does not jump if the host's clock is set.

Migration 0006 creates the tables declared here; a test compares the two.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from time import monotonic
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    Row,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    func,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.database import STATEMENT_TIMEOUT_S
from rubric_store.operations.rows import ChunkOutcome
from rubric_store.repository import BaseRepository
from rubric_store.schema import UTCDateTime, declare, digest, key, optional, required
from trainer_client.wire.operations import Operation, OperationProgress, ResultPage
from trainer_client.wire.verdicts import Usage

operations = declare(
    "operations",
    [key("project_id"), key("operation_id", 64)],
    required(String(32), "kind"),
    required(String(16), "state"),
    required(BigInteger, "revision"),
    digest("submission", nullable=True),
    digest("asked"),
    required(LargeBinary, "request"),
    required(JSON, "progress", "usage"),
    optional(LargeBinary, "summary"),
    optional(Text, "problem"),
    required(Integer, "tries"),
    required(BigInteger, "results"),
    required(Integer, "unfinished"),
    required(UTCDateTime, "created_at"),
    optional(UTCDateTime, "started_at", "ended_at", "expires_at"),
    UniqueConstraint("project_id", "submission", name="uq_operations_submission"),
    Index("ix_operations_created_at", "project_id", "created_at"),
    Index("ix_operations_expires_at", "expires_at"),
)
"""One row per operation; changes to an operation take the lock of its row. `submission` is the digest of the
idempotency key, `asked` that of the whole request. `unfinished` counts chunks that are neither done nor failed,
`results` the results so far."""

chunks = declare(
    "operation_chunks",
    [key("project_id"), key("operation_id", 64), *required(Integer, "chunk")],
    required(String(16), "state"),
    required(Integer, "inputs"),
    optional(LargeBinary, "body"),
    required(Integer, "attempts"),
    optional(String(64), "owner"),
    optional(UTCDateTime, "lease_until"),
    required(UTCDateTime, "due_at"),
    optional(UTCDateTime, "announced_at"),
    optional(Text, "problem"),
    Index("ix_operation_chunks_state", "state", "chunk"),
    references={"operations": ["project_id", "operation_id"]},
)
"""One row per chunk: `queued`, `running` under a lease, `done` or `failed`. The final chunk, which has no body, is
`waiting` until all others have ended, and finishes the operation. Other bodies are deleted when their chunk is done."""

results = declare(
    "operation_results",
    [key("project_id"), key("operation_id", 64), *required(Integer, "chunk", "place")],
    required(BigInteger, "number"),
    required(LargeBinary, "body"),
    UniqueConstraint("project_id", "operation_id", "number", name="uq_operation_results_number"),
    references={"operation_chunks": ["project_id", "operation_id", "chunk"]},
)
"""One row per result; `number` counts an operation's results in the order of their creation, from 0."""


_SERVER_CLOCK = select(func.clock_timestamp(type_=UTCDateTime))
"""Not `now()`, which is the start of the transaction, and the transaction may have waited for a lock since."""


_MAX_DELAY = timedelta(hours=1)
"""Longer than any chunk is delayed. A later due time means that the host's clock was set back since it was written."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clocks of this process's host: the time, and monotonic seconds."""

    now: Callable[[], datetime] = _now
    monotonic: Callable[[], float] = monotonic


class OperationsDatabase(BaseRepository):
    """Reads and transactions; methods raise `ConnectionError` if the database cannot be reached.

    `clock` replaces both the database's clock and the host's, for tests.
    """

    _read_timeout_s = STATEMENT_TIMEOUT_S

    def __init__(
        self,
        url: str,
        clock: Callable[[], datetime] | None = None,
        host_clock: HostClock = HostClock(),
    ) -> None:
        super().__init__(url)
        self._clock = clock or host_clock.now
        self._monotonic = host_clock.monotonic
        self._has_injected_clock = clock is not None
        self._uses_server_clock = clock is None and self._engine.dialect.name == "postgresql"
        self._clock_epoch: datetime | None = None  # the moment of monotonic time 0, for SQLite

    async def timestamp(self, connection: AsyncConnection) -> datetime:
        """The current time, the same for all processes (those that share a SQLite file share a host).

        On SQLite it runs monotonically from the host's time at first use. If the host's clock was set back, it runs
        from the latest time in the database instead, so that delayed chunks need not wait for the clock to catch up.
        """
        if self._uses_server_clock:
            server_time: datetime = (await connection.execute(_SERVER_CLOCK)).scalar_one()
            return server_time
        if self._has_injected_clock:
            return self._clock()
        if self._clock_epoch is None:
            self._clock_epoch = await _database_time(connection, self._clock()) - self._monotonic_time()
        return self.now()

    def now(self) -> datetime:
        """The current time of this process, for display only."""
        return self._clock() if self._clock_epoch is None else self._clock_epoch + self._monotonic_time()

    def _monotonic_time(self) -> timedelta:
        return timedelta(seconds=self._monotonic())


async def _database_time(connection: AsyncConnection, now: datetime) -> datetime:
    """`now`, or the latest time in the database if the host's clock was set back since it was written."""
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
    """The row of an operation, locked until the transaction ends; None if it does not exist."""
    wanted = select(operations).where(in_operation(operations, project_id, operation_id)).with_for_update()
    return (await connection.execute(wanted)).one_or_none()


async def change_operation(connection: AsyncConnection, row: Row[Any], **values: Any) -> None:
    """Update a locked operation and increment its revision."""
    where = in_operation(operations, row.project_id, row.operation_id)
    await connection.execute(update(operations).where(where).values(revision=operations.c.revision + 1, **values))


def in_operation(table: Table, project_id: str, operation_id: str, *more: ColumnElement[bool]) -> ColumnElement[bool]:
    """A condition: the rows of one operation."""
    return and_(table.c.project_id == project_id, table.c.operation_id == operation_id, *more)


MAX_LISTED_BYTES = 16 * 1024
"""Bytes of JSON up to which lists include an operation's request, so that listing large ones stays cheap."""

MAX_PAGE_BYTES = 2**20
"""Compressed bytes of the results of a page; as JSON they are several times larger."""


def pack(value: Any) -> bytes:
    """Compress a value as canonical JSON in ASCII; lone surrogates are escaped."""
    return zlib.compress(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii"))


def unpack(body: bytes) -> Any:
    """Decompress a packed value."""
    return json.loads(zlib.decompress(body))


def unpack_small(body: bytes | None) -> Any:
    """Decompress a packed value; an empty object for None, and for JSON above `MAX_LISTED_BYTES`."""
    text = b"" if body is None else zlib.decompressobj().decompress(body, MAX_LISTED_BYTES + 1)
    return json.loads(text) if 0 < len(text) <= MAX_LISTED_BYTES else {}


def operation_of(row: Row[Any], now: datetime, *, listed: bool = False) -> Operation:
    """Convert a row to an operation, with its elapsed and remaining seconds; if `listed`, without a large request.

    Decompresses the request, so do not call it on the event loop.
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


def results_per_page(sizes: Sequence[int], max_bytes: int) -> int:
    """How many results of these sizes fit into a page of `max_bytes`; at least one."""
    return max(1, sum(total_bytes <= max_bytes for total_bytes in accumulate(sizes)))


def result_page(bodies: Sequence[bytes], next_number: int | None) -> ResultPage:
    """Build a page from packed results. Decompresses them, so do not call it on the event loop."""
    cursor = None if next_number is None else str(next_number)
    return ResultPage(results=tuple([unpack(body) for body in bodies]), next_cursor=cursor)


def values_after_chunk(row: Row[Any], inputs: int, outcome: ChunkOutcome) -> dict[str, Any]:
    """The operation's new values after a finished chunk: progress, usage and number of results."""
    values = values_after_attempt(row, outcome)
    progress = values["progress"]
    _add(progress, {"done": inputs, "made": len(outcome.results), **outcome.counts})
    progress["discarded"] = _add(dict(progress.get("discarded", {})), outcome.discarded)
    return {**values, "results": row.results + len(outcome.results)}


def values_after_attempt(row: Row[Any], outcome: ChunkOutcome) -> dict[str, Any]:
    """The operation's new values after an attempt: usage, and the token counts of its progress."""
    progress = _add(dict(row.progress), _tokens(outcome.usage))
    return {"progress": progress, "usage": _add(dict(row.usage), outcome.usage.model_dump())}


def _add(counts: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
    return counts


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "calls": usage.judge_calls,
        "tokens_computed": usage.prompt_tokens_computed,
        "tokens_reused": usage.prompt_tokens_reused,
        "tokens_written": usage.tokens_written,
    }
