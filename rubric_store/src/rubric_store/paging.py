"""Cursors for lists by name: opaque to clients, and the last name of a page to us."""

import base64
import binascii

from pydantic import TypeAdapter, ValidationError

from trainer_client.wire import RubricName

MAX_LIMIT = 500
_NAME: TypeAdapter[str] = TypeAdapter(RubricName)


class CursorError(ValueError):
    """A cursor that no page gave out."""


def check_limit(limit: int) -> int:
    """Return a page size between 1 and 500; raise `ValueError` for any other."""
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"a page holds 1 to {MAX_LIMIT} rubrics, not {limit}; follow next_cursor for more")
    return limit


def to_cursor(name: str) -> str:
    """The cursor that continues after a name."""
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def from_cursor(cursor: str) -> str:
    """The name that a cursor continues after; raises `CursorError` if no page gave it out."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return _NAME.validate_python(base64.b64decode(padded, altchars=b"-_", validate=True).decode())
    except (ValidationError, UnicodeError, binascii.Error):
        raise CursorError("this cursor is not one we gave out; pass a page's next_cursor unchanged") from None
