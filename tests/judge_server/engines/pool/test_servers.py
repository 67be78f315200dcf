"""A pool of two real servers of the OpenAI API: the parts of the engine contract that depend on the pool."""

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.pool import EnginePool
from judge_server.scheduling.pools import PoolRules
from tests.judge_server.engines.fixtures import CONTEXT_TOKENS, asked, identity_of, replies, started
from tests.judge_server.engines.openai.fixtures import LlamaCppServer
from tests.judge_server.engines.openai.fixtures import llamacpp_server as other_llamacpp_server
from tests.judge_server.engines.test_contract import (
    test_a_call_that_is_cancelled_midway_leaves_the_engine_free,
    test_after_close_every_call_fails_as_engine_and_it_is_not_ready,
    test_an_answer_that_is_abandoned_midway_leaves_the_engine_free,
    test_an_over_long_prompt_fails_as_truncated_input_and_the_next_one_works,
    test_calls_of_every_form_may_share_a_batch,
    test_every_call_gets_one_reply_aligned_with_it,
    test_the_prompt_counted_is_the_longest_of_the_batch,
    test_token_counts_predict_whether_a_batch_fits_the_context,
)

__all__ = [
    "other_llamacpp_server",
    "test_a_call_that_is_cancelled_midway_leaves_the_engine_free",
    "test_after_close_every_call_fails_as_engine_and_it_is_not_ready",
    "test_an_answer_that_is_abandoned_midway_leaves_the_engine_free",
    "test_an_over_long_prompt_fails_as_truncated_input_and_the_next_one_works",
    "test_calls_of_every_form_may_share_a_batch",
    "test_every_call_gets_one_reply_aligned_with_it",
    "test_the_prompt_counted_is_the_longest_of_the_batch",
    "test_token_counts_predict_whether_a_batch_fits_the_context",
]

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def pool_of(*servers: LlamaCppServer) -> EnginePool:
    """A started pool of these servers without health checks, which a busy test machine could fail."""

    def engine(server: LlamaCppServer) -> OpenAIEngine:
        return OpenAIEngine(server.base_url, api_key=server.api_key, context_tokens=CONTEXT_TOKENS)

    return await started(
        EnginePool({server.base_url: partial(engine, server) for server in servers}, PoolRules(interval_s=3600.0))
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(llamacpp_server: LlamaCppServer, other_llamacpp_server: LlamaCppServer) -> AsyncIterator[EnginePool]:
    """The shared pool, which tests leave running."""
    made = await pool_of(llamacpp_server, other_llamacpp_server)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def spare(llamacpp_server: LlamaCppServer, other_llamacpp_server: LlamaCppServer) -> AsyncIterator[EnginePool]:
    """A pool that the test may break; the servers stay."""
    made = await pool_of(llamacpp_server, other_llamacpp_server)
    yield made
    await made.close()


async def test_both_servers_are_one_judge_and_a_response_reuses_its_cached_prefix(engine: EnginePool) -> None:
    assert identity_of(engine).concurrent_batches == 2
    first = await replies(engine, asked("Is it?", "Is it not?", shared="Response 0."))
    again = await replies(engine, asked("Is it?", "Is it not?", shared="Response 0."))
    for one, other in zip(first, again, strict=True):
        assert one.masses == pytest.approx(other.masses, abs=0.05)
    assert sum(reply.tokens_computed for reply in again) < sum(reply.tokens_computed for reply in first)
    assert [view.state for view in engine.members()] == ["closed", "closed"]
