"""Calls of a batch as one request to vLLM's batch route: each gets the answer that it gets alone, come what may."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from judge_server.engines.openai.batched_chat import MAX_BATCH_BYTES, MAX_CONVERSATIONS
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.pool import EnginePool
from judge_server.ports import (
    Batch,
    Call,
    CallFailure,
    JsonOutput,
    LabelChoice,
    Reply,
    SamplingOptions,
    TextOutput,
    TokenChoice,
)
from tests.judge_server.engines.fixtures import YES_NO, answers, asked, failures, replies
from tests.judge_server.engines.servers.vllm_server import VllmServer, vllm_server

QUESTIONS = tuple(f"Does it say that {n} is prime?" for n in range(12))
STEP = LabelChoice(("1", "2"), ", step ", "Which step?")
FORMS = (YES_NO, LabelChoice(("a", "b")), TokenChoice(YES_NO.options, STEP), TextOutput(20))


@pytest.fixture
def vllm() -> Iterator[VllmServer]:
    """A server of vLLM's protocol for one test."""
    with vllm_server() as server:
        yield server


@asynccontextmanager
async def judge(server: VllmServer, **options: int) -> AsyncIterator[OpenAIEngine]:
    """A started engine, without its own requests in the server's list."""
    engine = OpenAIEngine(server.url, **options)
    await engine.start()
    server.requests.clear()
    yield engine
    await engine.close()


def verdicts(found: list[Reply]) -> list[Reply]:
    """Replies without their token counts."""
    return [reply._replace(tokens_computed=0, tokens_reused=0, tokens_written=0) for reply in found]


async def alone(batch: Batch) -> list[Reply]:
    """The replies of a server without the batch route."""
    with vllm_server(has_batch_route=False) as server:
        async with judge(server) as engine:
            found = await replies(engine, batch)
        assert not server.batches()
        return found


async def test_a_batch_of_calls_is_one_request() -> None:
    with vllm_server() as server:
        async with judge(server) as engine:
            await replies(engine, asked(*QUESTIONS))
        assert [len(conversations) for conversations in server.batches()] == [12]
        assert not server.alone()


async def test_replies_of_every_form_are_those_of_single_calls(vllm: VllmServer) -> None:
    batch = Batch("Judge.", "7 is prime.\n", tuple(Call(question, form) for question in QUESTIONS for form in FORMS))
    async with judge(vllm, concurrency=64) as engine:
        together = await replies(engine, batch)
    assert verdicts(together) == verdicts(await alone(batch))
    assert len({reply.masses for reply in together}) > 6
    assert not vllm.alone()


async def test_the_second_turns_of_a_batch_go_together_too(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        found = await replies(engine, asked(*QUESTIONS, answer=TokenChoice(YES_NO.options, STEP)))
    assert [len(conversations) for conversations in vllm.batches()] == [12, 12]
    assert {reply.chosen for reply in found} == {"1", "2"}


async def test_a_batch_names_its_session_like_single_calls(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        for n in range(2):
            await replies(engine, asked(*QUESTIONS, shared=f"{n}.", answer=TextOutput(20)))
            await replies(engine, asked(*QUESTIONS[:2], shared=f"{n}.", answer=TextOutput(200)))
    first, *others = vllm.sessions[-6:]
    assert first is not None
    assert others[:2] == [first, first]
    assert first not in others[2:]
    assert len(set(others[2:])) == 1


async def test_calls_that_differ_in_a_field_go_apart(vllm: VllmServer) -> None:
    calls = [Call(QUESTIONS[n], TextOutput(20), sample=SamplingOptions(1.0, n % 3)) for n in range(9)]
    async with judge(vllm) as engine:
        together = await replies(engine, Batch("Judge.", "", tuple(calls)))
    assert Counter(body["seed"] for _, body in vllm.requests) == {0: 1, 1: 1, 2: 1}
    assert [len(conversations) for conversations in vllm.batches()] == [3, 3, 3]
    assert verdicts(together) == verdicts(await alone(Batch("Judge.", "", tuple(calls))))


async def test_long_answers_are_requests_of_their_own(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        await replies(engine, asked(*QUESTIONS, answer=JsonOutput('{"type": "boolean"}', 200)))
    assert not vllm.batches()
    assert len(vllm.alone()) == 12


async def test_a_request_has_a_bounded_number_of_conversations(vllm: VllmServer) -> None:
    questions = [f"Is {n} prime?" for n in range(MAX_CONVERSATIONS + 2)]
    async with judge(vllm, concurrency=len(questions)) as engine:
        await replies(engine, asked(*questions))
    assert sorted(len(conversations) for conversations in vllm.batches()) == [2, MAX_CONVERSATIONS]


async def test_a_request_has_a_bounded_size(vllm: VllmServer) -> None:
    image = "data:image/png;base64," + "A" * (MAX_BATCH_BYTES * 2 // 5)
    async with judge(vllm, context_tokens=10**7) as engine:
        await answers(engine, replace(asked(*QUESTIONS[:5]), images=(image,)))
    assert [len(conversations) for conversations in vllm.batches()] == [2, 2]


async def test_a_request_has_no_more_conversations_than_calls_may_be_in_flight(vllm: VllmServer) -> None:
    async with judge(vllm, concurrency=5) as engine:
        await replies(engine, asked(*QUESTIONS))
    assert [len(conversations) for conversations in vllm.batches()] == [5, 5, 2]


async def test_tokens_are_shared_out_and_add_up_to_those_of_the_answer(vllm: VllmServer) -> None:
    batch = asked(*QUESTIONS, "Is it, after all that has been said and written about this number, prime?")
    async with judge(vllm) as engine:
        together = await replies(engine, batch)
    single = await alone(batch)
    assert sum(reply.tokens_computed for reply in together) == sum(reply.tokens_computed for reply in single)
    assert [reply.tokens_written for reply in together] == [reply.tokens_written for reply in single]
    assert together[-1].tokens_computed > together[0].tokens_computed
    assert not any(reply.counts_clipped for reply in together)


async def test_tokens_written_are_those_of_each_call(vllm: VllmServer) -> None:
    batch = asked(*QUESTIONS, answer=LabelChoice(("a", "a longer answer than that")))
    async with judge(vllm) as engine:
        together = await replies(engine, batch)
    assert [reply.tokens_written for reply in together] == [reply.tokens_written for reply in await alone(batch)]
    assert len({reply.tokens_written for reply in together}) == 2


# What the batch route may do wrong

ASKED_AGAIN = {
    "reversed": 0,
    "missing": 1,
    "doubled": 1,
    "nameless": 12,
    "erring choice": 1,
    "unreadable": 1,
    "only one": 11,
    "extra": 12,
    "from one": 12,
    "no choices": 12,
    "in words": 12,
    "refused": 12,
    "broken": 12,
}


@pytest.mark.parametrize(("fault", "again"), ASKED_AGAIN.items())
async def test_what_the_batch_route_does_wrong_changes_no_reply(vllm: VllmServer, fault: str, again: int) -> None:
    async with judge(vllm) as engine:
        vllm.fault = fault
        found = await replies(engine, asked(*QUESTIONS))
    assert verdicts(found) == verdicts(await alone(asked(*QUESTIONS)))
    assert len(vllm.batches()) == 1
    assert len(vllm.alone()) == again


@pytest.mark.parametrize("fault", ["swapped", "from one", "missing", "doubled", "no choices", "in words", "broken"])
async def test_a_route_that_errs_from_the_start_is_not_used(vllm: VllmServer, fault: str) -> None:
    vllm.fault = fault
    async with judge(vllm) as engine:
        assert engine.endpoint is not None
        assert not engine.endpoint.batches
        found = await replies(engine, asked(*QUESTIONS))
    assert not vllm.batches()
    assert verdicts(found) == verdicts(await alone(asked(*QUESTIONS)))


async def test_one_conversation_that_is_too_long_fails_alone(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        first, long, last = await answers(engine, asked("Is it?", "word " * 600, "Is it not?"))
    assert isinstance(first, Reply)
    assert isinstance(last, Reply)
    assert isinstance(long, CallFailure)
    assert long.kind == "truncated_input"


async def test_one_conversation_that_breaks_the_server_fails_alone(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        first, broken, last = await answers(engine, asked("Is it?", "crash", "Is it not?"))
    assert isinstance(first, Reply)
    assert isinstance(last, Reply)
    assert broken == CallFailure("engine", "HTTP 500: Internal server error")


@pytest.mark.parametrize("fault", ["gone", "not allowed", "not implemented", "refused"])
async def test_a_route_that_goes_away_is_left_with_one_line_in_the_log(
    vllm: VllmServer, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    async with judge(vllm, concurrency=64) as engine:
        vllm.fault = fault
        with caplog.at_level(logging.WARNING, logger="adjudge"):
            await asyncio.gather(*(replies(engine, asked(*QUESTIONS, shared=f"{n}.")) for n in range(3)))
            tried = len(vllm.batches())
            await replies(engine, asked(*QUESTIONS))
    assert len(vllm.batches()) == tried
    (line,) = caplog.messages
    assert "takes no lists of conversations any more" in line


async def test_a_request_that_is_too_large_makes_the_next_ones_smaller(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        vllm.most_conversations = 8
        first, second = [await replies(engine, asked(*QUESTIONS)) for _ in range(2)]
    assert verdicts(first) == verdicts(second) == verdicts(await alone(asked(*QUESTIONS)))
    assert len(vllm.alone()) <= 13
    assert all(len(conversations) <= 8 for conversations in vllm.batches()[1:])


@pytest.mark.parametrize(("fault", "kind"), [("overloaded", "overloaded"), ("away", "engine"), ("locked", "engine")])
async def test_a_server_that_cannot_answer_now_is_not_asked_for_each_call(
    vllm: VllmServer, fault: str, kind: str
) -> None:
    async with judge(vllm) as engine:
        vllm.fault = fault
        found = await failures(engine, asked(*QUESTIONS))
        assert {failure.kind for failure in found} == {kind}
        assert len(vllm.requests) == 1
        vllm.fault = ""
        await replies(engine, asked(*QUESTIONS))
    assert [len(conversations) for conversations in vllm.batches()] == [12, 12]


async def test_an_answer_of_another_model_is_refused(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        vllm.fault = "other model"
        for failure in await failures(engine, asked(*QUESTIONS)):
            assert "verdicts of different weights must not be mixed" in failure.detail


async def test_a_caller_who_leaves_closes_the_request(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        vllm.fault = "slow"
        task = asyncio.create_task(answers(engine, asked(*QUESTIONS)))
        await until_batches(vllm, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until_left(vllm, 1)
        vllm.fault = ""
        await replies(engine, asked(*QUESTIONS))
    assert not vllm.alone()


async def test_an_answer_that_is_abandoned_closes_the_request(vllm: VllmServer) -> None:
    async with judge(vllm) as engine:
        vllm.fault = "slow"
        async with aclosing(engine.answer(asked(*QUESTIONS))) as outcomes:  # type: ignore[type-var]
            waiting = asyncio.ensure_future(anext(outcomes))
            await until_batches(vllm, 1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await until_left(vllm, 1)
    assert not vllm.alone()


async def test_calls_whose_batch_gets_no_answer_in_time_are_asked_alone(vllm: VllmServer) -> None:
    engine = OpenAIEngine(vllm.url, timeout_s=0.5)
    await engine.start()
    vllm.requests.clear()
    vllm.fault = "slow"
    found = await replies(engine, asked(*QUESTIONS))
    await until_left(vllm, 1)
    await engine.close()
    assert verdicts(found) == verdicts(await alone(asked(*QUESTIONS)))
    assert len(vllm.batches()) == 1


async def test_a_pool_sends_a_batch_to_one_member_as_one_request() -> None:
    with vllm_server() as one, vllm_server() as other:
        pool = EnginePool({server.root: lambda server=server: OpenAIEngine(server.url) for server in (one, other)})
        await pool.start()
        one.requests.clear()
        other.requests.clear()
        together = await replies(pool, asked(*QUESTIONS))
        await pool.close()
        assert [len(conversations) for conversations in (*one.batches(), *other.batches())] == [12]
        assert not one.alone() + other.alone()
    assert verdicts(together) == verdicts(await alone(asked(*QUESTIONS)))


async def test_members_of_a_pool_may_differ_in_the_batch_route() -> None:
    with vllm_server() as one, vllm_server(has_batch_route=False) as other:
        pool = EnginePool({server.root: lambda server=server: OpenAIEngine(server.url) for server in (one, other)})
        await pool.start()
        for n in range(20):
            await replies(pool, asked(*QUESTIONS[:2], shared=f"{n}."))
        await pool.close()
        assert one.batches()
        assert not other.batches()


async def until_batches(server: VllmServer, count: int) -> None:
    """Wait until the server has got as many batch requests."""
    async with asyncio.timeout(20):
        while len(server.batches()) < count:  # noqa: ASYNC110 - it happens in another thread
            await asyncio.sleep(0.01)


async def until_left(server: VllmServer, count: int) -> None:
    """Wait until the client has closed as many requests."""
    async with asyncio.timeout(20):
        while server.left < count:  # noqa: ASYNC110 - it happens in another thread
            await asyncio.sleep(0.01)
