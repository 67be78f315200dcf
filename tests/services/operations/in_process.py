"""A service inside this process that runs operations itself, and helpers for its tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2

from adjudge_services.judges import local_judges
from adjudge_services.settings import Settings
from adjudge_services.store import prepare_store
from adjudge_services.wiring import Intervals, build_app
from judge_server.scoring.combined import AnyJudge
from tests.fixtures.short_intervals import POLL_INTERVAL_S, RECORDER_TIMES
from trainer_client import AsyncClient
from trainer_client.wire.operations import Operation

INTERVALS = Intervals(RECORDER_TIMES, POLL_INTERVAL_S)

Start = Callable[..., Awaitable[AsyncClient]]
JudgesOf = Callable[[Settings], dict[str, AnyJudge]]


@asynccontextmanager
async def serving_within(
    engine: str = "scripted://hash",
    judges_of: JudgesOf = local_judges,
    *,
    clock: Callable[[], float] = time.monotonic,
    **given: Any,
) -> AsyncIterator[httpx2.ASGITransport]:
    """Run a service with these settings in this process; yield a transport to it. `clock` is that of its keys."""
    settings = Settings.with_options(engine_url=engine, **given)
    await prepare_store(settings)
    service = build_app(settings, judges_of, wait_for_judge=True, intervals=INTERVALS, clock=clock)
    async with service.router.lifespan_context(service):
        yield httpx2.ASGITransport(service, raise_app_exceptions=False)


async def started(closing: AsyncExitStack, engine: str = "scripted://hash", **given: Any) -> AsyncClient:
    """Return a client for a service with these settings; `closing` closes both."""
    transport = await closing.enter_async_context(serving_within(engine, **given))
    return await closing.enter_async_context(AsyncClient("http://localhost", transport=transport))


async def end_of(client: AsyncClient, id_: str) -> Operation:
    """Follow the operation to its end."""
    return [operation async for operation in client.follow(id_)][-1]


async def results_of(client: AsyncClient, id_: str) -> list[dict[str, Any]]:
    """Return its results in input order."""
    return sorted([one async for one in client.operation_results(id_)], key=lambda one: int(str(one["index"])))


async def recorded(http: httpx2.AsyncClient, uses: int) -> dict[str, Any]:
    """Wait until this many verdicts are recorded and none is waiting; return the figures of the run `r`."""
    async with asyncio.timeout(60):
        while True:
            state = (await http.get("/v1/ledger")).json()
            if state["recorded"] >= uses and not state["waiting"]:
                return dict((await http.get("/v1/runs/r")).json()["run"])
            await asyncio.sleep(0.02)
