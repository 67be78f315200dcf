"""Faults during judging: finished verdicts are kept, failures give no reward, and few calls are repeated."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.judging.results import Outcomes, collect
from judge_server.ports import Batch, CallFailure, JudgeResult, Reply
from judge_server.scoring.cache import MemoryCache, RedisCache
from judge_server.scoring.scorer import Scorer
from tests.fixtures.redis_process import RedisProcess
from tests.judge_server.support import CRITERIA, RecordingScript, criteria, deadline_after, judge, plans
from trainer_client.wire import RewardRequest

TWELVE = criteria(*[f"Part {n} holds." for n in range(12)])


class EngineDyingMidBatch(ScriptedEngine):
    """Answers half of each batch and keeps the rest in flight until it dies; afterwards every call fails."""

    def __init__(self) -> None:
        super().__init__(concurrent_batches=100)
        self.asked: Counter[tuple[str, str]] = Counter()
        self.answered: Counter[tuple[str, str]] = Counter()
        self.dead = asyncio.Event()
        self.alive_again = False
        self.in_flight = 0
        self.busy = asyncio.Event()

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """As `ScriptedEngine`, until it dies."""
        for index, call in enumerate(batch.calls):
            key = (batch.shared, call.question)
            self.asked[key] += 1
            if self.dead.is_set() and not self.alive_again:
                yield index, CallFailure("engine", "dead")
                continue
            if index >= len(batch.calls) // 2 and not self.alive_again:
                self.in_flight += len(batch.calls) - index
                if self.in_flight >= 500:
                    self.busy.set()
                await self.dead.wait()
                raise ConnectionError("the engine died")
            self.answered[key] += 1
            yield index, by_hash(batch, call)


def failures(outcomes: Outcomes) -> Counter[str]:
    """Count failures by kind."""
    return Counter(o.kind for o in outcomes.by_digest.values() if isinstance(o, CallFailure))


async def test_an_engine_that_dies_with_500_calls_in_flight_fails_only_those_calls() -> None:
    engine = EngineDyingMidBatch()
    made = await judge(engine, queue_calls=10_000)
    asked = plans(made, *[f"response {n}" for n in range(84)], of=TWELVE)
    working = asyncio.create_task(collect(made.judge(asked, await deadline_after())))
    await engine.busy.wait()
    engine.dead.set()
    outcomes = await working
    assert failures(outcomes) == {"engine": 504}
    assert sum(isinstance(o, JudgeResult) for o in outcomes.by_digest.values()) == 504
    finished = [key for key in engine.asked if engine.answered[key]]
    assert {engine.asked[key] for key in finished} == {1}
    assert max(engine.asked.values()) == 2  # in flight at the fault, and one retry
    engine.alive_again = True
    again = await collect(made.judge(asked, await deadline_after()))
    assert (len(again.cached), again.costs.calls, failures(again)) == (504, 504, {})
    assert {digest: again.by_digest[digest] for digest in again.cached} == {
        digest: outcome for digest, outcome in outcomes.by_digest.items() if isinstance(outcome, JudgeResult)
    }


async def test_failures_of_a_dead_engine_give_no_reward() -> None:
    engine = EngineDyingMidBatch()
    engine.dead.set()
    scorer = Scorer(await judge(engine), None)  # type: ignore[arg-type]
    group = {"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes.", "No."]}
    request = RewardRequest.model_validate({"rubric": {"criteria": CRITERIA}, "groups": [group]})
    answer = await scorer.score(request, request_id="r", project_id="p")
    assert [response.reward for response in answer.groups[0].responses] == [None, None]


@pytest.mark.redis
async def test_a_redis_restart_makes_judging_slower_and_never_wrong() -> None:
    redis = RedisProcess()
    redis.start()
    now = 0.0
    cache = RedisCache(redis.url, clock=lambda: now)
    script = RecordingScript()
    made = await judge(ScriptedEngine(script), cache=cache)
    try:
        verdicts: dict[bytes, object] = {}

        async def score(response: str) -> Outcomes:
            outcomes = await collect(made.judge(plans(made, response, of=TWELVE), await deadline_after()))
            assert not failures(outcomes)
            for digest, outcome in outcomes.by_digest.items():
                assert verdicts.setdefault(digest, outcome) == outcome
            return outcomes

        assert (await score("a")).costs.calls == 12
        assert len((await score("a")).cached) == 12
        redis.kill()
        assert (await score("a")).costs.calls == 12
        assert (await score("b")).costs.calls == 12
        redis.start()
        assert (await score("b")).costs.calls == 12  # the cache tries Redis again only after a second
        now += 2.0
        assert (await score("b")).costs.calls == 12
        assert len((await score("b")).cached) == 12
    finally:
        await made.close()
        redis.kill()


class HangingCache(MemoryCache):
    """A cache that never answers."""

    async def get_many(self, digests: object) -> dict[bytes, JudgeResult]:  # type: ignore[override]
        """Never return."""
        await asyncio.Event().wait()
        return {}

    put_many = get_many  # type: ignore[assignment]


async def test_a_hanging_cache_does_not_delay_the_answer_at_the_deadline() -> None:
    made = await judge(cache=HangingCache())
    outcomes = await asyncio.wait_for(
        collect(made.judge(plans(made, "Yes.", of=TWELVE), await deadline_after(0.05))), 10
    )
    assert failures(outcomes) == {"timeout": 12}
    for storing in made._storing:
        storing.cancel()
