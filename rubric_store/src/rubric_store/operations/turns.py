"""Whose turn it is: which chunks are announced next, so that each project gets its share of the workers.

A project's next chunk comes the later the more of its chunks are announced or worked on, and the sooner the more its
share weighs. How many operations it has, and of how many chunks, changes nothing. Refuses to know who announces.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select, tuple_

from rubric_store.operations.tables import chunks, operations
from rubric_store.tenants.tables import projects
from trainer_client.wire.operation_rows import ChunkRef
from trainer_client.wire.operations import TERMINAL_STATES

CHUNK_KEY = (chunks.c.project_id, chunks.c.operation_id, chunks.c.chunk)


def in_chunks(keys: Sequence[ChunkRef]) -> ColumnElement[bool]:
    """The rows of some chunks. Rows of values alone are looked for in no index by SQLite, hence each column's too."""
    each = [column.in_({key[place] for key in keys}) for place, column in enumerate(CHUNK_KEY)]
    return and_(*each, tuple_(*CHUNK_KEY).in_(keys))


def dispatchable(now: datetime, lost_before: datetime) -> ColumnElement[bool]:
    """Which chunks wait for an announcement, a new one for those that were announced before `lost_before`."""
    not_enqueued = or_(chunks.c.announced_at.is_(None), chunks.c.announced_at < lost_before)
    queued = and_(chunks.c.state == "queued", chunks.c.due_at <= now, not_enqueued)
    return or_(queued, and_(chunks.c.state == "running", chunks.c.lease_until < now))


def select_next_chunks(now: datetime, lost_before: datetime, limit: int) -> Select[Any]:
    """The keys of the chunks to announce, the next first.

    A chunk's turn is its place among its project's, in which those that are announced or worked on come first, divided
    by the project's weight. Within a project the first chunks of all operations come first, then the second ones.
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
