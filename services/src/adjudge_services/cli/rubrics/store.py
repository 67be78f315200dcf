"""Open the rubric store for one command, and page through its lists."""

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
    """Run `work` on the rubric store; on errors print the message and exit with 1."""

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
    """List up to `max_count` rubrics by name, and return whether there are more."""
    rubrics: list[RubricSummary] = []
    after: str | None = None
    while True:
        limit = _PAGE if max_count is None else min(_PAGE, max_count - len(rubrics))
        page = await store.list(PROJECT_ID, prefix=prefix, tag=tag, text=text, after=after, limit=limit)
        rubrics += page.rubrics
        after = page.next_cursor
        if after is None or len(rubrics) == max_count:
            return rubrics, after is not None
