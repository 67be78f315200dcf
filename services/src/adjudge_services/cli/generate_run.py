"""What a run of `adjudge generate` needs, opened and closed in order: store, engine, the operations of a folder.

A folder has operations of its own, so that a run that was stopped is found again where its results are.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adjudge_services.access import command_line_user
from adjudge_services.judges import build_engine
from adjudge_services.settings import Settings
from adjudge_services.wiring import prepare_store
from judge_server.generation.job import GenerateJob
from judge_server.generation.writer import Writer
from judge_server.operations import InProcessOperations
from judge_server.ports import Engine
from judge_server.rubrics import PROJECT_ID
from rubric_store import RubricStore
from trainer_client.wire.operations import Operation

_OPERATIONS = ".operations"


@dataclass(slots=True)
class GenerationRun:
    """The operations of one folder, and the engine that they write with, once it was started."""

    engine: Engine
    operations: InProcessOperations
    writer: Writer | None = None

    async def start_engine(self) -> None:
        """Load the model; raises `EngineStartError` with the way out."""
        self.writer = Writer(self.engine, await self.engine.start())

    async def begin(self, request: dict[str, Any]) -> Operation:
        """Go on with what was left, if it is the same request; otherwise begin anew, and end what was left."""
        await self.operations.start()
        for unfinished in await self.operations.list(PROJECT_ID):
            if unfinished.ended:
                continue
            if unfinished.request == request:
                return unfinished
            await self.operations.cancel(PROJECT_ID, unfinished.id)
        return await self.operations.submit(PROJECT_ID, "generate_rubrics", request)


@asynccontextmanager
async def open_generation_run(settings: Settings, output: Path) -> AsyncIterator[GenerationRun]:
    """All of it for the results in `output`; the model is not loaded yet.

    Raises:
        StartError: the store cannot be opened.
        ValueError: there is no such engine.
    """
    await prepare_store(settings)
    engine = build_engine(settings)
    store = RubricStore(settings.store_url, actor=command_line_user)

    async def writer() -> Writer:
        assert generation.writer is not None
        return generation.writer

    job = GenerateJob(writer, store)
    generation = GenerationRun(engine, InProcessOperations(output / _OPERATIONS, {"generate_rubrics": job}))
    try:
        yield generation
    finally:
        await generation.operations.close()
        await engine.close()
        await store.close()
