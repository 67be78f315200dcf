"""The pages of a list, fetched while one store is open."""

from judge_server.rubrics import PROJECT_ID
from rubric_store import RubricStore
from trainer_client.wire import RubricSummary

_PAGE = 500


async def summaries(
    store: RubricStore, *, prefix: str = "", tag: str | None = None, text: str = "", max_count: int | None = None
) -> tuple[list[RubricSummary], bool]:
    """Rubrics by name, up to `most` of them; whether there are more."""
    found: list[RubricSummary] = []
    after: str | None = None
    while True:
        limit = _PAGE if max_count is None else min(_PAGE, max_count - len(found))
        page = await store.list(PROJECT_ID, prefix=prefix, tag=tag, text=text, after=after, limit=limit)
        found += page.rubrics
        after = page.next_cursor
        if after is None or len(found) == max_count:
            return found, after is not None
