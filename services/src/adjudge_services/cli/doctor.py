"""`adjudge doctor`: check an installation part by part, and say what to do about what is wrong."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.doctor_deployment import CheckWarning, judges, keys, operations, queue
from adjudge_services.cli.output import out
from adjudge_services.judges import build_engine
from adjudge_services.settings import Settings
from adjudge_services.wiring import prepare_store
from judge_server.cache import cache_from_url
from judge_server.judging.protocols import YES_NO
from judge_server.judging.replies import read_yes_no
from judge_server.ports import Batch, Call, JudgeResult, Reply, TokenChoice
from rubric_store import RubricStore

Check = Callable[[Settings], Coroutine[Any, Any, str]]


def doctor() -> None:
    """Check an installation part by part, and say what to do; exit with 1 if any part is wrong.

    With ADJUDGE_JUDGES the judges there are checked, without it the model that this host would judge with.
    """
    settings = Settings()
    table = Table("check", "result", "what was seen", title="adjudge doctor", title_justify="left")
    wrong: set[str] = set()
    for name, check in (COMMON_CHECKS | (REMOTE_CHECKS if settings.judges else LOCAL_CHECKS)).items():
        if wrong & PREREQUISITES.get(name, set()):
            table.add_row(name, "[dim]not checked[/]", f"needs the {' and the '.join(sorted(PREREQUISITES[name]))}")
            continue
        try:
            seen = asyncio.run(check(settings))
            result = "[yellow]doubtful[/]" if isinstance(seen, CheckWarning) else "[green]ok[/]"
        except Exception as error:  # noqa: BLE001 - whatever is wrong belongs in the table
            seen, result = str(error) or type(error).__name__, "[bold red]wrong[/]"
            wrong.add(name)
        table.add_row(name, result, escape(seen))
    out.print(table)
    raise typer.Exit(1 if wrong else 0)


async def _python(settings: Settings) -> str:
    return sys.version.split()[0]


async def _store(settings: Settings) -> str:
    await prepare_store(settings)
    store = RubricStore(settings.store_url)
    try:
        if not await store.ready():
            raise RuntimeError("it cannot be read; check ADJUDGE_DATABASE_URL")
    finally:
        await store.close()
    return settings.store_url.partition("@")[2] or settings.store_url


async def _cache(settings: Settings) -> str:
    cache = cache_from_url(settings.cache_url)
    try:
        if not await cache.ready():
            raise RuntimeError("it cannot be reached; check ADJUDGE_CACHE_URL")
    finally:
        await cache.close()
    return settings.cache_url.rpartition("@")[2]


async def _secret(settings: Settings) -> str:
    length = len(settings.fencing_secret())
    if length < 16:
        raise RuntimeError("ADJUDGE_FENCE_SECRET is shorter than 16 bytes")
    return f"{length} bytes"


async def _judge(settings: Settings) -> str:
    """Load the engine and ask it something that any model can tell."""
    engine = build_engine(settings)
    try:
        identity = await engine.start()
        token_choice = TokenChoice(YES_NO)
        call = Call("Is the word 'apple' in this list? Answer yes or no.", token_choice)
        batch = Batch("Answer with one word: yes or no.", "apple, pear, plum\n", (call,))
        outcome = await anext(outcome async for _, outcome in engine.answer(batch))
        finding = (
            read_yes_no(token_choice, outcome, min_choice_mass=settings.min_choice_mass)
            if isinstance(outcome, Reply)
            else outcome
        )
        if not isinstance(finding, JudgeResult):
            raise RuntimeError(f"it gave no verdict: {finding.detail}")
        if finding.probability is None or finding.choice_mass is None:
            return f"{identity.model}: says {'yes' if finding.score else 'no'}, and shows no probabilities"
        return f"{identity.model}: P(yes) {finding.probability:.2f}, menu mass {finding.choice_mass:.2f}"
    finally:
        await engine.close()


COMMON_CHECKS: dict[str, Check] = {
    "python": _python,
    "rubric store": _store,
    "verdict cache": _cache,
    "fence secret": _secret,
    "keys": keys,
    "queue": queue,
    "operations": operations,
}
PREREQUISITES = {"keys": {"rubric store"}, "operations": {"rubric store"}}
LOCAL_CHECKS: dict[str, Check] = {"judge": _judge}
REMOTE_CHECKS: dict[str, Check] = {"judges": judges}
