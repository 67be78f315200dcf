"""Engines for the contract suite, and the calls it makes. Those with a real model load the small one, and are shared.

A suite of another engine imports the tests of `test_engine_contract` and has fixtures of its own by the names of
`engine`, `identity` and `spare`.
"""

from collections.abc import AsyncIterator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pytest
import pytest_asyncio

from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.scripted import ScriptedEngine
from judge_server.models import fetch
from judge_server.ports import AnswerForm, Batch, Call, CallFailure, Engine, EngineIdentity, Option, Reply, TokenChoice
from tests.judge_server.openai_fixtures import LlamaCppServer

MODEL = "qwen2.5-coder-0.5b"
CONTEXT_TOKENS = 600

YES = Option("yes", ("yes", "Yes", " yes", " Yes"))
NO = Option("no", ("no", "No", " no", " No"))
YES_NO = TokenChoice((YES, NO))

Started = TypeVar("Started", bound=Engine)
_IDENTITIES: WeakKeyDictionary[Any, EngineIdentity] = WeakKeyDictionary()


async def started(engine: Started) -> Started:
    """The engine, started; `identity_of` knows what it says it is."""
    _IDENTITIES[engine] = await engine.start()
    return engine


def identity_of(engine: Engine) -> EngineIdentity:
    """What an engine said it is when `started` started it."""
    return _IDENTITIES[engine]


async def llamacpp(context_tokens: int = CONTEXT_TOKENS) -> LlamaCppEngine:
    """A started llama.cpp engine, its model fetched before."""
    return await started(LlamaCppEngine(MODEL, context_tokens=context_tokens, threads=1))


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


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def openai_over_llamacpp(llamacpp_server: LlamaCppServer) -> AsyncIterator[OpenAIEngine]:
    """The shared engine over llama.cpp's own server: tests leave it running."""
    engine = await started(_over(llamacpp_server))
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare_openai(llamacpp_server: LlamaCppServer) -> AsyncIterator[OpenAIEngine]:
    """An engine over llama.cpp's own server that the test may ruin; the server stays."""
    engine = await started(_over(llamacpp_server))
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def scripted() -> AsyncIterator[ScriptedEngine]:
    """A started scripted engine."""
    engine = await started(ScriptedEngine(context_tokens=CONTEXT_TOKENS))
    yield engine
    await engine.close()


def _over(server: LlamaCppServer) -> OpenAIEngine:
    return OpenAIEngine(server.base_url, api_key=server.api_key, context_tokens=CONTEXT_TOKENS)


_MODEL = pytest.mark.model
_SHARED = ["scripted", pytest.param("loaded", marks=_MODEL), pytest.param("openai_over_llamacpp", marks=_MODEL)]
_SPARE = ["scripted", pytest.param("spare_llamacpp", marks=_MODEL), pytest.param("spare_openai", marks=_MODEL)]


@pytest.fixture(params=_SHARED)
def engine(request: pytest.FixtureRequest) -> Engine:
    """A started engine of each kind, to be left running."""
    made: Engine = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def identity(engine: Engine) -> EngineIdentity:
    """What the shared engine says it is."""
    return identity_of(engine)


@pytest.fixture(params=_SPARE)
def spare(request: pytest.FixtureRequest) -> Engine:
    """A started engine of each kind that the test may ruin."""
    made: Engine = request.getfixturevalue(request.param)
    return made


def asked(*questions: str, answer: AnswerForm = YES_NO, shared: str = "7 is prime.\n", **more: Any) -> Batch:
    """A batch of these questions about one text, their answers of one form; `more` are further fields of the calls."""
    return Batch("Answer yes or no.", shared, tuple(Call(question, answer, **more) for question in questions))


async def answers(engine: Engine, batch: Batch) -> list[Reply | CallFailure]:
    """Every call's outcome; fails where a call has none or two."""
    outcomes: dict[int, Reply | CallFailure] = {}
    async for index, outcome in engine.answer(batch):
        assert index not in outcomes
        outcomes[index] = outcome
    return [outcomes[index] for index in range(len(batch.calls))]


async def replies(engine: Engine, batch: Batch) -> list[Reply]:
    """Every call's outcome, which must be a reply."""
    outcomes = await answers(engine, batch)
    assert all(isinstance(outcome, Reply) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Reply)]


async def failures(engine: Engine, batch: Batch) -> list[CallFailure]:
    """Every call's outcome, which must be a failure."""
    outcomes = await answers(engine, batch)
    assert all(isinstance(outcome, CallFailure) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, CallFailure)]
