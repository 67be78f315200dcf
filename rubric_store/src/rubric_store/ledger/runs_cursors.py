"""Cursors of pages of runs and of their steps: opaque to clients, and what a page ended with to us."""

import re
from datetime import UTC, datetime

from rubric_store.ledger.runs_tables import NO_STEP
from rubric_store.paging import UNKNOWN_CURSOR, CursorError, text_from_cursor, to_cursor

_STEP = re.compile(rf"{NO_STEP}|[0-9]{{1,18}}")


def to_run_cursor(last_at: datetime, run: str) -> str:
    """The cursor that continues after a run, by when it was judged for last."""
    return to_cursor(f"{last_at.isoformat()} {run}")


def from_run_cursor(cursor: str) -> tuple[datetime, str]:
    """What a cursor of runs continues after; raises `CursorError` if no page gave it out."""
    at, _, run = text_from_cursor(cursor).partition(" ")
    try:
        last_at = datetime.fromisoformat(at)
        if last_at.utcoffset() is None or "\0" in run:
            raise CursorError(UNKNOWN_CURSOR)
        return last_at.astimezone(UTC), run
    except (ValueError, OverflowError):
        raise CursorError(UNKNOWN_CURSOR) from None


def to_step_cursor(step: int) -> str:
    """The cursor that continues after a step."""
    return to_cursor(str(step))


def from_step_cursor(cursor: str) -> int:
    """What a cursor of steps continues after; raises `CursorError` if no page gave it out."""
    step = text_from_cursor(cursor)
    if not _STEP.fullmatch(step):
        raise CursorError(UNKNOWN_CURSOR)
    return int(step)
