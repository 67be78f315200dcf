"""Cursors for lists: opaque to clients, and the last name or number of a page to us."""

import base64
import binascii
import re

from pydantic import TypeAdapter, ValidationError

from trainer_client.wire import RubricName

MAX_LIMIT = 500
UNKNOWN_CURSOR = "this cursor is not one we gave out; pass a page's next_cursor unchanged"
_NAME: TypeAdapter[str] = TypeAdapter(RubricName)
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class CursorError(ValueError):
    """A cursor that no page gave out."""


def check_limit(limit: int, what: str = "rubrics") -> int:
    """Return a page size between 1 and 500; raise `ValueError` for any other."""
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"a page holds 1 to {MAX_LIMIT} {what}, not {limit}; follow next_cursor for more")
    return limit


def to_cursor(last: str) -> str:
    """The cursor that continues after a name or a number."""
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def name_from_cursor(cursor: str) -> str:
    """The name that a cursor continues after; raises `CursorError` if no page gave it out."""
    try:
        return _NAME.validate_python(text_from_cursor(cursor))
    except ValidationError:
        raise CursorError(UNKNOWN_CURSOR) from None


def number_from_cursor(cursor: str) -> int:
    """The version that a cursor continues after; raises `CursorError` if no page gave it out."""
    number = text_from_cursor(cursor)
    if not _NUMBER.fullmatch(number):
        raise CursorError(UNKNOWN_CURSOR)
    return int(number)


def text_from_cursor(cursor: str) -> str:
    """What a cursor was made of; raises `CursorError` if it is none."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (UnicodeError, binascii.Error):
        raise CursorError(UNKNOWN_CURSOR) from None
