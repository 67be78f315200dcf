"""Open the store that the settings name, and page through its lists.

Opening the store that the settings name, for the length of one command.

The pages of a list, fetched while one store is open.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from adjudge_services.cli.output import exit_with_error
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, command_line_user, prepare_store
from judge_server.errors import ServiceError
from judge_server.rubrics import PROJECT_ID
from rubric_store import RubricStore
from trainer_client.wire import RubricSummary

Result = TypeVar("Result")


def with_store(work: Callable[[RubricStore], Coroutine[Any, Any, Result]]) -> Result:
    """Run work on the store; what is wrong with it is told on stderr, and ends the command with status 1."""

    async def run() -> Result:
        settings = Settings()
        await prepare_store(settings)
        store = RubricStore(settings.store_url, actor=command_line_user)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except ServiceError as error:
        exit_with_error(error.detail)
    except (StartError, ValueError) as error:
        exit_with_error(str(error))


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
