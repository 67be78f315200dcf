"""Opening the store of projects and keys that the settings name, for the length of one command."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from adjudge_services.access import command_line_user
from adjudge_services.cli.output import exit_with_error
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
from rubric_store import TenantStore

Result = TypeVar("Result")


def with_tenants(work: Callable[[TenantStore], Coroutine[Any, Any, Result]]) -> Result:
    """Run work on the store; what is wrong with it is told on stderr, and ends the command with status 1."""

    async def run() -> Result:
        settings = Settings()
        await prepare_store(settings)
        tenants = TenantStore(settings.store_url, actor=command_line_user)
        try:
            return await work(tenants)
        finally:
            await tenants.close()

    try:
        return asyncio.run(run())
    except (StartError, ValueError) as error:
        exit_with_error(str(error))
    except LookupError as error:
        exit_with_error(str(error.args[0]))


def format_time(moment: datetime | None) -> str:
    """A moment to the minute, in UTC; a dash for none."""
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%MZ}"
