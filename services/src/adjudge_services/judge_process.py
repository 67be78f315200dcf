"""The process `adjudge judge`: one engine, or a pool of them, and its queue, for `adjudge api` processes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from adjudge_services.judges import build_executor, build_judge, load_judge, wait_for_engine_failure
from adjudge_services.settings import Settings
from judge_server.api.judge_process import JudgeProcess, create_judge_app
from judge_server.errors import EngineStartError


def build_judge_app(settings: Settings, *, on_failure: Callable[[str], None]) -> FastAPI:
    """Build the application of a judge process; its engine loads in the background.

    `on_failure` is called with the reason if the engine cannot be loaded or dies. Raises `ValueError` for an unknown
    engine.
    """
    token = settings.judge_token
    process = JudgeProcess(token.get_secret_value() if token else None, open_metrics=settings.metrics == "open")
    judge = build_judge(build_executor(settings), settings)

    def set_problem(why: str) -> None:
        process.problem = why

    async def run() -> None:
        try:
            await load_judge(judge, set_problem)
        except EngineStartError as error:
            process.problem = str(error)
            on_failure(process.problem)
            return
        process.judge = judge
        on_failure(await wait_for_engine_failure([judge]))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await judge.close()

    return create_judge_app(process, lifespan)
