"""Judges in other processes change their weights: those of one name together, and for several apis."""

import asyncio
from pathlib import Path

import pytest

from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import CannotLoad, NotReady, WeightsChanged
from judge_server.scheduling.weights import WeightsOrder
from judge_server.scoring.judge import Judge
from tests.judge_server.remote.judges import api_of, judges
from tests.judge_server.scheduling.test_changing_weights import ChangingEngine, adapters, probabilities, reward
from tests.judge_server.support import GatedEngine

RESPONSES = [f"Response {n}." for n in range(6)]


async def until_it_has(made: Judge, tag: str) -> None:
    """Wait until an api has found out which weights its judges have."""
    async with asyncio.timeout(30):
        while made.executor.weights.tag != tag or not await made.executor.ready():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_it_loads(made: Judge) -> None:
    """Wait until a judge lets no request in, because it is to load other weights."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with made.executor.one_version(asyncio.get_running_loop().time()):
                    pass
            except NotReady:
                return
            await asyncio.sleep(0.02)


async def test_all_judges_load_and_every_api_finds_out(tmp_path: Path) -> None:
    folder = adapters(tmp_path, "a")
    engines = ScriptedEngine(), ScriptedEngine()
    async with judges(*engines, adapters=folder) as served, api_of(*served) as one, api_of(*served) as other:
        before = await reward(one, *RESPONSES)
        report = await one.executor.load(WeightsOrder("step-1", "a", 1))
        assert [each.judge.executor.weights for each in served] == [report, report]
        after = await reward(one, *RESPONSES)
        assert (after.judge.model, after.usage.cached) == (report.model, 0)
        assert probabilities(after) != probabilities(before)
        await until_it_has(other, report.tag)
        assert other.executor.weights == report
        assert probabilities(await reward(other, *RESPONSES)) == probabilities(after)
        with pytest.raises(WeightsChanged, match="step-1"):
            await other.executor.load(WeightsOrder("mine", expected="0000"))
        with pytest.raises(CannotLoad, match="cannot be read"):
            await other.executor.load(WeightsOrder("mine", "missing"))
        assert probabilities(await reward(other, *RESPONSES)) == probabilities(after)


async def test_a_request_of_another_api_is_never_judged_by_weights_that_it_was_not_planned_for(tmp_path: Path) -> None:
    gated, folder = GatedEngine(), adapters(tmp_path, "a")
    async with judges(gated, adapters=folder) as served, api_of(*served) as one, api_of(*served) as other:
        under_way = asyncio.create_task(reward(other, "R1."))
        await gated.busy()
        loading = asyncio.create_task(one.executor.load(WeightsOrder("v", "a")))
        await until_it_loads(served[0].judge)
        assert not loading.done()
        with pytest.raises(NotReady):  # the judge takes nothing for the weights before
            await reward(other, "R2.", deadline_s=8)
        gated.release(100)
        report = await loading
        assert (await under_way).judge.model == "scripted"
        await until_it_has(other, report.tag)
        assert (await reward(other, "R2.")).judge.model == report.model


async def test_a_judge_that_fails_to_load_leaves_the_others_out_until_a_load_succeeds(tmp_path: Path) -> None:
    engines = ChangingEngine(load_s=0, delay_s=0), ChangingEngine(load_s=0, delay_s=0, failing=["refuse"])
    async with judges(*engines, adapters=adapters(tmp_path, "a")) as served, api_of(*served) as api:
        with pytest.raises(CannotLoad, match="does not suit"):
            await api.executor.load(WeightsOrder("v", "a"))
        async with asyncio.timeout(30):
            while [member.state for member in api.executor.members()].count("closed") != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        calls = engines[0].calls
        answer = await reward(api, *RESPONSES)
        assert (answer.judge.model, None in probabilities(answer), engines[0].calls) == ("scripted", False, calls)
