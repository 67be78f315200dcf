"""Calls of a batch share the computation of their prefix, by vLLM's own counters; cancellation stops work."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace

import psutil
import pytest

from judge_server.engines.vllm.engine import VllmEngine
from judge_server.engines.vllm.loading import CPU_BLOCK_TOKENS
from judge_server.errors import EngineUnavailable
from judge_server.ports import Call, CallFailure, JsonOutput
from tests.judge_server.engines.fixtures import answers, asked, failures, replies

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

ENDLESS = JsonOutput('{"type":"array","items":{"enum":["again"]},"minItems":500}', 600)


@dataclass(frozen=True)
class VllmCounters:
    """vLLM's counters: prompt tokens looked up and found in its cache, and requests in the engine core process."""

    asked: float
    hit: float
    requests: float


def counted(engine: VllmEngine) -> VllmCounters:
    """The current counters, read from the engine, since the registry has only those of the engine started last."""
    assert engine._answerer is not None
    loggers = engine._answerer.llm.logger_manager.stat_loggers
    (counters,) = [logger for logger in loggers if hasattr(logger, "counter_prefix_cache_hits")]
    return VllmCounters(
        counters.counter_prefix_cache_queries[0]._value.get(),
        counters.counter_prefix_cache_hits[0]._value.get(),
        counters.gauge_scheduler_running[0]._value.get() + counters.gauge_scheduler_waiting[0]._value.get(),
    )


async def busy(engine: VllmEngine, requests: int) -> None:
    """Wait until vLLM has this many requests."""
    assert engine._answerer is not None
    while engine._answerer.llm.get_num_unfinished_requests() < requests:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)


async def idle(engine: VllmEngine) -> bool:
    """Whether the engine core process has no request left after one more step."""
    await replies(engine, asked("Is it?"))
    return counted(engine).requests == 0


async def test_a_batch_computes_its_prefix_once(engine: VllmEngine) -> None:
    shared = "Of the numbers from forty to fifty, three are prime. " * 40
    batch = asked(*[f"Does it name the number {n}?" for n in range(40, 52)], shared=shared)
    before = counted(engine)
    first, *others = await replies(engine, batch)
    after = counted(engine)
    whole = first.tokens_computed + first.tokens_reused
    assert first.tokens_computed > 400
    for other in others:
        assert other.tokens_computed + other.tokens_reused == pytest.approx(whole, abs=2)
        assert other.tokens_computed < CPU_BLOCK_TOKENS + 30
    reused = sum(reply.tokens_reused for reply in (first, *others))
    assert after.hit - before.hit == reused
    assert after.asked - before.asked == reused + sum(reply.tokens_computed for reply in (first, *others))
    assert reused / (after.asked - before.asked) > 0.85


async def test_a_batch_of_another_cache_salt_reuses_nothing(engine: VllmEngine) -> None:
    batch = asked("Is one prime?", shared="Of the numbers from twenty to thirty, two are prime. " * 20)
    reused = []
    for salt in ("", "", "b", "b"):
        (reply,) = await replies(engine, replace(batch, cache_salt=salt))
        reused.append(reply.tokens_reused)
    assert reused[2] == 0
    assert min(reused[1], reused[3]) > CPU_BLOCK_TOKENS


async def test_cancelled_calls_are_aborted_in_the_engine(engine: VllmEngine) -> None:
    assert engine._answerer is not None
    batch = asked(*[f"Count from {n} for ever." for n in range(4)], answer=ENDLESS)
    task = asyncio.create_task(answers(engine, batch))
    await busy(engine, 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not engine._answerer.llm.get_num_unfinished_requests()
    assert await idle(engine)


async def test_an_answer_closed_early_leaves_no_request(engine: VllmEngine) -> None:
    assert engine._answerer is not None
    endless = asked("Count for ever.", "Go on.", answer=ENDLESS).calls
    batch = asked("Is it?")
    batch = type(batch)(batch.system, batch.shared, (*endless, *batch.calls))
    async with aclosing(engine.answer(batch)) as outcomes:  # type: ignore[type-var]
        index, _ = await anext(outcomes)
        assert index == 2
        assert engine._answerer.llm.get_num_unfinished_requests() == 2
    assert not engine._answerer.llm.get_num_unfinished_requests()
    assert await idle(engine)


async def test_an_invalid_schema_fails_only_its_own_call(engine: VllmEngine) -> None:
    batch = asked("Is it?")
    odd = Call("Write.", JsonOutput('{"type":"no such type"}', 8))
    batch = type(batch)(batch.system, batch.shared, (odd, *batch.calls))
    failed, answered = await answers(engine, batch)
    assert isinstance(failed, CallFailure)
    assert failed.kind == "engine"
    assert not isinstance(answered, CallFailure)


async def test_a_killed_vllm_gives_failures_and_never_an_exception(spare: VllmEngine) -> None:
    assert spare._answerer is not None
    running = asyncio.create_task(answers(spare, asked(*["Count for ever."] * 4, answer=ENDLESS)))
    await busy(spare, 4)
    family = {child.pid: child for child in psutil.Process().children(recursive=True)}
    (core,) = [family[process.pid] for process in spare._answerer.llm.engine_core.resources.engine_manager.processes]
    family = {core.pid: core} | {child.pid: child for child in core.children(recursive=True)}
    core.kill()
    for outcome in await asyncio.wait_for(running, 60):
        assert isinstance(outcome, CallFailure)
        assert outcome.kind == "engine"
    assert not await spare.ready()
    assert {failed.kind for failed in await failures(spare, asked("Is it?", "Is it not?"))} == {"engine"}
    await spare.close()
    assert not psutil.wait_procs(family.values(), timeout=60)[1]
    with pytest.raises(EngineUnavailable):
        await spare.count_tokens(asked("Is it?"))
