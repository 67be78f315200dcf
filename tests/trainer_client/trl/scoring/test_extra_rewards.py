"""Other reward functions beside the rubric: called as TRL calls them, summed, and never 0 for a missing part."""

import asyncio
import functools
import math
import warnings

import numpy as np
import pytest

from tests.trainer_client.trl.judges import FakeJudgeTransport, Trainer, client, rewarding
from trainer_client.trl import RubricRewardWarning
from trainer_client.trl.reward import RubricReward

TWO = (["a", "b"], ["0.25", "0.5"])


def length(prompts, completions, **_):
    return [float(len(completion)) for completion in completions]


async def constant(prompts, completions, value=1.0, **_):
    await asyncio.sleep(0)
    return [value] * len(prompts)


class Callable:
    async def __call__(self, completions, factor=1.0, **_):
        return [2.0 * factor] * len(completions)


def nothing(prompts, **_):
    return [None, 1.0]


@pytest.mark.parametrize(
    ("extra_rewards", "weights", "rewards"),
    [
        ([length], None, [4.25, 3.5]),
        ([length, constant], [2.0, 0.5, -1.0], [1.5, 1.5]),
        ([functools.partial(constant, value=3.0)], None, [3.25, 3.5]),
        ([functools.partial(Callable(), factor=2.0)], None, [4.25, 4.5]),
        ([Callable()], [1.0, 0.0], [0.25, 0.5]),
        ([Callable(), length], [1.0, 1e308, 1e308], [None, None]),
        ([lambda prompts, **_: np.array([1.0, 2.0])], None, [1.25, 2.5]),
        ([nothing], None, [None, 1.5]),
    ],
)
async def test_the_reward_is_the_weighted_sum_and_none_if_a_part_is_missing(extra_rewards, weights, rewards):
    assert await rewarding(FakeJudgeTransport(), extra_rewards=extra_rewards, weights=weights)(*TWO) == rewards


@pytest.mark.parametrize("strange", [math.nan, math.inf, "x"])
async def test_a_part_that_is_not_a_finite_number_is_missing_and_named(strange, caplog):
    def odd(prompts, **_):
        return [strange, 1.0]

    reward = rewarding(FakeJudgeTransport(), extra_rewards=[odd])
    assert await reward(*TWO) == [None, 1.5]
    assert "reward function 'odd' did not return a finite number for 1 of 2 responses" in caplog.text
    assert [row.answer.reward for row in reward.last.rows] == [0.25, 0.5]


async def test_a_missing_part_is_not_a_failure_of_the_judge():
    reward = rewarding(FakeJudgeTransport(), extra_rewards=[lambda prompts, **_: [None, None]], max_unscored=0.0)
    assert await reward(*TWO) == [None, None]


async def test_a_function_that_returns_too_few_rewards_is_named():
    with pytest.raises(ValueError, match="reward function 'length' returned 1 rewards for 2 responses"):
        await rewarding(FakeJudgeTransport(), extra_rewards=[functools.wraps(length)(lambda **_: [1.0])])(*TWO)


async def test_extra_rewards_get_all_arguments_that_trl_passes():
    seen = {}

    def see(**given):
        seen.update(given)
        return [0.0, 0.0]

    trainer = Trainer()
    given = {"trainer_state": type("State", (), {"global_step": 1}), "environments": [1, 2], **trainer.logs}
    await rewarding(FakeJudgeTransport(), extra_rewards=[see])(*TWO, [[1], [2]], difficulty=["x", "y"], **given)
    assert seen == {
        "prompts": TWO[0],
        "completions": TWO[1],
        "completion_ids": [[1], [2]],
        "difficulty": ["x", "y"],
        **given,
    }
    seen.clear()
    await rewarding(FakeJudgeTransport(), extra_rewards=[see])(
        prompts=TWO[0], completions=TWO[1], completion_ids=[[1], [2]]
    )
    assert seen.keys() == {"prompts", "completions", "completion_ids"}


async def test_extra_rewards_run_while_the_judge_works():
    judging, other_ran = asyncio.Event(), asyncio.Event()
    judge = FakeJudgeTransport()
    answer = judge.answers[0]

    async def when_the_other_ran(body):
        judging.set()
        await asyncio.wait_for(other_ran.wait(), 10)
        return answer(body)

    async def other(prompts, **_):
        await asyncio.wait_for(judging.wait(), 10)
        other_ran.set()
        return [0.0, 0.0]

    judge.answers = [when_the_other_ran]
    assert await rewarding(judge, extra_rewards=[other])(*TWO) == [0.25, 0.5]


async def test_a_function_that_fails_cancels_the_judging():
    gone = asyncio.Event()

    async def hangs(body):
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async def fails(**_):
        raise LookupError("no such column")

    with pytest.raises(LookupError):
        await rewarding(FakeJudgeTransport(hangs), extra_rewards=[fails])(*TWO)
    await asyncio.wait_for(gone.wait(), 10)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 3.0], [1.0, math.nan]])
def test_weights_are_one_for_the_rubric_and_one_for_each_other(weights):
    with pytest.raises(ValueError, match="give 2 finite numbers"):
        rewarding(FakeJudgeTransport(), extra_rewards=[length], weights=weights)


def test_model_names_are_refused_as_functions():
    with pytest.raises(TypeError, match="extra_rewards contains a str"):
        rewarding(FakeJudgeTransport(), extra_rewards=["some/model"])


async def test_a_missing_reward_that_trl_counts_as_0_is_warned_about_once(caplog):
    reward = RubricReward(client(FakeJudgeTransport()), "r")
    trainer = Trainer([reward, length])
    with pytest.warns(RubricRewardWarning, match=r"TRL counts 0.*extra_rewards=\["):
        await reward(*TWO, **trainer.logs)
    assert "TRL counts 0" in caplog.text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await reward(*TWO, **trainer.logs)


@pytest.mark.parametrize("masks", [True, False])
async def test_alone_or_with_a_trainer_that_masks_rows_there_is_no_warning(masks):
    reward = rewarding(FakeJudgeTransport())
    trainer = Trainer([reward, length] if masks else [reward], masks_missing_rewards=masks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await reward(*TWO, **trainer.logs)
