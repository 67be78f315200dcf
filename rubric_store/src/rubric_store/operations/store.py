"""`SQLOperations`: operations as their submitters see them: create, read, cancel, retry, purge.

The part that workers use is `ChunkLeases`.

A lease lets a worker claim a chunk for a time and finish it. Chunks are leased fairly between projects.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, case, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.database import insert_into
from rubric_store.operations.database import (
    MAX_LISTED_BYTES,
    MAX_PAGE_BYTES,
    HostClock,
    OperationsDatabase,
    change_operation,
    chunks,
    in_operation,
    lock_operation,
    operation_of,
    operations,
    pack,
    result_page,
    results,
    results_per_page,
    unpack,
    values_after_attempt,
    values_after_chunk,
)
from rubric_store.operations.rows import (
    MAX_ATTEMPTS,
    ChunkOutcome,
    ChunkRef,
    LeasedChunk,
    NewOperation,
    OperationCounts,
    Submission,
)
from rubric_store.repository import from_time_cursor, take_page, to_time_cursor
from rubric_store.tenants.tables import projects
from trainer_client.wire.operations import TERMINAL_STATES, Operation, OperationList, OperationState, ResultPage

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


_UNLEASED: Mapping[str, None] = {"owner": None, "lease_until": None}
_WORKER_DIED = f"its workers died {MAX_ATTEMPTS} times; see the workers' logs for the reason"
ROWS_PER_STATEMENT = 500


class ChunkLeases(OperationsDatabase):
    """The part of `SQLOperations` that workers use."""

    def __init__(
        self, url: str, retention: timedelta | None, clock: Callable[[], datetime] | None, host_clock: HostClock
    ) -> None:
        super().__init__(url, clock, host_clock)
        self._retention = retention

    async def take_due(self, limit: int, *, lost_after_s: float) -> Sequence[ChunkRef]:
        """Return the next chunks to enqueue, fairly between projects, and mark them as enqueued.

        Concurrent callers never get the same chunk. Chunks enqueued more than `lost_after_s` ago count as lost.
        """
        async with self._connect() as connection:
            now = await self.timestamp(connection)
            lost_before = now - timedelta(seconds=lost_after_s)
            candidates = [
                ChunkRef(*row) for row in await connection.execute(select_next_chunks(now, lost_before, limit))
            ]
        if not candidates:
            return []
        still_dispatchable = select(*CHUNK_KEY).where(in_chunks(candidates), dispatchable(now, lost_before))
        async with self._begin() as connection:
            locked = {
                ChunkRef(*row) for row in await connection.execute(still_dispatchable.with_for_update(skip_locked=True))
            }
            due = [ref for ref in candidates if ref in locked]
            if due:
                enqueued_at = await self.timestamp(connection)
                enqueued = {"state": "queued", **_UNLEASED, "announced_at": enqueued_at}
                await connection.execute(update(chunks).where(in_chunks(due)).values(enqueued))
        return due

    async def claim(self, ref: ChunkRef, owner: str, lease_s: float) -> LeasedChunk | None:
        """Lease a chunk for `lease_s` seconds; None if it cannot be claimed.

        A chunk that was started `MAX_ATTEMPTS` times without finishing fails instead.
        """
        async with self._begin() as connection:
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
        async with self._begin() as connection:
            until = await self.timestamp(connection) + timedelta(seconds=lease_s)
            renewed = await connection.execute(update(chunks).where(_leased_by(work)).values(lease_until=until))
            return bool(renewed.rowcount)

    async def complete(self, work: LeasedChunk, outcome: ChunkOutcome) -> bool:
        """Store a chunk's results and usage and delete its inputs; False, changing nothing, if the lease was lost."""
        async with self._begin() as connection:
            operation = await self._lock_leased_operation(connection, work)
            if operation is None:
                return False
            done = {"state": "done", **_UNLEASED, "problem": None, "body": None}
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
        async with self._begin() as connection:
            operation = await self._lock_leased_operation(connection, work)
            if operation is None:
                return
            requeued = {
                "state": "queued",
                **_UNLEASED,
                "announced_at": None,
                "due_at": await self.timestamp(connection) + timedelta(seconds=delay_s),
                "attempts": work.attempt if counts else work.attempt - 1,
                "problem": problem if counts else None,  # otherwise it is not why the chunk fails
            }
            await connection.execute(update(chunks).where(_in_chunk(work.ref)).values(requeued))
            values = values_after_attempt(operation, outcome)
            await change_operation(connection, operation, problem=problem, **values)

    async def fail(self, work: LeasedChunk, problem: str) -> None:
        """Mark a chunk as failed; does nothing if the lease was lost."""
        async with self._begin() as connection:
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
        failed = {"state": "failed", **_UNLEASED, "problem": problem}
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


def _in_chunk(ref: ChunkRef) -> ColumnElement[bool]:
    return in_operation(chunks, ref.project_id, ref.operation_id, chunks.c.chunk == ref.chunk)


def _leased_by(work: LeasedChunk) -> ColumnElement[bool]:
    return and_(_in_chunk(work.ref), chunks.c.state == "running", chunks.c.owner == work.owner)


def _is_claimable(row: Row[Any], now: datetime) -> bool:
    if row.state == "running":
        return bool(row.lease_until < now)
    return bool(row.state == "queued" and row.due_at <= now)


_PURGE_BATCH_SIZE = 100


class SQLOperations(ChunkLeases):
    """Operations in the database at a URL. Ended ones are kept for `keep_days`, forever if that is None.

    `clock` replaces both the database's clock and the host's, and `host_clock` the host's only.

    Every method raises `ConnectionError` if the database cannot be reached.
    """

    def __init__(
        self,
        url: str,
        *,
        keep_days: float | None = None,
        clock: Callable[[], datetime] | None = None,
        host_clock: HostClock = HostClock(),  # noqa: B008 - a frozen value
    ) -> None:
        super().__init__(url, None if keep_days is None else timedelta(days=keep_days), clock, host_clock)

    async def create(self, new: NewOperation) -> Operation:
        """Store an operation with its chunks, or return the one that the same submission created before.

        Raises:
            ValueError: the submission was used for a different request.
        """
        request, *bodies = await asyncio.to_thread(
            lambda: [pack(one) for one in (new.request, *(chunk.body for chunk in new.chunks))]
        )
        submission = new.submission
        values = {
            "project_id": new.project_id,
            "operation_id": new.id,
            "kind": new.kind,
            "state": "queued",
            "revision": 1,
            "submission": None if submission is None else _key_digest(submission),
            "asked": b"" if submission is None else submission.asked,
            "request": request,
            "progress": {"total": sum(chunk.inputs for chunk in new.chunks)},
            "usage": {},
            "tries": 1,
            "results": 0,
            "unfinished": len(new.chunks) + new.has_final_chunk,
            "created_at": new.created_at,
        }
        async with self._begin() as connection:
            new_row = insert_into(operations, connection).values(values)
            once = new_row.on_conflict_do_nothing(index_elements=["project_id", "submission"])
            inserted = await connection.execute(once.returning(*operations.c))
            if (row := inserted.one_or_none()) is not None:
                await self._add_chunks(connection, new, bodies)
            elif submission is not None:
                row = await _find_submission(connection, new.project_id, submission)
        assert row is not None
        return await self._to_operation(row)

    async def _add_chunks(self, connection: Any, new: NewOperation, bodies: list[bytes]) -> None:
        key = {"project_id": new.project_id, "operation_id": new.id}
        common = {**key, "attempts": 0, "due_at": await self.timestamp(connection)}
        rows: list[dict[str, Any]] = [
            {**common, "chunk": number, "state": "queued", "inputs": chunk.inputs, "body": body}
            for number, (chunk, body) in enumerate(zip(new.chunks, bodies, strict=True))
        ]
        if new.has_final_chunk:
            rows.append({**common, "chunk": len(rows), "state": "waiting", "inputs": 0, "body": None})
        for start in range(0, len(rows), ROWS_PER_STATEMENT):
            await connection.execute(insert(chunks), rows[start : start + ROWS_PER_STATEMENT])

    async def find_submission(self, project_id: str, submission: Submission) -> Operation | None:
        """The operation that a submission created, if any; raises `ValueError` if its request was a different one."""
        async with self._connect() as connection:
            row = await _find_submission(connection, project_id, submission)
        return None if row is None else await self._to_operation(row)

    async def get(self, project_id: str, operation_id: str) -> Operation | None:
        """The operation; None if it does not exist."""
        rows = await self._read(select(operations).where(in_operation(operations, project_id, operation_id)))
        return await self._to_operation(rows[0]) if rows else None

    async def get_state(self, project_id: str, operation_id: str) -> tuple[int, OperationState] | None:
        """The operation's revision and state; None if it does not exist."""
        wanted = select(operations.c.revision, operations.c.state).where(
            in_operation(operations, project_id, operation_id)
        )
        rows = await self._read(wanted)
        return (rows[0].revision, rows[0].state) if rows else None

    async def list(self, project_id: str, limit: int, after: str | None = None) -> OperationList:
        """A page of the project's operations, newest first, without large requests.

        Raises:
            CursorError: `after` is not the `next_cursor` of a page.
        """
        request = operations.c.request
        small = case((func.length(request) <= MAX_LISTED_BYTES, request)).label("request")
        columns = [small if column is request else column for column in operations.c]
        newest = (operations.c.created_at.desc(), operations.c.operation_id)
        wanted = select(*columns).where(operations.c.project_id == project_id).order_by(*newest).limit(limit + 1)
        if after is not None:
            at, id_ = from_time_cursor(after)
            same_time = and_(operations.c.created_at == at, operations.c.operation_id > id_)
            wanted = wanted.where(or_(operations.c.created_at < at, same_time))
        rows, cursor = take_page(
            await self._read(wanted), limit, lambda row: to_time_cursor(row.created_at, row.operation_id)
        )
        now = self.now()
        listed = await asyncio.to_thread(lambda: tuple([operation_of(row, now, listed=True) for row in rows]))
        return OperationList(operations=listed, next_cursor=cursor)

    async def results(
        self, project_id: str, operation_id: str, *, after: int, limit: int, max_bytes: int = MAX_PAGE_BYTES
    ) -> ResultPage | None:
        """Results `after`, `after + 1`, … in order of creation; fewer than `limit` above `max_bytes`, compressed."""
        where = in_operation(results, project_id, operation_id, results.c.number >= after)
        bodies = select(results.c.body).where(where).order_by(results.c.number)
        sizes = bodies.with_only_columns(func.length(results.c.body)).limit(limit + 1)
        async with self._connect() as connection:
            of_operation = select(operations.c.state).where(in_operation(operations, project_id, operation_id))
            state = (await connection.execute(of_operation)).scalar_one_or_none()
            if state is None:
                return None
            found_sizes = (await connection.execute(sizes)).scalars().all()
            fitting = results_per_page(found_sizes[:limit], max_bytes)
            page = (await connection.execute(bodies.limit(fitting))).scalars().all()
        more = len(found_sizes) > len(page) or state not in TERMINAL_STATES
        return await asyncio.to_thread(result_page, page, after + len(page) if more else None)

    async def cancel(self, project_id: str, operation_id: str, now: datetime) -> Operation | None:
        """Cancel an operation and revoke its leases; an ended one stays as it is."""
        async with self._begin() as connection:
            row = await lock_operation(connection, project_id, operation_id)
            if row is not None and row.state not in TERMINAL_STATES:
                await connection.execute(
                    update(chunks)
                    .where(in_operation(chunks, project_id, operation_id, chunks.c.state == "running"))
                    .values(state="queued", **_UNLEASED, attempts=chunks.c.attempts - 1)
                )
                await change_operation(connection, row, state="cancelled", **self._end_values(now))
        return await self.get(project_id, operation_id)

    async def retry(self, project_id: str, operation_id: str) -> Operation | None:
        """Queue the unfinished chunks of a failed or cancelled operation; any other stays as it is."""
        async with self._begin() as connection:
            row = await lock_operation(connection, project_id, operation_id)
            if row is not None and row.state in ("failed", "cancelled"):
                again = {
                    "attempts": 0,
                    "due_at": await self.timestamp(connection),
                    "announced_at": None,
                    "problem": None,
                }
                failed = in_operation(chunks, project_id, operation_id, chunks.c.state == "failed")
                undone = (await connection.execute(select(func.sum(chunks.c.inputs)).where(failed))).scalar_one() or 0
                requeued = await connection.execute(update(chunks).where(failed).values(state="queued", **again))
                left = in_operation(chunks, project_id, operation_id, chunks.c.state == "queued")
                await connection.execute(update(chunks).where(left).values(**again))
                progress = dict(row.progress)
                progress |= {"known": progress.get("done", 0), "failed": progress.get("failed", 0) - undone}
                await change_operation(
                    connection,
                    row,
                    state="queued",
                    problem=None,
                    tries=row.tries + 1,
                    progress=progress,
                    unfinished=row.unfinished + requeued.rowcount,
                    started_at=None,
                    ended_at=None,
                    expires_at=None,
                )
        return await self.get(project_id, operation_id)

    async def counts(self, now: datetime) -> OperationCounts:
        """Count operations, and the chunks of operations that have not ended."""
        kinds = (operations.c.kind, operations.c.state)
        of_operations = select(*kinds, func.count().label("number")).group_by(*kinds)
        same = and_(operations.c.project_id == chunks.c.project_id, operations.c.operation_id == chunks.c.operation_id)
        states = (operations.c.kind, chunks.c.state)
        of_chunks = (
            select(*states, func.count().label("number"), func.min(chunks.c.due_at).label("due_at"))
            .join(operations, same)
            .where(operations.c.state.not_in(TERMINAL_STATES))
            .group_by(*states)
        )
        by_operation = {(row.kind, row.state): row.number for row in await self._read(of_operations)}
        rows = await self._read(of_chunks)
        waiting = [row.due_at for row in rows if row.state == "queued" and row.due_at <= now]
        by_chunk = {(row.kind, row.state): row.number for row in rows}
        return OperationCounts(by_operation, by_chunk, min(waiting, default=None))

    async def purge(self, now: datetime) -> int:
        """Delete expired operations with their chunks and results; return how many."""
        deleted = 0
        expired = select(operations.c.project_id, operations.c.operation_id).where(operations.c.expires_at <= now)
        while True:
            async with self._begin() as connection:
                found = (await connection.execute(expired.limit(_PURGE_BATCH_SIZE))).all()
                for project_id, operation_id in found:
                    for table in (results, chunks, operations):
                        await connection.execute(delete(table).where(in_operation(table, project_id, operation_id)))
            deleted += len(found)
            if len(found) < _PURGE_BATCH_SIZE:
                return deleted

    async def _to_operation(self, row: Row[Any]) -> Operation:
        return await asyncio.to_thread(operation_of, row, self.now())


def _key_digest(submission: Submission) -> bytes:
    return sha256(submission.key.encode()).digest()


async def _find_submission(connection: AsyncConnection, project_id: str, submission: Submission) -> Row[Any] | None:
    """The row that a submission created, if any; raises `ValueError` if its request was a different one."""
    mine = select(operations).filter_by(project_id=project_id, submission=_key_digest(submission))
    row = (await connection.execute(mine)).one_or_none()
    if row is not None and row.asked != submission.asked:
        raise ValueError(
            f"operation {row.operation_id} was submitted with the same Idempotency-Key and different content; use a "
            "new key for every submission"
        )
    return row
