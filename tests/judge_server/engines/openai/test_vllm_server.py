"""The contract of every engine, applied to the OpenAI chat API engine over vLLM's protocol with its batch route."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from judge_server.engines.openai.engine import OpenAIEngine
from tests.judge_server.engines import test_contract as contract
from tests.judge_server.engines.fixtures import started
from tests.judge_server.engines.servers.vllm_server import CONTEXT_TOKENS, VllmServer, vllm_server

pytestmark = pytest.mark.asyncio(loop_scope="session")

globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and "before_start" not in name}
)


@pytest.fixture(scope="module")
def vllm() -> Iterator[VllmServer]:
    """The server of this module."""
    with vllm_server() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def engine(vllm: VllmServer) -> AsyncIterator[OpenAIEngine]:
    """An engine over the server."""
    made = await started(OpenAIEngine(vllm.url))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare(vllm: VllmServer) -> AsyncIterator[OpenAIEngine]:
    """An engine that the test may break."""
    made = await started(OpenAIEngine(vllm.url))
    yield made
    await made.close()


async def test_the_engine_finds_out_what_vllm_offers(vllm: VllmServer, spare: OpenAIEngine) -> None:
    found = await spare.start()
    able = found.capabilities
    assert (able.logprobs, able.json_schema, able.seeds, able.prefix_in_flight) == (True, True, True, True)
    assert found.engine == "OpenAI chat API of vllm (uvicorn)"
    assert found.context_tokens == CONTEXT_TOKENS
    assert spare.endpoint is not None
    assert spare.endpoint.batches
