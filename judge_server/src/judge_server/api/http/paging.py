"""Pages of lists: every list takes `after` and `limit`, and its answer has `next_cursor`, null on the last page."""

from collections.abc import Awaitable
from typing import Annotated, TypeVar

from fastapi import Query

from judge_server.errors import invalid_request
from trainer_client.wire import FieldError

T = TypeVar("T")

LIMIT_DESCRIPTION = "The most entries of the page."

After = Annotated[
    str | None,
    Query(description="The `next_cursor` of the previous page; the first page by default.", max_length=2000),
]
Limit = Annotated[int, Query(ge=1, le=500, description=LIMIT_DESCRIPTION)]


async def reject_unknown_cursor(page: Awaitable[T]) -> T:
    """Read a page; raises `InvalidRequest` for a cursor that no page has given, which stores report as `ValueError`."""
    try:
        return await page
    except ValueError as error:
        raise invalid_request((FieldError(field="after", message=str(error)),)) from None
