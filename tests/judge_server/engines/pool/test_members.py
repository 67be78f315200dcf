"""Members of a pool: URLs, starting, leaving and returning."""

import asyncio
import logging
from dataclasses import replace

import pytest

from judge_server.engines import engine_from_url
from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import CAPABILITIES, ScriptedEngine
from judge_server.errors import EngineNotReady, EngineStartError
from tests.judge_server.engines.fixtures import asked, failures, replies
from tests.judge_server.engines.pool.faulty import QUESTIONS, Faulty, PoolHarness, said, watched
from tests.judge_server.support import judge

THREE_SIZES = {name: {"concurrent_batches": batches} for name, batches in (("a", 4), ("b", 8), ("c", 64))}

__all__ = ["watched"]


# URLs


async def test_several_urls_make_a_pool_that_shows_no_credentials_and_no_options() -> None:
    pool = engine_from_url(
        " openai+http://a:8001/v1?model=judge\n openai+https://b/v1/  scripted://hash?delay_s=1 ", api_key="key"
    )
    assert isinstance(pool, EnginePool)
    assert [view.name for view in pool.members()] == [
        "openai+http://a:8001/v1",
        "openai+https://b/v1",
        "scripted://hash",
    ]
    await pool.close()


def test_an_error_in_one_of_several_urls_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="unknown option 'modl'"):
        engine_from_url("openai+http://a:8001/v1 openai+http://b:8001/v1?modl=x")
    with pytest.raises(ValueError, match="name each endpoint of a pool once"):
        engine_from_url("openai+http://a:8001/v1 openai+http://a:8001/v1?concurrency=2")
    with pytest.raises(ValueError, match="'http' is unknown"):
        engine_from_url("openai+http://a:8001/v1 http://b:8001/v1")


async def test_a_path_with_a_space_is_one_engine() -> None:
    assert not isinstance(engine_from_url("llamacpp:///models/my judge.gguf"), EnginePool)


# Starting


async def test_before_start_a_pool_is_not_ready_and_calls_fail_as_engine() -> None:
    unstarted = EnginePool({"a": ScriptedEngine, "b": ScriptedEngine})
    assert not await unstarted.ready()
    for failed in await failures(unstarted, asked(*QUESTIONS)):
        assert failed.kind == "engine"
    await unstarted.close()


async def test_a_pools_identity_is_that_of_its_members_and_its_capacity_is_their_sum() -> None:
    made = PoolHarness(first=THREE_SIZES)
    identity = await made.pool.start()
    assert (identity.model, identity.concurrent_batches) == ("scripted", 76)
    await made.pool.close()


async def test_a_member_that_cannot_start_stays_out_and_joins_when_it_can(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "adjudge")
    made = PoolHarness(interval_s=0.002)
    made["b"].starts = False
    identity = await made.pool.start()
    assert identity.concurrent_batches == 128
    assert made.states == {"a": "closed", "b": "gone", "c": "closed"}
    await made.until("b", "closed")
    assert len(made.made["b"]) == 2
    assert said(caplog) == [
        ("WARNING", "b is out of the pool: it is not there"),
        ("INFO", "b is in the pool again"),
    ]
    await made.pool.close()


async def test_a_member_that_is_slow_to_start_delays_the_pool_only_briefly_and_joins_later() -> None:
    made = PoolHarness(interval_s=0.002, straggler_timeout_s=0.01)
    made["c"].slow_start = asyncio.Event()
    await made.pool.start()
    assert made.states == {"a": "closed", "b": "closed", "c": "gone"}
    made["c"].slow_start.set()
    await made.until("c", "closed")
    assert len(made.made["c"]) == 1
    await made.pool.close()


@pytest.mark.parametrize("may_pass", [(False, False), (True, False)])
async def test_a_pool_of_which_no_member_is_up_and_one_never_will_be_gives_the_reason_of_each(
    may_pass: tuple[bool, bool],
) -> None:
    made = PoolHarness("a", "b")
    for engine, may in zip(made.all, may_pass, strict=True):
        engine.starts, engine.may_pass = False, may
    with pytest.raises(EngineStartError, match="a: it is not there; b: it is not there") as refused:
        await made.pool.start()
    assert not isinstance(refused.value, EngineNotReady)
    assert not await made.pool.ready()
    await made.pool.close()


async def test_a_pool_whose_members_are_not_ready_yet_starts_on_a_retry() -> None:
    made = PoolHarness("a", "b", interval_s=0.002)
    for engine in made.all:
        engine.starts, engine.may_pass = False, True
    with pytest.raises(EngineNotReady, match="a: it is not there; b: it is not there"):
        await made.pool.start()
    await asyncio.sleep(0.01)
    assert (await made.pool.start()).model == "scripted"
    await replies(made.pool, asked(*QUESTIONS))
    await made.pool.close()


async def test_capacity_follows_the_members_that_are_up() -> None:
    made = PoolHarness(first=THREE_SIZES, interval_s=0.002, health_timeout_s=5.0)
    made["b"].starts = False
    made.next = lambda: Faulty(concurrent_batches=16)
    assert made.pool.capacity == 0
    assert (await made.pool.start()).concurrent_batches == 68
    assert made.pool.capacity == 68
    await made.until("b", "closed")
    assert made.pool.capacity == 84
    small = Faulty(concurrent_batches=1)
    small.slow_start = asyncio.Event()
    made.next = lambda: small
    made["c"].well = False
    await made.until("c", "gone")
    assert made.pool.capacity == 20
    small.slow_start.set()
    await made.until("c", "closed")
    assert made.pool.capacity == 21
    await made.pool.close()


async def test_a_judge_gives_its_pool_as_many_batches_as_its_members_take() -> None:
    made = PoolHarness(straggler_timeout_s=0.01, interval_s=0.002, health_timeout_s=5.0)
    made["b"].starts = made["c"].starts = False
    made.next = lambda: Faulty(concurrent_batches=4)
    for name in ("b", "c"):
        made[name].slow_start = asyncio.Event()
    judging = await judge(made.pool)  # type: ignore[arg-type]
    at_a_time = lambda: judging.executor.admission.state()[2]  # type: ignore[attr-defined]  # noqa: E731
    assert at_a_time() == 64
    for name in ("b", "c"):
        made[name].slow_start.set()  # type: ignore[union-attr]
        await made.until(name, "closed")
    assert at_a_time() == 64 + 2 * 4
    await judging.close()


async def test_members_that_are_different_judges_are_refused() -> None:
    made = PoolHarness()
    made["b"].model = "another"
    with pytest.raises(EngineStartError, match="b is not the same judge as a: its model is 'another', not 'scripted'"):
        await made.pool.start()
    await made.pool.close()


async def test_differing_capabilities_are_named() -> None:
    made = PoolHarness("a", "b", first={"b": {"capabilities": replace(CAPABILITIES, logprobs=False)}})
    with pytest.raises(EngineStartError, match=r"its capabilities\.logprobs is False, not True"):
        await made.pool.start()
    await made.pool.close()


# Members that leave and return


async def test_calls_waiting_at_a_member_that_is_gone_move_on_and_its_answers_are_kept(watched: PoolHarness) -> None:
    first, second, _ = await watched.order(asked(*QUESTIONS))
    gone = watched[first]
    gone.answers = 1
    task = asyncio.create_task(replies(watched.pool, asked(*QUESTIONS)))
    await asyncio.wait_for(gone.reached.wait(), 10)
    gone.well = False
    await asyncio.wait_for(task, 10)
    assert gone.asked == [QUESTIONS]
    assert gone.under_way == 0
    assert watched[second].asked == [QUESTIONS[1:]]


async def test_a_member_that_was_gone_is_recreated_and_identified_again(watched: PoolHarness) -> None:
    old = watched["a"]
    old.well = False
    await watched.made_anew("a")
    await watched.until("a", "closed")
    assert watched["a"] is not old
    assert not old._running
    for n in range(20):
        await replies(watched.pool, asked("Is it?", shared=f"Response {n}."))
    assert watched["a"].asked
    assert not old.asked
    await watched.looked_at("a", 3)
    assert len(watched.made["a"]) == 2


async def test_a_member_that_answers_stays_although_it_reports_not_ready() -> None:
    trial = PoolHarness("a", "b", interval_s=0.002, health_timeout_s=5.0, misses=10)
    await trial.pool.start()
    first, second = await trial.order(asked(*QUESTIONS))
    trial[first].before_each = lambda: trial.looked_at(first, 3)
    trial[first].well = False
    await replies(trial.pool, asked(*QUESTIONS * 3))
    assert trial[second].asked == []
    assert len(trial.made[first]) == 1
    await trial.pool.close()


async def test_a_member_that_returns_as_another_judge_stays_out_and_is_logged_once(
    watched: PoolHarness, caplog: pytest.LogCaptureFixture
) -> None:
    def another() -> Faulty:
        engine = Faulty()
        engine.model = "another"
        return engine

    watched.next = another
    watched["a"].well = False
    await watched.made_anew("a", 3)
    assert watched.states["a"] == "gone"
    assert [message for _, message in said(caplog)] == [
        "a is out of the pool: it reports that it is not ready",
        "a stays out of the pool: it came back as another judge: its model is 'another', not 'scripted'",
    ]
    assert not watched["a"].asked
    watched.next = Faulty
    await watched.until("a", "closed")


async def test_a_pool_whose_members_were_all_gone_answers_once_they_return(watched: PoolHarness) -> None:
    for engine in watched.all:
        engine.well = False
    for name in watched.made:
        await watched.made_anew(name)
        await watched.until(name, "closed")
    await replies(watched.pool, asked(*QUESTIONS))
    assert await watched.pool.ready()
