"""Use the store of projects and keys for `adjudge projects` and `adjudge keys`."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from adjudge_services.cli.output import exit_with_error
from adjudge_services.settings import Settings
from adjudge_services.store import StartError, command_line_user, prepare_store
from rubric_store import TenantStore
from trainer_client.wire.problems import field_errors
from trainer_client.wire.tenants import Limits

Result = TypeVar("Result")


def with_tenants(work: Callable[[TenantStore], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` on the store of projects; on errors print the message and exit with 1."""

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
    """A time in UTC to the minute; a dash for None."""
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%MZ}"


def changed_limits(
    before: Limits, weight: str | None, requests: str | None, tokens_per_day: str | None, tokens_total: str | None
) -> Limits:
    """The limits with those changed that are given."""
    given = {
        "weight": weight,
        "requests_per_minute": requests,
        "tokens_per_day": tokens_per_day,
        "tokens_total": tokens_total,
    }
    changed = {name: None if text == "none" else text for name, text in given.items() if text is not None}
    try:
        return Limits.model_validate({**before.model_dump(), **changed})
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
        exit_with_error(f"--{wrong.field.replace('_', '-')}: {wrong.message}")
