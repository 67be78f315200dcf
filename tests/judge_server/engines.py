"""Engines for the contract suite. The llama.cpp one is loaded once, with the small model, and shared."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from judge_server.engines import LlamaCppEngine, ScriptedEngine
from judge_server.models import fetch
from judge_server.ports import Batch, CallFailed, Engine, Reply

MODEL = "qwen2.5-coder-0.5b"
CONTEXT_TOKENS = 600


async def llamacpp() -> LlamaCppEngine:
    """A started llama.cpp engine, its model fetched before."""
    engine = LlamaCppEngine(MODEL, context_tokens=CONTEXT_TOKENS, threads=1)
    await engine.start()
    return engine


@pytest.fixture(scope="session")
def fetched() -> None:
    """The model is here, fetched if need be, and whole."""
    fetch(MODEL)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def loaded(fetched: None) -> AsyncIterator[LlamaCppEngine]:
    """The shared llama.cpp engine: tests leave it running."""
    engine = await llamacpp()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare_llamacpp(fetched: None) -> AsyncIterator[LlamaCppEngine]:
    """A llama.cpp engine that the test may ruin."""
    engine = await llamacpp()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def scripted() -> AsyncIterator[ScriptedEngine]:
    """A started scripted engine."""
    engine = ScriptedEngine(context_tokens=CONTEXT_TOKENS)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture(params=["scripted", pytest.param("loaded", marks=pytest.mark.model)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """A started engine of each kind, to be left running."""
    made: Engine = request.getfixturevalue(request.param)
    return made


@pytest.fixture(params=["scripted", pytest.param("spare_llamacpp", marks=pytest.mark.model)])
def spare(request: pytest.FixtureRequest) -> Engine:
    """A started engine of each kind that the test may ruin."""
    made: Engine = request.getfixturevalue(request.param)
    return made


async def answers(engine: Engine, batch: Batch) -> list[Reply | CallFailed]:
    """Every call's outcome; fails where a call has none or two."""
    outcomes: dict[int, Reply | CallFailed] = {}
    async for index, outcome in engine.answer(batch):
        assert index not in outcomes
        outcomes[index] = outcome
    return [outcomes[index] for index in range(len(batch.calls))]
