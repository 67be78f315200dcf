"""A rubric reward in every TRL with async reward functions; `make test-trl TRL=0.27.0` tests that version."""

import os
from importlib.metadata import version

import pytest

pytest.importorskip("trl")

import torch
from packaging.version import Version
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tests.trainer_client.trl.training import dataset, one_step, policy, tokenizer
from trainer_client import Client
from trainer_client.trl import RubricReward, TooManyUnscored

pytestmark = pytest.mark.trl

CRITERIA = [{"id": "e", "description": "Has an e.", "verification": {"method": "contains", "any_of": ["e", "E"]}}]
LEAVES_OUT = Version(version("trl")) >= Version("1.6")
TRAINERS = [(GRPOTrainer, GRPOConfig), (RLOOTrainer, RLOOConfig)]


def trainer(kinds, folder, reward, **given):
    """One step on eight short responses of a random policy."""
    make, config = kinds
    settings = {
        **one_step(folder),
        "run_name": "every-trl",
        "max_completion_length": 48,
    }
    return make(
        policy(folder / "policy"),
        reward,
        config(**settings),
        train_dataset=dataset().remove_columns("rubric"),
        processing_class=tokenizer(),
        **given,
    )


def weights(model):
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def test_the_installed_version_is_the_requested_one():
    assert version("trl") == os.environ.get("ADJUDGE_TEST_TRL", version("trl"))


@pytest.mark.parametrize("kinds", TRAINERS, ids=["grpo", "rloo"])
def test_a_step_trains_on_the_rubrics_rewards(tmp_path, url, kinds):
    with Client(url, "every-trl") as client:
        reward = RubricReward(client, CRITERIA, name="letters")
    trained = trainer(kinds, tmp_path, reward)
    trained.train()
    rewards = [row.reward for row in reward.last.rows]
    assert len(rewards) == 8
    assert set(rewards) <= {0.0, 1.0}
    log = trained.state.log_history[0]
    assert log["rewards/letters/mean"] == pytest.approx(sum(rewards) / 8)
    assert log["reward"] == pytest.approx(sum(rewards) / 8)
    if Version(version("trl")) >= Version("1.0"):  # earlier versions have no log_metric
        assert log["letters/pass/e"] == pytest.approx(sum(rewards) / 8)


@pytest.mark.parametrize("kinds", TRAINERS, ids=["grpo", "rloo"])
def test_an_unreachable_judge_changes_no_weights_or_stops_training(tmp_path, unserved_url, kinds):
    reward = RubricReward(
        unserved_url, CRITERIA, preflight=False, wait_for_judge_s=0.0, max_unscored=1.0, deadline_s=0.2, grace_s=0.0
    )
    trained = trainer(kinds, tmp_path, reward)
    before = weights(trained.model)
    if LEAVES_OUT:
        trained.train()
    else:
        with pytest.raises(TooManyUnscored, match=r"8 of 8 responses have no reward \(8 unreachable\)"):
            trained.train()
    assert torch.equal(weights(trained.model), before)


@pytest.mark.parametrize("kinds", TRAINERS, ids=["grpo", "rloo"])
def test_the_functions_of_a_split_share_one_judging(tmp_path, url, kinds):
    also = {"id": "f", "kind": "factual", "description": "Has an f.", "verification": CRITERIA[0]["verification"]}
    functions = RubricReward(url, [*CRITERIA, also], components="kind").split()
    trained = trainer(kinds, tmp_path, functions)
    trained.train()
    assert {"rewards/rubric/point/mean", "rewards/rubric/factual/mean"} <= trained.state.log_history[0].keys()
    assert len(functions[0].whole.last.rows) == 8
