"""Leases on chunks: enqueue, claim for a time, finish; fair between projects.

Every change to a chunk's outcome locks its operation first. If two workers have the same chunk, one finishes it and the
other learns that it lost the lease.

Fairness: the more of a project's chunks are enqueued or running, the later its next chunk is enqueued, and the more the
project weighs, the sooner. The number and size of its operations make no difference.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, and_, case, func, insert, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.operations.database import (
    OperationsDatabase,
    change_operation,
    in_operation,
    lock_operation,
    pack,
    unpack,
    values_after_attempt,
    values_after_chunk,
)
from rubric_store.operations.tables import chunks, operations, results
from rubric_store.tenants.tables import projects
from trainer_client.wire.operations import MAX_ATTEMPTS, TERMINAL_STATES, ChunkOutcome, ChunkRef, LeasedChunk

CHUNK_KEY = (chunks.c.project_id, chunks.c.operation_id, chunks.c.chunk)


def in_chunks(keys: Sequence[ChunkRef]) -> ColumnElement[bool]:
    """A condition: the rows of some chunks. SQLite uses no index for row values alone, so each column is tested too."""
    by_column = [column.in_({key[place] for key in keys}) for place, column in enumerate(CHUNK_KEY)]
    return and_(*by_column, tuple_(*CHUNK_KEY).in_(keys))


def dispatchable(now: datetime, lost_before: datetime) -> ColumnElement[bool]:
    """A condition: chunks to enqueue, including those enqueued before `lost_before` or whose lease has expired."""
    not_enqueued = or_(chunks.c.announced_at.is_(None), chunks.c.announced_at < lost_before)
    queued = and_(chunks.c.state == "queued", chunks.c.due_at <= now, not_enqueued)
    return or_(queued, and_(chunks.c.state == "running", chunks.c.lease_until < now))


def select_next_chunks(now: datetime, lost_before: datetime, limit: int) -> Select[Any]:
    """The keys of the chunks to enqueue, in order.

    Chunks are ordered by their rank within their project, divided by the project's weight. Enqueued and running chunks
    rank first; after them the first chunks of all operations, then the second ones, and so on.
    """
    wanted = dispatchable(now, lost_before)
    open_ = or_(chunks.c.state == "running", chunks.c.announced_at.is_not(None), chunks.c.due_at <= now)
    within = (case((wanted, 1), else_=0), chunks.c.chunk, operations.c.created_at)
    place = func.row_number().over(partition_by=chunks.c.project_id, order_by=within)
    same = and_(operations.c.project_id == chunks.c.project_id, operations.c.operation_id == chunks.c.operation_id)
    ranked = (
        select(
            *CHUNK_KEY,
            operations.c.created_at,
            wanted.label("wanted"),
            (place / func.coalesce(projects.c.weight, 1.0)).label("turn"),
        )
        .join(operations, same)
        .outerjoin(projects, projects.c.project_id == chunks.c.project_id)
        .where(chunks.c.state.in_(("queued", "running")), operations.c.state.not_in(TERMINAL_STATES), open_)
        .subquery()
    )
    return (
        select(ranked.c.project_id, ranked.c.operation_id, ranked.c.chunk)
        .where(ranked.c.wanted)
        .order_by(ranked.c.turn, ranked.c.created_at, ranked.c.project_id)
        .limit(limit)
    )


_WORKER_DIED = f"its workers died {MAX_ATTEMPTS} times; see the workers' logs for the reason"
ROWS_PER_STATEMENT = 500


class ChunkLeases(OperationsDatabase):
    """The part of `SQLOperations` that workers use."""

    def __init__(self, url: str, retention: timedelta | None, clock: Callable[[], datetime] | None) -> None:
        super().__init__(url, clock)
        self._retention = retention

    async def take_due(self, limit: int, *, lost_after_s: float) -> Sequence[ChunkRef]:
        """Return the next chunks to enqueue, fairly between projects, and mark them as enqueued.

        Concurrent callers never get the same chunk. Chunks enqueued more than `lost_after_s` ago count as lost.
        """
        async with self.connect() as connection:
            now = await self.timestamp(connection)
            lost_before = now - timedelta(seconds=lost_after_s)
            candidates = [
                ChunkRef(*row) for row in await connection.execute(select_next_chunks(now, lost_before, limit))
            ]
        if not candidates:
            return []
        still_dispatchable = select(*CHUNK_KEY).where(in_chunks(candidates), dispatchable(now, lost_before))
        async with self.begin() as connection:
            locked = {
                ChunkRef(*row) for row in await connection.execute(still_dispatchable.with_for_update(skip_locked=True))
            }
            due = [ref for ref in candidates if ref in locked]
            if due:
                enqueued_at = await self.timestamp(connection)
                enqueued = {"state": "queued", "owner": None, "lease_until": None, "announced_at": enqueued_at}
                await connection.execute(update(chunks).where(in_chunks(due)).values(enqueued))
        return due

    async def claim(self, ref: ChunkRef, owner: str, lease_s: float) -> LeasedChunk | None:
        """Lease a chunk for `lease_s` seconds; None if it cannot be claimed.

        A chunk that was started `MAX_ATTEMPTS` times without finishing fails instead.
        """
        async with self.begin() as connection:
            operation = await lock_operation(connection, ref.project_id, ref.operation_id)
            if operation is None or operation.state in TERMINAL_STATES:
                return None
            row = (await connection.execute(select(chunks).where(_in_chunk(ref)).with_for_update())).one_or_none()
            now = await self.timestamp(connection)
            if row is None or not _is_claimable(row, now):
                return None
            if row.attempts >= MAX_ATTEMPTS:
                await self._fail(connection, operation, ref, row.problem or _WORKER_DIED, row.inputs, now)
                return None
            lease = {"owner": owner, "lease_until": now + timedelta(seconds=lease_s)}
            taken = {"state": "running", "attempts": row.attempts + 1, **lease}
            await connection.execute(update(chunks).where(_in_chunk(ref)).values(taken))
            if operation.state == "queued":
                await change_operation(connection, operation, state="running", started_at=now)
        body = None if row.body is None else unpack(row.body)
        request = unpack(operation.request)
        return LeasedChunk(ref, operation.kind, request, body, row.inputs, row.attempts + 1, owner)

    async def renew(self, work: LeasedChunk, lease_s: float) -> bool:
        """Renew the lease on a chunk; False if the lease was lost."""
        async with self.begin() as connection:
            until = await self.timestamp(connection) + timedelta(seconds=lease_s)
            renewed = await connection.execute(update(chunks).where(_leased_by(work)).values(lease_until=until))
            return bool(renewed.rowcount)

    async def complete(self, work: LeasedChunk, outcome: ChunkOutcome) -> bool:
        """Store a chunk's results and usage and delete its inputs; False, changing nothing, if the lease was lost."""
        async with self.begin() as connection:
            operation = await self._lock_leased_operation(connection, work)
            if operation is None:
                return False
            done = {"state": "done", "owner": None, "lease_until": None, "problem": None, "body": None}
            await connection.execute(update(chunks).where(_in_chunk(work.ref)).values(done))
            rows = [
                {**work.ref._asdict(), "place": place, "number": operation.results + place, "body": pack(result)}
                for place, result in enumerate(outcome.results)
            ]
            for start in range(0, len(rows), ROWS_PER_STATEMENT):
                await connection.execute(insert(results), rows[start : start + ROWS_PER_STATEMENT])
            values = values_after_chunk(operation, work.inputs, outcome)
            if outcome.summary is not None:
                values["summary"] = pack(outcome.summary)
            await self._count_finished_chunk(connection, operation, values, await self.timestamp(connection))
        return True

    async def requeue(
        self,
        work: LeasedChunk,
        problem: str | None,
        *,
        delay_s: float,
        outcome: ChunkOutcome,
        counts: bool,
    ) -> None:
        """Queue a chunk for another attempt; does nothing if the lease was lost."""
        async with self.begin() as connection:
            operation = await self._lock_leased_operation(connection, work)
            if operation is None:
                return
            requeued = {
                "state": "queued",
                "owner": None,
                "lease_until": None,
                "announced_at": None,
                "due_at": await self.timestamp(connection) + timedelta(seconds=delay_s),
                "attempts": work.attempt if counts else work.attempt - 1,
                "problem": problem,
            }
            await connection.execute(update(chunks).where(_in_chunk(work.ref)).values(requeued))
            values = values_after_attempt(operation, outcome)
            await change_operation(connection, operation, problem=problem, **values)

    async def fail(self, work: LeasedChunk, problem: str) -> None:
        """Mark a chunk as failed; does nothing if the lease was lost."""
        async with self.begin() as connection:
            operation = await self._lock_leased_operation(connection, work)
            if operation is not None:
                now = await self.timestamp(connection)
                await self._fail(connection, operation, work.ref, problem, work.inputs, now)

    async def _lock_leased_operation(self, connection: AsyncConnection, work: LeasedChunk) -> Row[Any] | None:
        """Lock the operation of a chunk; None if it has ended or the lease was lost."""
        operation = await lock_operation(connection, work.ref.project_id, work.ref.operation_id)
        held = (
            await connection.execute(select(chunks.c.chunk).where(_leased_by(work)).with_for_update())
        ).one_or_none()
        return None if operation is None or operation.state in TERMINAL_STATES or held is None else operation

    async def _fail(
        self, connection: AsyncConnection, operation: Row[Any], ref: ChunkRef, problem: str, inputs: int, now: datetime
    ) -> None:
        failed = {"state": "failed", "owner": None, "lease_until": None, "problem": problem}
        await connection.execute(update(chunks).where(_in_chunk(ref)).values(failed))
        progress = operation.progress | {"failed": operation.progress.get("failed", 0) + inputs}
        await self._count_finished_chunk(connection, operation, {"progress": progress, "problem": problem}, now)

    async def _count_finished_chunk(
        self, connection: AsyncConnection, operation: Row[Any], values: dict[str, Any], now: datetime
    ) -> None:
        """Decrement the unfinished chunks. After the last one end the operation; before the final chunk queue it."""
        left = operation.unfinished - 1
        values |= {"unfinished": left}
        if left <= 1:
            mine = in_operation(chunks, operation.project_id, operation.operation_id)
            states = select(chunks.c.state, func.count().label("number")).where(mine).group_by(chunks.c.state)
            number = {row.state: row.number for row in await connection.execute(states)}
            failed, waiting = number.get("failed", 0), number.get("waiting", 0)
            if left == 0 or (waiting and failed):
                values |= {"state": "failed" if failed else "done", **self._end_values(now)}
                if failed:
                    problem = values.get("problem") or operation.problem
                    total = sum(number.values()) - waiting
                    values["problem"] = f"{failed} of {total} parts failed; the last said: {problem}"
                else:
                    values["problem"] = None
            elif waiting:
                finish = update(chunks).where(mine, chunks.c.state == "waiting")
                await connection.execute(finish.values(state="queued", due_at=now))
        await change_operation(connection, operation, **values)

    def _end_values(self, now: datetime) -> dict[str, Any]:
        return {"ended_at": now, "expires_at": None if self._retention is None else now + self._retention}

    def _insert(self, table: Table) -> Any:
        """A dialect-specific insert, which supports ON CONFLICT."""
        return (postgresql if self._engine.dialect.name == "postgresql" else sqlite).insert(table)


def _in_chunk(ref: ChunkRef) -> ColumnElement[bool]:
    return in_operation(chunks, ref.project_id, ref.operation_id, chunks.c.chunk == ref.chunk)


def _leased_by(work: LeasedChunk) -> ColumnElement[bool]:
    return and_(_in_chunk(work.ref), chunks.c.state == "running", chunks.c.owner == work.owner)


def _is_claimable(row: Row[Any], now: datetime) -> bool:
    if row.state == "running":
        return bool(row.lease_until < now)
    return bool(row.state == "queued" and row.due_at <= now)
