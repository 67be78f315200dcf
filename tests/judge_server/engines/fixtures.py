"""Engines and calls for the contract suite. Engines with a real model load the small one and are shared.

The suite of another engine imports the tests of `test_engine_contract` and defines its own fixtures `engine`
and `spare`.
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
from tests.judge_server.engines.openai.fixtures import LlamaCppServer

MODEL = "qwen2.5-coder-0.5b"
CONTEXT_TOKENS = 600

YES = Option("yes", ("yes", "Yes", " yes", " Yes"))
NO = Option("no", ("no", "No", " no", " No"))
YES_NO = TokenChoice((YES, NO))

Started = TypeVar("Started", bound=Engine)
_IDENTITIES: WeakKeyDictionary[Any, EngineIdentity] = WeakKeyDictionary()


async def started(engine: Started) -> Started:
    """Start the engine, and record its identity for `identity_of`."""
    _IDENTITIES[engine] = await engine.start()
    return engine


def identity_of(engine: Engine) -> EngineIdentity:
    """The identity that the engine reported to `started`."""
    return _IDENTITIES[engine]


async def llamacpp(context_tokens: int = CONTEXT_TOKENS) -> LlamaCppEngine:
    """A started llama.cpp engine, whose model is already fetched."""
    return await started(LlamaCppEngine(MODEL, context_tokens=context_tokens, threads=1))


@pytest.fixture(scope="session")
def fetched() -> None:
    """Fetch the model if it is missing or incomplete."""
    fetch(MODEL)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def loaded(fetched: None) -> AsyncIterator[LlamaCppEngine]:
    """The shared llama.cpp engine, which tests leave running."""
    engine = await llamacpp()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare_llamacpp(fetched: None) -> AsyncIterator[LlamaCppEngine]:
    """A llama.cpp engine that the test may break."""
    engine = await llamacpp()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def openai_over_llamacpp(llamacpp_server: LlamaCppServer) -> AsyncIterator[OpenAIEngine]:
    """The shared engine over llama.cpp's own server, which tests leave running."""
    engine = await started(_over(llamacpp_server))
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare_openai(llamacpp_server: LlamaCppServer) -> AsyncIterator[OpenAIEngine]:
    """An engine over llama.cpp's own server; the test may break the engine but not the server."""
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
    """A started engine of each kind, which tests leave running."""
    made: Engine = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def identity(engine: Engine) -> EngineIdentity:
    """The identity that the shared engine reported."""
    return identity_of(engine)


@pytest.fixture
def least_tokens() -> int:
    """The smallest token limit that the engine takes."""
    return 1


@pytest.fixture(params=_SPARE)
def spare(request: pytest.FixtureRequest) -> Engine:
    """A started engine of each kind that the test may break."""
    made: Engine = request.getfixturevalue(request.param)
    return made


def asked(*questions: str, answer: AnswerForm = YES_NO, shared: str = "7 is prime.\n", **more: Any) -> Batch:
    """A batch of questions about one text with one form of answer; `more` are further fields of the calls."""
    return Batch("Answer yes or no.", shared, tuple(Call(question, answer, **more) for question in questions))


async def answers(engine: Engine, batch: Batch) -> list[Reply | CallFailure]:
    """The outcome of every call; fails if a call has none or several."""
    outcomes: dict[int, Reply | CallFailure] = {}
    async for index, outcome in engine.answer(batch):
        assert index not in outcomes
        outcomes[index] = outcome
    return [outcomes[index] for index in range(len(batch.calls))]


async def replies(engine: Engine, batch: Batch) -> list[Reply]:
    """The outcomes of all calls, which must be replies."""
    outcomes = await answers(engine, batch)
    assert all(isinstance(outcome, Reply) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Reply)]


async def failures(engine: Engine, batch: Batch) -> list[CallFailure]:
    """The outcomes of all calls, which must be failures."""
    outcomes = await answers(engine, batch)
    assert all(isinstance(outcome, CallFailure) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, CallFailure)]
