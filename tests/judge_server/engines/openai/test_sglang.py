"""The contract of every engine, applied to the OpenAI chat API engine over SGLang's protocol, with a real model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.ports import Reply
from tests.fixtures.served_app import served
from tests.judge_server.engines import test_contract as contract
from tests.judge_server.engines.fixtures import CONTEXT_TOKENS, asked, replies, started
from tests.judge_server.engines.openai.fixtures import LlamaCppServer
from tests.judge_server.engines.servers.sglang_server import sglang_app

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and "before_start" not in name}
)


@asynccontextmanager
async def over_sglang(server: LlamaCppServer, *, cache_report: bool) -> AsyncIterator[OpenAIEngine]:
    """A started engine over SGLang's protocol."""
    app = sglang_app(server.base_url, server.api_key, CONTEXT_TOKENS, cache_report=cache_report)
    with served(app) as port:
        made = await started(OpenAIEngine(f"http://127.0.0.1:{port}/v1"))
        yield made
        await made.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(llamacpp_server: LlamaCppServer) -> AsyncIterator[OpenAIEngine]:
    """The shared engine, which tests leave running."""
    async with over_sglang(llamacpp_server, cache_report=True) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def spare(llamacpp_server: LlamaCppServer) -> AsyncIterator[OpenAIEngine]:
    """An engine that the test may break; the server does not report cached tokens."""
    async with over_sglang(llamacpp_server, cache_report=False) as made:
        yield made


async def test_the_engine_finds_out_what_sglang_offers(spare: OpenAIEngine) -> None:
    found = await spare.start()
    able = found.capabilities
    assert (able.logprobs, able.json_schema, able.seeds) == (True, True, True)
    assert (able.token_menus, able.prompt_logprobs, able.prefix_in_flight) == (False, False, False)
    assert found.engine == "OpenAI chat API of sglang (uvicorn)"
    assert found.context_tokens == CONTEXT_TOKENS


async def test_cached_tokens_are_counted_if_the_server_reports_them(engine: OpenAIEngine, spare: OpenAIEngine) -> None:
    with_report: list[Reply] = []
    for which in (engine, spare):
        first, again = [(await replies(which, asked("Is 7 prime?")))[0] for _ in range(2)]
        assert first.tokens_computed + first.tokens_reused == again.tokens_computed + again.tokens_reused > 0
        with_report.append(again)
    assert with_report[0].tokens_reused > 0
    assert with_report[1].tokens_reused == 0
