"""`SQLOperations`: operations as their submitters see them: create, read, cancel, retry, purge.

The part that workers use is `ChunkLeases`.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, case, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.operations.database import (
    MAX_LISTED_BYTES,
    change_operation,
    digest,
    in_operation,
    lock_operation,
    operation_of,
    pack,
    result_page,
    results_per_page,
)
from rubric_store.operations.leases import ROWS_PER_STATEMENT, ChunkLeases
from rubric_store.operations.tables import chunks, operations, results
from rubric_store.rubrics.queries import from_time_cursor, to_time_cursor
from trainer_client.wire.operations import (
    TERMINAL_STATES,
    NewOperation,
    Operation,
    OperationCounts,
    OperationList,
    OperationState,
    ResultPage,
    Submission,
)

_PURGE_BATCH_SIZE = 100


class SQLOperations(ChunkLeases):
    """Operations in the database at a URL. Ended ones are kept for `keep_days`, forever if that is None.

    Every method raises `ConnectionError` if the database cannot be reached.
    """

    def __init__(
        self, url: str, *, keep_days: float | None = None, clock: Callable[[], datetime] | None = None
    ) -> None:
        super().__init__(url, None if keep_days is None else timedelta(days=keep_days), clock)

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
            "submission": None if submission is None else digest(submission.key.encode()),
            "asked": b"" if submission is None else submission.asked,
            "request": request,
            "progress": {"total": sum(chunk.inputs for chunk in new.chunks)},
            "usage": {},
            "tries": 1,
            "results": 0,
            "unfinished": len(new.chunks) + new.has_final_chunk,
            "created_at": new.created_at,
        }
        insert_new = self._insert(operations).on_conflict_do_nothing(index_elements=["project_id", "submission"])
        async with self.begin() as connection:
            inserted = await connection.execute(insert_new.values(values).returning(*operations.c))
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
        async with self.connect() as connection:
            row = await _find_submission(connection, project_id, submission)
        return None if row is None else await self._to_operation(row)

    async def get(self, project_id: str, operation_id: str) -> Operation | None:
        """The operation; None if it does not exist."""
        async with self.connect() as connection:
            wanted = select(operations).where(in_operation(operations, project_id, operation_id))
            row = (await connection.execute(wanted)).one_or_none()
        return None if row is None else await self._to_operation(row)

    async def get_state(self, project_id: str, operation_id: str) -> tuple[int, OperationState] | None:
        """The operation's revision and state; None if it does not exist."""
        wanted = select(operations.c.revision, operations.c.state).where(
            in_operation(operations, project_id, operation_id)
        )
        async with self.connect() as connection:
            row = (await connection.execute(wanted)).one_or_none()
        return None if row is None else (row.revision, row.state)

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
        async with self.connect() as connection:
            rows = (await connection.execute(wanted)).all()
        now = self.now()
        listed = await asyncio.to_thread(lambda: tuple([operation_of(row, now, listed=True) for row in rows[:limit]]))
        more = len(rows) > limit
        cursor = to_time_cursor(rows[limit - 1].created_at, rows[limit - 1].operation_id) if more else None
        return OperationList(operations=listed, next_cursor=cursor)

    async def results(self, project_id: str, operation_id: str, *, after: int, limit: int) -> ResultPage | None:
        """Results `after`, `after + 1`, … in order of creation; fewer than `limit` if they are large."""
        where = in_operation(results, project_id, operation_id, results.c.number >= after)
        bodies = select(results.c.body).where(where).order_by(results.c.number)
        sizes = bodies.with_only_columns(func.length(results.c.body)).limit(limit + 1)
        async with self.connect() as connection:
            of_operation = select(operations.c.state).where(in_operation(operations, project_id, operation_id))
            state = (await connection.execute(of_operation)).scalar_one_or_none()
            if state is None:
                return None
            found_sizes = (await connection.execute(sizes)).scalars().all()
            page = (await connection.execute(bodies.limit(results_per_page(found_sizes[:limit])))).scalars().all()
        more = len(found_sizes) > len(page) or state not in TERMINAL_STATES
        return await asyncio.to_thread(result_page, page, after + len(page) if more else None)

    async def cancel(self, project_id: str, operation_id: str, now: datetime) -> Operation | None:
        """Cancel an operation and revoke its leases; an ended one stays as it is."""
        async with self.begin() as connection:
            row = await lock_operation(connection, project_id, operation_id)
            if row is not None and row.state not in TERMINAL_STATES:
                await connection.execute(
                    update(chunks)
                    .where(in_operation(chunks, project_id, operation_id, chunks.c.state == "running"))
                    .values(state="queued", owner=None, lease_until=None, attempts=chunks.c.attempts - 1)
                )
                await change_operation(connection, row, state="cancelled", **self._end_values(now))
        return await self.get(project_id, operation_id)

    async def retry(self, project_id: str, operation_id: str) -> Operation | None:
        """Queue the unfinished chunks of a failed or cancelled operation; any other stays as it is."""
        async with self.begin() as connection:
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
        of_operations = select(*kinds, func.count()).group_by(*kinds)
        same = and_(operations.c.project_id == chunks.c.project_id, operations.c.operation_id == chunks.c.operation_id)
        states = (operations.c.kind, chunks.c.state)
        of_chunks = (
            select(*states, func.count(), func.min(chunks.c.due_at))
            .join(operations, same)
            .where(operations.c.state.not_in(TERMINAL_STATES))
            .group_by(*states)
        )
        async with self.connect() as connection:
            by_operation = {(row[0], row[1]): row[2] for row in await connection.execute(of_operations)}
            rows = (await connection.execute(of_chunks)).all()
        waiting = [row[3] for row in rows if row[1] == "queued" and row[3] <= now]
        return OperationCounts(by_operation, {(row[0], row[1]): row[2] for row in rows}, min(waiting, default=None))

    async def purge(self, now: datetime) -> int:
        """Delete expired operations with their chunks and results; return how many."""
        deleted = 0
        expired = select(operations.c.project_id, operations.c.operation_id).where(operations.c.expires_at <= now)
        while True:
            async with self.begin() as connection:
                found = (await connection.execute(expired.limit(_PURGE_BATCH_SIZE))).all()
                for project_id, operation_id in found:
                    for table in (results, chunks, operations):
                        await connection.execute(delete(table).where(in_operation(table, project_id, operation_id)))
            deleted += len(found)
            if len(found) < _PURGE_BATCH_SIZE:
                return deleted

    async def _to_operation(self, row: Row[Any]) -> Operation:
        return await asyncio.to_thread(operation_of, row, self.now())


async def _find_submission(connection: AsyncConnection, project_id: str, submission: Submission) -> Row[Any] | None:
    """The row that a submission created, if any; raises `ValueError` if its request was a different one."""
    mine = and_(operations.c.project_id == project_id, operations.c.submission == digest(submission.key.encode()))
    row = (await connection.execute(select(operations).where(mine))).one_or_none()
    if row is not None and row.asked != submission.asked:
        raise ValueError(
            f"operation {row.operation_id} was submitted with the same Idempotency-Key and different content; use a "
            "new key for every submission"
        )
    return row
