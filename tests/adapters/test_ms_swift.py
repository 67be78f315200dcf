"""The reward function, called by the Swift function that computes its trainers' rewards."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from tests.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

pytest.importorskip("swift.rl_core.grpo_algorithm", reason=missing("ms-swift"))

import torch
from swift.rewards import orms
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import compute_rewards_per_func

from trainer_client import InvalidRequest
from trainer_client.adapters import NoReward
from trainer_client.adapters.ms_swift import rubric_orm

pytestmark = pytest.mark.adapters


def rewards(orm, texts, **columns):
    """The rewards that Swift computes for these completions; the class is created as Swift's trainer does."""
    orms["rubric"] = orm
    function = orms["rubric"](args=SimpleNamespace(run_name="swift"))
    samples = [
        GRPOSample.from_row(
            {
                "messages": [{"role": "user", "content": "7 * 2?"}, {"role": "assistant", "content": text}],
                "prompt_id": "p",
                "request_id": str(place),
                **{name: values[place] for name, values in columns.items()},
            }
        )
        for place, text in enumerate(texts)
    ]
    state = SimpleNamespace(global_step=3)
    found = compute_rewards_per_func(samples, [function], None, torch.device("cpu"), trainer_state=state)
    return found[:, 0].tolist(), type(function).__name__


def test_swift_computes_the_rubric_rewards(url):
    assert rewards(rubric_orm(url, RUBRIC, name="Style"), list(REWARDS)) == (list(REWARDS.values()), "Style")


def test_columns_of_the_dataset_provide_a_rubric_and_a_ground_truth(url):
    columns = {"rubric": [ANSWER] * 2, "ground_truth": ["14"] * 2}
    assert rewards(rubric_orm(url), [RIGHT, WRONG], **columns)[0] == [1.0, 0.0]


def test_a_ranking_needs_whole_groups():
    orm = rubric_orm("http://judge.invalid", RUBRIC, mode="ranking")
    function = orm(args=SimpleNamespace(run_name="swift", num_generations=4))
    with pytest.raises(InvalidRequest, match=r"scores 2 of them at a time, and a group has 4"):
        asyncio.run(function(["14", "15"], messages=[[{"role": "user", "content": "7 * 2?"}]] * 2))


def test_a_failed_judgement_is_an_error_since_swift_would_count_0(away):
    with pytest.raises(NoReward, match="unreachable"):
        rewards(rubric_orm(rubric=RUBRIC, **away), ["14"])
    assert torch.tensor([[math.nan]]).nansum(dim=1).item() == 0.0  # the sum in swift/rl_core/advantage.py
