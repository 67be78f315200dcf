"""The contract of every engine, applied to the OpenAI chat API engine with a real `vllm serve` and its batch route."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from judge_server.engines.openai.engine import OpenAIEngine
from tests.judge_server.engines import test_contract as contract
from tests.judge_server.engines.fixtures import started
from tests.vllm import test_serve

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and "before_start" not in name}
)

served = test_serve.served


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(served: str) -> AsyncIterator[OpenAIEngine]:
    """An engine over the server, which tests leave running."""
    made = await started(OpenAIEngine(served))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare(served: str) -> AsyncIterator[OpenAIEngine]:
    """An engine over the server that the test may break."""
    made = await started(OpenAIEngine(served))
    yield made
    await made.close()
