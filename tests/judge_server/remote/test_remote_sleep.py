"""Judges in other processes sleep and wake for several apis: their leases are held where their engine is."""

import asyncio

import pytest

from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import CannotSleep, NotReady
from judge_server.judging.results import collect
from judge_server.ports import JudgeResult
from judge_server.scheduling.sleep import Lease
from judge_server.scoring.judge import Judge
from tests.judge_server.remote.judges import api_of, judges
from tests.judge_server.scheduling.test_sleep import SharedMemoryEngine
from tests.judge_server.support import criteria, deadline_after, plans

AB = criteria("Alpha.", "Beta.")


async def results(made: Judge, *responses: str) -> list[JudgeResult]:
    """The results of a request."""
    outcomes = await collect(made.judge(plans(made, *responses, of=AB), await deadline_after()))
    found = list(outcomes.by_digest.values())
    assert all(isinstance(one, JudgeResult) for one in found), found
    return found  # type: ignore[return-value]


async def test_what_one_api_puts_to_sleep_another_one_wakes() -> None:
    responses = [f"Response {n}." for n in range(8)]
    async with judges(ScriptedEngine(), ScriptedEngine()) as served, api_of(*served) as one, api_of(*served) as other:
        usual = await results(one, *responses)
        assert (await one.executor.hold(Lease("a", "asleep", 60))).state == "asleep"
        assert [each.judge.executor.sleep_state for each in served] == ["asleep", "asleep"]
        waiting = asyncio.create_task(results(other, *[f"{text} " for text in responses]))
        await asyncio.sleep(0.3)  # several health checks: judges that sleep are up
        assert not waiting.done()
        assert other.executor.sleep_state == "asleep"
        assert await other.executor.ready()
        assert (await other.executor.hold(Lease("b", "awake", 60))).kept_awake_by == ("b",)
        assert len(await waiting) == len(usual)


async def test_a_judge_that_is_gone_does_not_keep_the_others_from_sleeping() -> None:
    async with judges(ScriptedEngine(), ScriptedEngine()) as served, api_of(*served) as api:
        await served[0].stop()
        async with asyncio.timeout(30):
            while [member.state for member in api.executor.members()].count("gone") < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await api.executor.hold(Lease("a", "asleep", 60))).state == "asleep"
        await served[1].stop()
        with pytest.raises(NotReady):
            await api.executor.hold(Lease("a", "awake", 60))


async def test_an_api_passes_on_that_an_engine_cannot_sleep() -> None:
    class Sleepless(ScriptedEngine):
        sleep = None  # type: ignore[assignment]

    async with judges(Sleepless()) as served, api_of(*served) as api:
        with pytest.raises(CannotSleep, match="cannot release its memory"):
            await api.executor.hold(Lease("a", "asleep", 60))


async def test_a_judge_that_cannot_wake_can_be_told_to_sleep_again() -> None:
    engine = SharedMemoryEngine(failing=[False, *[True] * 100], move_s=0)
    async with judges(engine) as served, api_of(*served) as api:
        await api.executor.hold(Lease("a", "asleep", 60))
        with pytest.raises(NotReady, match="there is no memory left on the device"):
            await api.executor.hold(Lease("a", "awake", 60))
        async with asyncio.timeout(30):
            while await api.executor.ready():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        engine.failing = []
        assert (await api.executor.hold(Lease("a", "asleep", 60))).state == "asleep"
        async with asyncio.timeout(30):
            while not await api.executor.ready():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
