"""The process `adjudge judge`: one engine, or a pool of them, and the queue in front of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from adjudge_services.judges import engine_of, judge_at
from adjudge_services.settings import Settings
from judge_server.errors import EngineStartError
from judge_server.judging.engine_desk import EngineDesk
from judge_server.prompts.fencing import Fence
from judge_server.remote import JudgeProcess, create_judge_app


def build_judge_app(settings: Settings, *, on_failure: Callable[[str], None]) -> FastAPI:
    """The application of a judge process, whose engine loads in the background; `on_failure` is told why it does not.

    Raises `ValueError` where there is no such engine.
    """
    token = settings.judge_token
    process = JudgeProcess(token.get_secret_value() if token else None)
    judge = judge_at(
        EngineDesk(engine_of(settings), rules=settings.queue_rules), settings, Fence(settings.fencing_secret())
    )

    async def start() -> None:
        try:
            await judge.start()
        except EngineStartError as error:
            process.problem = str(error)
            on_failure(process.problem)
            return
        process.judge = judge

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(start())
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await judge.close()

    return create_judge_app(process, lifespan)
