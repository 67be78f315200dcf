"""The one queue in front of an engine: in order, bounded, and nothing expired gets through it."""

import asyncio

import pytest

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.errors import Overloaded
from judge_server.judging.admission import Admission, Judged
from judge_server.ports import Batch, Call, CallFailed, Reply
from tests.judge_server.support import Gated, Recording, batch, soon


def admission(engine: ScriptedEngine, *, concurrent: int = 1, capacity: int = 10) -> Admission:
    """A queue in front of this engine."""
    return Admission(engine, concurrent_batches=concurrent, capacity=capacity)


def kinds(judged: Judged) -> list[str]:
    """Each outcome's failure kind, or `ok`."""
    return [outcome.kind if isinstance(outcome, CallFailed) else "ok" for outcome in judged.outcomes]


async def test_batches_reach_the_engine_first_come_first_served_one_at_a_time() -> None:
    engine = Gated()
    queue = admission(engine)
    deadline = await soon()
    tasks = [asyncio.create_task(queue.judge(batch(f"{n} first", f"{n} second"), deadline)) for n in "abc"]
    await engine.busy()
    assert engine.began == ["a first"]
    engine.let(6)
    await asyncio.gather(*tasks)
    assert engine.began == [f"{n} {which}" for n in "abc" for which in ("first", "second")]


async def test_as_many_batches_run_together_as_the_engine_allows() -> None:
    engine = Gated()
    queue = admission(engine, concurrent=2)
    deadline = await soon()
    tasks = [asyncio.create_task(queue.judge(batch(n), deadline)) for n in "abc"]
    for _ in range(5):
        await asyncio.sleep(0)
    assert engine.began == ["a", "b"]
    engine.let(3)
    await asyncio.gather(*tasks)
    assert engine.began == ["a", "b", "c"]


async def test_outcomes_stand_in_the_order_of_the_calls() -> None:
    engine = ScriptedEngine()
    await engine.start()
    asked = batch("a", "b", "c")
    judged = await admission(engine).judge(asked, await soon())
    assert judged.outcomes == [by_hash(asked, call) for call in asked.calls]


def test_a_full_queue_refuses_a_request_as_a_whole_and_says_when_to_come_back() -> None:
    queue = admission(ScriptedEngine(), capacity=10)
    with queue.reserve(8):
        with pytest.raises(Overloaded, match="8 judge calls are waiting and 3 more") as refused, queue.reserve(3):
            pass
        assert (refused.value.status, refused.value.retryable) == (429, True)
        assert refused.value.retry_after_s
        with queue.reserve(2):
            pass
    with queue.reserve(10):
        pass


def test_an_idle_queue_takes_a_request_of_any_size() -> None:
    queue = admission(ScriptedEngine(), capacity=10)
    with queue.reserve(1000), pytest.raises(Overloaded), queue.reserve(1):
        pass
    with queue.reserve(1000):
        pass


def test_room_is_given_back_when_judging_breaks_off() -> None:
    queue = admission(ScriptedEngine(), capacity=10)
    with pytest.raises(ZeroDivisionError), queue.reserve(10):
        raise ZeroDivisionError
    with queue.reserve(10):
        pass


async def test_at_the_deadline_what_is_finished_stays_and_the_rest_is_a_timeout() -> None:
    engine = Gated()
    engine.let(2)
    judged = await admission(engine).judge(batch("a", "b", "c", "d"), await soon(0.03))
    assert kinds(judged) == ["ok", "ok", "timeout", "timeout"]
    assert isinstance(judged.outcomes[0], Reply)
    assert engine.began == ["a", "b", "c"]


async def test_expired_work_never_reaches_the_engine() -> None:
    script = Recording()
    engine = ScriptedEngine(script)
    await engine.start()
    gated = Gated()
    for refusing in (engine, gated):
        judged = await admission(refusing).judge(batch("a", "b"), await soon(-1))
        assert kinds(judged) == ["timeout", "timeout"]
    assert not script.asked
    assert not gated.began


async def test_what_expires_while_it_waits_never_reaches_the_engine_either() -> None:
    engine = Gated()
    queue = admission(engine)
    running = asyncio.create_task(queue.judge(batch("a"), await soon()))
    await engine.busy()
    late = await queue.judge(batch("b"), await soon(0.01))
    assert kinds(late) == ["timeout"]
    assert late.seconds_queued > 0
    assert late.seconds_judging == 0
    engine.let(1)
    assert kinds(await running) == ["ok"]
    assert engine.began == ["a"]


async def test_the_slot_of_an_abandoned_or_expired_batch_is_free_again() -> None:
    engine = Gated()
    queue = admission(engine)
    abandoned = asyncio.create_task(queue.judge(batch("a"), await soon()))
    await engine.busy()
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    await queue.judge(batch("b"), await soon(0.01))
    engine.let(1)
    assert kinds(await queue.judge(batch("c"), await soon())) == ["ok"]


async def test_waiting_counts_as_queued_and_working_as_judging() -> None:
    engine = Gated()
    queue = admission(engine)
    deadline = await soon()
    first, second = (asyncio.create_task(queue.judge(batch(n), deadline)) for n in "ab")
    await engine.busy()
    await asyncio.sleep(0.02)
    engine.let(2)
    a, b = await first, await second
    assert a.seconds_judging > a.seconds_queued >= 0
    assert b.seconds_queued > b.seconds_judging > 0


async def test_an_engine_that_breaks_off_fails_only_what_it_had_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(batch: Batch, call: Call) -> Reply:
        if call.question == "second":
            raise KeyError("timings")
        return by_hash(batch, call)

    engine = ScriptedEngine(breaks)
    await engine.start()
    judged = await admission(engine).judge(batch("first", "second", "third"), await soon())
    assert kinds(judged) == ["ok", "engine", "engine"]
    assert "broke off a batch of 3 calls" in caplog.text
