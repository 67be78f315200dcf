"""How calls fail over the OpenAI chat API: each misbehaviour of a server process is a failure of a defined kind."""

import asyncio
import json
import re

import pytest

from judge_server.engines.openai.calls import TEMPLATE_TOKENS
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.errors import EngineUnavailable
from judge_server.ports import Call, CallFailure, Reasoning, Reply
from tests.judge_server.engines.openai import fixtures as openai_fixtures
from tests.judge_server.engines.openai.fixtures import YES_NO, Endpoint, batch, outcomes
from tests.judge_server.engines.servers.misbehaving import TRIGGER, MisbehavingServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

endpoint = openai_fixtures.endpoint

KEY = "sk-only-for-tests"


SHAPE = "not a chat completion.*check the path of the engine URL"
FAILURES = {
    **dict.fromkeys(["html", "failing", "bare", "loading", "moved", "odd", "locked-later"], ("engine", "")),
    **dict.fromkeys(["empty", "text", "null", "deep", "zipped"], ("engine", SHAPE)),
    "nan": ("engine", "the log-probabilities cannot be read .*; check what serves the model"),
    **dict.fromkeys(["all-zero", "above-one", "beyond-floats", "sum-above-one"], ("engine", "which is impossible")),
    **dict.fromkeys(["impostor", "nameless"], ("engine", "answered as .*'judge-1' when the judge started")),
    **dict.fromkeys(["long", "long-sglang", "large"], ("truncated_input", "")),
    "reset": ("engine", "no answer from http"),
    "half": ("engine", "received 26 of 52 bytes"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_an_answer_that_cannot_be_used_is_a_failure_of_its_kind(endpoint: Endpoint, name: str) -> None:
    kind, says = FAILURES[name]
    failure = await endpoint.failure(name)
    assert failure.kind == kind
    assert re.search(says, failure.detail)


@pytest.mark.parametrize("name", ["counts-below-zero", "counts-too-many", "counts-in-words", "counts-nothing"])
async def test_impossible_token_counts_are_clipped_and_do_not_fail_the_call(endpoint: Endpoint, name: str) -> None:
    reply = await endpoint.reply(name, TRIGGER)
    assert reply.masses == pytest.approx((0.625, 0.25))
    assert reply.counts_clipped
    most = len(f"Answer yes or no.7 is prime.\n{TRIGGER}") + TEMPLATE_TOKENS
    assert 0 <= reply.tokens_computed + reply.tokens_reused <= most
    assert 0 <= reply.tokens_written <= 1
    assert not (await endpoint.reply(name, "Is it?")).counts_clipped


async def test_an_unreachable_server_is_an_engine_failure() -> None:
    server = MisbehavingServer()
    await server.start()
    engine = OpenAIEngine(server.url("good"))
    await engine.start()
    await server.close()
    for outcome in await outcomes(engine, batch("Is it?", "Is it not?")):
        assert isinstance(outcome, CallFailure)
        assert outcome.kind == "engine"
    assert not await engine.ready()
    await engine.close()


@pytest.mark.parametrize("name", ["silent", "stalled"])
async def test_an_unresponsive_server_is_a_timeout(endpoint: Endpoint, name: str) -> None:
    failure = await endpoint.failure(name, timeout_s=1.5)
    assert failure.kind == "timeout"
    assert "1.5 s" in failure.detail
    await endpoint.until("gone")


async def test_reading_an_endless_answer_stops_at_the_size_limit(endpoint: Endpoint) -> None:
    failure = await endpoint.failure("endless")
    assert failure.kind == "engine"
    assert "longer than 4194304 bytes" in failure.detail
    sent = endpoint.events.count("64 KiB")
    assert 64 <= sent < 640, "the engine should disconnect soon after four mebibytes"


@pytest.mark.parametrize(("name", "wait_s"), [("busy", 7), ("busy-until", 11), ("busy-unsaid", None), ("full", 2)])
async def test_a_busy_server_is_overloaded_for_its_retry_time(
    endpoint: Endpoint, name: str, wait_s: float | None
) -> None:
    failure = await endpoint.failure(name)
    assert (failure.kind, failure.retry_after_s) == ("overloaded", wait_s)


async def test_a_prompt_that_cannot_fit_is_not_sent(endpoint: Endpoint) -> None:
    outcome = await endpoint.only("good", "word " * 1000, context_tokens=30)
    assert isinstance(outcome, CallFailure)
    assert outcome.kind == "truncated_input"
    assert "?context=" in outcome.detail
    assert not endpoint.chats(of="word ")


async def test_a_refused_key_is_reported_but_never_shown(endpoint: Endpoint) -> None:
    refused = await endpoint.failure("locked-later", api_key=KEY)
    assert "refused the key" in refused.detail
    assert "ADJUDGE_ENGINE_API_KEY" in refused.detail
    told = await endpoint.failure("tells", api_key=KEY)
    assert told.detail == "HTTP 500: cannot forward Bearer [the key]"
    asked = endpoint.server.log.asked
    assert {a["headers"].get("authorization") for a in asked} == {f"Bearer {KEY}"}


async def test_a_failed_call_does_not_affect_the_others(endpoint: Endpoint) -> None:
    engine, _ = await endpoint.started("reset")
    first, broken, last = await outcomes(engine, batch("Is it?", TRIGGER, "Is it not?"))
    assert isinstance(first, Reply)
    assert isinstance(broken, CallFailure)
    assert isinstance(last, Reply)


async def test_closing_fails_calls_in_flight_and_all_later_ones(endpoint: Endpoint) -> None:
    engine, _ = await endpoint.started("silent")
    under_way = asyncio.create_task(outcomes(engine, batch(f"{TRIGGER} 1", "quick")))
    await endpoint.until("begin 1")
    assert await engine.ready()
    await engine.close()
    closed, *later = await under_way
    assert closed == CallFailure("engine", "the engine was closed")
    for outcome in [*later, *await outcomes(engine, batch("quick"))]:
        assert isinstance(outcome, CallFailure)
        assert outcome.kind == "engine"
    assert not await engine.ready()
    with pytest.raises(EngineUnavailable):
        await engine.count_tokens(batch("quick"))
    await endpoint.until("gone")


async def test_the_engine_is_not_ready_while_the_server_lists_other_models_or_does_not_answer(
    endpoint: Endpoint,
) -> None:
    engine, _ = await endpoint.started("good")
    assert await engine.ready()
    for does in ("swapped", "down", "mute"):
        endpoint.server.log.mood = does
        assert not await engine.ready()
    endpoint.server.log.mood = "well"
    assert await engine.ready()


async def test_the_token_count_of_a_batch_is_that_of_its_longest_call_by_the_servers_tokenizer(
    endpoint: Endpoint,
) -> None:
    engine, _ = await endpoint.started("vllm")
    short, long = batch("Is it?"), batch("Is it a prime number?")
    assert await engine.count_tokens(short) == len(["Answer", "yes", "or", "no.", "7", "is", "prime.", "Is", "it?"]) + 1
    assert await engine.count_tokens(batch("Is it?", "Is it a prime number?")) == await engine.count_tokens(long)
    reasons = batch(Call("Is it?", YES_NO, reasoning=Reasoning(100, "So what?"), think_tokens=10))
    assert await engine.count_tokens(reasons) == await engine.count_tokens(short) - 1 + 2 + 100 + 10 + 10 + 12


async def test_without_a_tokenizer_the_token_count_is_an_overestimate(endpoint: Endpoint) -> None:
    engine, _ = await endpoint.started("good")
    counted = await engine.count_tokens(batch("12345 \u6570\u5b66"))
    assert counted > len("12345") + len("\u6570\u5b66".encode()) + len("Answer yes or no.7 is prime.") // 4
    assert await engine.count_tokens(batch("Is it?")) < counted


async def test_the_request_has_only_standard_chat_api_fields(endpoint: Endpoint) -> None:
    await endpoint.reply("good", "Is it?")
    (asked,) = endpoint.chats(of="Is it?")
    assert asked.keys() == {"model", "messages", "max_tokens", "temperature", "logprobs", "top_logprobs"}
    assert json.loads(json.dumps(asked)) == asked
