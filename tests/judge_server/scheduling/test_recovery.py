"""An engine that becomes unreachable during a request: its calls are held and retried when it is back."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.judging.results import collect
from judge_server.ports import Batch, CallFailure, JudgeResult, Reply
from judge_server.scheduling.admission import Admission, QueueRules
from judge_server.scheduling.call_runner import EngineRecovery
from tests.judge_server.support import criteria, deadline_after, judge, plans

AB = criteria("Alpha.", "Beta.")


class RestartingEngine(ScriptedEngine):
    """Answers while `there` is true; the test sets it."""

    def __init__(self) -> None:
        super().__init__(concurrent_batches=4)
        self.there = True
        self.refused = asyncio.Event()
        self.asked: Counter[str] = Counter()
        self.looks = 0

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer by hash, or fail each call with a refused connection."""
        for index, call in enumerate(batch.calls):
            self.asked[call.question] += 1
            if self.there:
                yield index, by_hash(batch, call)
            else:
                self.refused.set()
                yield index, CallFailure("engine", "connection refused")

    async def ready(self) -> bool:
        """Whether the engine is reachable."""
        self.looks += 1
        return self.there


async def test_calls_are_retried_when_a_restarted_engine_is_back() -> None:
    engine = RestartingEngine()
    made = await judge(engine)
    engine.there = False
    waiting = asyncio.create_task(
        collect(made.judge(plans(made, *[f"R{n}." for n in range(20)], of=AB), await deadline_after()))
    )
    await engine.refused.wait()
    await asyncio.sleep(0.2)
    assert not waiting.done()
    engine.there = True
    outcomes = await waiting
    assert all(isinstance(outcome, JudgeResult) for outcome in outcomes.by_digest.values())
    assert max(engine.asked.values()) <= 2 * 20


async def test_all_waiting_calls_share_one_readiness_poll() -> None:
    engine = RestartingEngine()
    engine.there = False
    recovery = EngineRecovery(engine, Admission(lambda: 1, QueueRules()))
    waits = [asyncio.create_task(recovery.wait(0.05, await deadline_after())) for _ in range(50)]
    await asyncio.sleep(0.3)
    looks = engine.looks
    engine.there = True
    assert await asyncio.gather(*waits) == [True] * 50
    assert looks < 50 + 10
    assert await recovery.wait(0.01, await deadline_after()) is False


async def test_waiting_for_an_unreachable_engine_ends_at_the_deadline() -> None:
    engine = RestartingEngine()
    made = await judge(engine)
    engine.there = False
    outcomes = await collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after(0.5)))
    assert {o.kind for o in outcomes.by_digest.values() if isinstance(o, CallFailure)} == {"engine"}


async def test_calls_to_an_unreachable_engine_fail_after_the_hold_limit() -> None:
    engine = RestartingEngine()
    made = await judge(engine, retry_times={"max_hold_s": 0.2})
    engine.there = False
    deadline = await deadline_after()
    for _ in range(2):
        outcomes = await asyncio.wait_for(collect(made.judge(plans(made, "Yes.", of=AB), deadline)), 30)
        assert {o.kind for o in outcomes.by_digest.values() if isinstance(o, CallFailure)} == {"engine"}
    await made.close()
