"""How a pool of engines answers: which member is asked, what is retried, and which members are left out."""

import asyncio
import statistics
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.errors import EngineUnavailable
from judge_server.ports import CallFailure, Reply
from judge_server.scheduling.admission import QueueRules
from judge_server.scoring.scorer import Scorer
from tests.fixtures.virtual_time import run_in_virtual_time
from tests.judge_server import support
from tests.judge_server.engines.fixtures import answers, asked, failures, replies
from tests.judge_server.engines.pool.faulty import QUESTIONS, PoolHarness, trial
from tests.judge_server.scheduling.test_breaker import Clock
from trainer_client.wire import RewardRequest

__all__ = ["trial"]

ENGINE_FAILS = CallFailure("engine", "HTTP 500")


async def test_a_responses_calls_go_to_one_member_together_and_answers_keep_their_order(trial: PoolHarness) -> None:
    plain = ScriptedEngine()
    await plain.start()
    for n in range(20):
        batch = asked(*QUESTIONS, shared=f"Response {n}.")
        before = [len(engine.asked) for engine in trial.all]
        assert await replies(trial.pool, batch) == await replies(plain, batch)
        new = [engine.asked[b:] for engine, b in zip(trial.all, before, strict=True)]
        assert sorted(map(len, new)) == [0, 0, 1]
    assert all(engine.asked for engine in trial.all)


async def test_a_response_goes_to_the_same_member_whatever_the_question(trial: PoolHarness) -> None:
    for question in QUESTIONS:
        await replies(trial.pool, asked(question))
    assert sorted(len(engine.asked) for engine in trial.all) == [0, 0, 4]


@pytest.mark.parametrize("then", ["break", "stop"])
async def test_unanswered_calls_of_an_interrupted_batch_move_to_the_next_member(trial: PoolHarness, then: str) -> None:
    first, second, third = await trial.order(asked(*QUESTIONS))
    trial[first].answers, trial[first].then = 2, then
    await replies(trial.pool, asked(*QUESTIONS))
    assert trial[first].asked == [QUESTIONS]
    assert trial[second].asked == [QUESTIONS[2:]]
    assert trial[third].asked == []


async def test_failed_calls_are_retried_once_at_each_other_member_and_then_fail(trial: PoolHarness) -> None:
    for engine in trial.all:
        engine.outcome = lambda _, call: ENGINE_FAILS if call.question == "Why?" else by_hash(_, call)
    outcomes = await answers(trial.pool, asked(*QUESTIONS))
    assert [isinstance(outcome, Reply) for outcome in outcomes] == [True, True, True, False]
    assert outcomes[3] == ENGINE_FAILS
    assert sorted(map(tuple, (engine.asked for engine in trial.all))) == [
        (("Is it?", "Is it not?", "Is it so?", "Why?"),),
        (("Why?",),),
        (("Why?",),),
    ]


@pytest.mark.parametrize("kind", ["parse", "truncated_input", "timeout"])
async def test_other_failures_are_returned_unchanged(trial: PoolHarness, kind: Any) -> None:
    for engine in trial.all:
        engine.outcome = lambda *_: CallFailure(kind, "so it is")
    assert await failures(trial.pool, asked("Is it?")) == [CallFailure(kind, "so it is")]
    assert sum(len(engine.asked) for engine in trial.all) == 1


async def test_an_overloaded_member_is_passed_over_without_opening_its_breaker(trial: PoolHarness) -> None:
    first, *_ = await trial.order(asked(*QUESTIONS))
    trial[first].outcome = lambda *_: CallFailure("overloaded", "not now", 7.0)
    for _ in range(5):
        await replies(trial.pool, asked(*QUESTIONS))
    assert len(trial[first].asked) == 5
    for engine in trial.all:
        engine.outcome = trial[first].outcome
    assert {failed.retry_after_s for failed in await failures(trial.pool, asked("Is it?"))} == {7.0}
    assert set(trial.states.values()) == {"closed"}


@pytest.mark.parametrize("kind", ["engine", "timeout"])
async def test_a_member_that_fails_repeatedly_is_left_out_until_a_trial_succeeds(kind: Any) -> None:
    clock = Clock()
    trial = PoolHarness("a", "b", clock=clock, interval_s=60.0, pause_s=5.0)
    await trial.pool.start()
    first, _ = await trial.order(asked(*QUESTIONS))
    trial[first].outcome = lambda *_: CallFailure(kind, "so it is")
    for _ in range(6):
        await answers(trial.pool, asked(*QUESTIONS))
    assert len(trial[first].asked) == 3
    assert trial.states[first] == "open"
    clock.now += 5.0
    trial[first].outcome = by_hash
    await replies(trial.pool, asked(*QUESTIONS))
    assert trial.states[first] == "closed"
    await trial.pool.close()


async def test_a_response_that_fails_everywhere_does_not_open_every_breaker(trial: PoolHarness) -> None:
    for engine in trial.all:
        engine.outcome = lambda *_: ENGINE_FAILS
    for _ in range(2):
        await failures(trial.pool, asked(*QUESTIONS * 10))
    assert set(trial.states.values()) == {"closed"}


async def test_where_all_breakers_are_open_calls_fail_at_once_and_say_so(trial: PoolHarness) -> None:
    for engine in trial.all:
        engine.outcome = lambda *_: ENGINE_FAILS
    for _ in range(3):
        await failures(trial.pool, asked("Is it?"))
    (failed,) = await failures(trial.pool, asked("Is it?"))
    assert failed.detail == "no engine of the pool can be asked now: a is open, b is open, c is open"
    assert [len(engine.asked) for engine in trial.all] == [3, 3, 3]
    assert not await trial.pool.ready()
    with pytest.raises(EngineUnavailable, match="a is open"):
        await trial.pool.count_tokens(asked("Is it?"))


async def test_a_cancelled_batch_stops_at_its_member_and_releases_its_load(trial: PoolHarness) -> None:
    first, *_ = await trial.order(asked(*QUESTIONS))
    trial[first].answers = 1
    task = asyncio.create_task(answers(trial.pool, asked(*QUESTIONS)))
    await asyncio.wait_for(trial[first].reached.wait(), 10)
    assert {view.name: view.load for view in trial.pool.members() if view.load} == {first: 4}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert trial[first].under_way == 0
    trial[first].answers = 1000
    assert not any(view.load for view in trial.pool.members())
    async with aclosing(trial.pool.answer(asked(*QUESTIONS))) as outcomes:  # type: ignore[type-var]
        await anext(outcomes)
        assert trial[first].under_way == 1
    assert trial[first].under_way == 0
    assert not any(view.load for view in trial.pool.members())


async def test_a_response_in_many_concurrent_batches_spills_over(trial: PoolHarness) -> None:
    for engine in trial.all:
        engine.answers = 0
    tasks = [asyncio.create_task(answers(trial.pool, asked(*QUESTIONS))) for _ in range(6)]
    await asyncio.gather(*(asyncio.wait_for(engine.reached.wait(), 10) for engine in trial.all))
    assert [view.load for view in trial.pool.members()] == [8, 8, 8]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_tokens_are_counted_by_a_member_that_can(trial: PoolHarness) -> None:
    first, second, third = await trial.order(asked("Is it?"))
    trial[first].counts = False
    assert await trial.pool.count_tokens(asked("Is it?")) == await trial[second].count_tokens(asked("Is it?"))
    trial[second].counts = trial[third].counts = False
    with pytest.raises(EngineUnavailable, match="it cannot count"):
        await trial.pool.count_tokens(asked("Is it?"))


def many(run: str, responses: int) -> RewardRequest:
    """A request of a run for these responses under 12 criteria, in groups of two."""
    groups = [
        {"id": f"g{place}", "prompt": "Prove it.", "responses": [f"Proof {place + n} of {run}." for n in range(2)]}
        for place in range(0, responses, 2)
    ]
    rubric = {"criteria": [{"id": f"c{n}", "description": f"Part {n} of it holds."} for n in range(12)]}
    return RewardRequest.model_validate({"run": run, "rubric": rubric, "groups": groups, "deadline_s": 600.0})


async def beside_to_alone() -> float:
    """Median time of a light run's requests to a pool beside a flood, divided by that of the run alone."""
    member = partial(ScriptedEngine, delay_s=0.02, concurrent_batches=8)
    pool: Any = EnginePool({"a": member, "b": member})
    judge = await support.judge(pool, rules=QueueRules(calls=1_000_000))
    scorer = Scorer(judge, None)  # type: ignore[arg-type]  # the rubric is inline

    async def score(asked: RewardRequest, run: str) -> None:
        await scorer.score(asked.model_copy(update={"run": run}), request_id="", project_id="default")

    async def light(when: str) -> float:
        now, durations = asyncio.get_running_loop().time, []
        for number in range(10):
            began = now()
            await score(many(f"light {when} {number}", 4), "light")
            durations.append(now() - began)
        return statistics.median(durations)

    alone = await light("alone")
    flood = asyncio.create_task(score(many("flood", 1000), "flood"))
    await asyncio.sleep(0.5)
    beside = await light("beside")
    flood.cancel()
    await asyncio.gather(flood, return_exceptions=True)
    await judge.close()
    return beside / alone


def test_beside_a_flood_a_light_run_waits_no_longer_at_a_pool_than_the_calls_under_way_explain() -> None:
    """Its half of the pool doubles its time; calls queued at the members account for the rest."""
    assert run_in_virtual_time(beside_to_alone()) <= 3.0 + 1e-6
