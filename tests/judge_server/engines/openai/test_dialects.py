"""Servers of the OpenAI chat API that people use, each with its own deviations, under the contract of every engine."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from judge_server.engines.openai.engine import OpenAIEngine
from tests.judge_server.engines import test_contract as contract
from tests.judge_server.engines.fixtures import identity_of, started
from tests.judge_server.engines.servers.dialects import (
    CONTEXT_TOKENS,
    KINDS,
    DialectServer,
    ServerKind,
    dialect_server,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and "before_start" not in name}
)


async def over(server: DialectServer) -> OpenAIEngine:
    """A started engine over a server."""
    return await started(OpenAIEngine(server.url, model=server.kind.named, context_tokens=CONTEXT_TOKENS))


@pytest_asyncio.fixture(params=KINDS, loop_scope="session", scope="session")
async def served(request: pytest.FixtureRequest) -> AsyncIterator[DialectServer]:
    """A server of each kind."""
    async with dialect_server(KINDS[request.param]) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def engine(served: DialectServer) -> AsyncIterator[OpenAIEngine]:
    """A started engine over a server of each kind, which tests leave running."""
    made = await over(served)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare(served: DialectServer) -> AsyncIterator[OpenAIEngine]:
    """An engine that the test may break."""
    made = await over(served)
    yield made
    await made.close()


@pytest.fixture
def least_tokens(engine: OpenAIEngine) -> int:
    """The smallest token limit that the server takes."""
    assert engine.endpoint is not None
    return engine.endpoint.dialect.least_tokens


async def test_the_engine_says_what_was_negotiated(engine: OpenAIEngine, served: DialectServer) -> None:
    assert identity_of(engine).decoding == served.kind.decoding


async def test_what_was_refused_at_the_start_is_not_sent_again(engine: OpenAIEngine, served: DialectServer) -> None:
    before = len(served.asked)
    for form in (contract.YES_NO, contract.STORY, contract.WRITTEN):
        await contract.replies(engine, contract.asked("Is it?", answer=form))
    kind: ServerKind = served.kind
    for body in served.asked[before:]:
        assert not kind.refuses.keys() & body.keys()
        assert kind.refuses_value(body) is None
