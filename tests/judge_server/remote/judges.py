"""Judge processes for tests: their application on a real port of this event loop, so that streams work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from judge_server.api.judge_process import HEARTBEAT_INTERVAL_S, JudgeProcess, create_judge_app
from judge_server.ports import Engine
from judge_server.remote.executor import JudgeClient, JudgeWaits, RemoteExecutor
from judge_server.scheduling.pools import PoolRules
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from tests.fixtures.ports import unused_port
from tests.judge_server import support

TOKEN = "what apis and judges of this deployment know"


class ListeningJudge:
    """A judge that listens. After `stop`, `start` listens again on the same port."""

    def __init__(
        self, judge: Judge, token: str | None = TOKEN, heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S
    ) -> None:
        self.judge = judge
        self.process = JudgeProcess(token, judge, flush_interval_s=0.01, heartbeat_interval_s=heartbeat_interval_s)
        self._port = unused_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen."""
        app = create_judge_app(self.process)
        config = uvicorn.Config(app, port=self._port, log_level="error", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Break every connection and stop listening, as a killed process would."""
        if self._server is None or self._serving is None:
            return
        for listener in self._server.servers:
            listener.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._server = None


@asynccontextmanager
async def judges(
    *engines: Engine | None,
    queue_calls: int = 1000,
    adapters: Path | None = None,
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
) -> AsyncIterator[list[ListeningJudge]]:
    """A listening judge for each engine, which loads adapters from this folder."""
    options: dict[str, Any] = {"queue_calls": queue_calls, "adapters": adapters}
    made = [await support.judge(engine, **options) for engine in engines]  # type: ignore[arg-type]
    served = [ListeningJudge(judge, heartbeat_interval_s=heartbeat_interval_s) for judge in made]
    async with AsyncExitStack() as stack:
        for one in served:
            await one.start()
            stack.push_async_callback(one.judge.close)
            stack.push_async_callback(one.stop)
        yield served


@asynccontextmanager
async def api_of(*served: ListeningJudge, token: str | None = TOKEN, **waits: float) -> AsyncIterator[Judge]:
    """The started judge of an api in front of these. `waits` are fields of `JudgeWaits`."""
    executor = RemoteExecutor(
        [JudgeClient(one.url, token) for one in served],
        PoolRules(interval_s=0.05, health_timeout_s=5.0),
        waits=JudgeWaits(**waits),
    )
    made = Judge(executor, MemoryCache())
    try:
        await made.start()
        yield made
    finally:
        await made.close()
