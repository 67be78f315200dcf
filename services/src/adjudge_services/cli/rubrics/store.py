"""Opening the store that the settings name, for the length of one command."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from adjudge_services.access import command_line_user
from adjudge_services.cli.output import exit_with_error
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
from judge_server.errors import ServiceError
from rubric_store import RubricStore

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
