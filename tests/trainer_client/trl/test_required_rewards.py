"""Other reward functions beside the rubric's: required ones, and the effect of TRL's reward scaling."""

import logging
import math

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from tests.trainer_client.trl.generating import batch
from tests.trainer_client.trl.training import (
    BARE,
    PLAIN,
    RIGHT,
    SLIP,
    WRONG,
    dataset,
    policy,
    saying,
    settings,
    tokenizer,
    trainer,
)
from trainer_client.trl import RubricGRPOTrainer, RubricReward, RubricRewardWarning

pytestmark = pytest.mark.trl

TEXTS = [RIGHT, SLIP, WRONG, BARE]
WEIGHED = [1.0, 1 / 3, 0.0, 0.0]


def inapplicable(prompts, **_):
    """Return None for every response, as TRL's functions do for other tasks."""
    return [None] * len(prompts)


def every_second(prompts, **_):
    return [None if row % 2 else 0.5 for row in range(len(prompts))]


def endless(prompts, **_):
    return [math.inf if row == 0 else 0.0 for row in range(len(prompts))]


def test_a_function_that_does_not_apply_changes_nothing(tmp_path, url):
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), rewards=[inapplicable])
    alone = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN))
    inputs, expected = batch(made), batch(alone)
    torch.testing.assert_close(inputs["advantages"], expected["advantages"])
    assert torch.equal(inputs["completion_mask"], expected["completion_mask"])
    assert made._metrics["train"]["rewards/inapplicable/missing"] == [1.0]
    assert made._metrics["train"]["rewards/RubricReward/missing"] == [0.0]


def test_responses_without_a_required_reward_are_excluded_and_the_function_is_named(tmp_path, url, caplog):
    given = {"rewards": [every_second], "required_rewards": ["every_second"]}
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), **given)
    with caplog.at_level(logging.WARNING, logger="trainer_client.trl.trainer"):
        inputs = batch(made)
    assert inputs["completion_mask"].any(dim=1).tolist() == [True, False] * 4
    assert "'every_second' is required and gave no reward for 4 of 8" in caplog.text


def test_an_infinite_reward_is_excluded(tmp_path, url):
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), rewards=[endless])
    assert batch(made)["completion_mask"].any(dim=1).tolist() == [False] + [True] * 7


def test_an_unknown_required_function_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"required_rewards contains 'concise', which is not .* are RubricReward"):
        trainer(tmp_path, "http://judge.test", data=dataset(PLAIN), required_rewards=["concise"])


def test_a_plain_trl_config_is_refused(tmp_path):
    plain = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", num_generations=2)
    with pytest.raises(TypeError, match="args is a GRPOConfig, which has no method; give a RubricGRPOConfig"):
        RubricGRPOTrainer(
            policy(tmp_path / "policy"),
            RubricReward("http://judge.test", preflight=False),
            plain,
            train_dataset=dataset(),
        )


@pytest.mark.parametrize(
    "given", [{"scale_rewards": "batch"}, {"multi_objective_aggregation": "normalize_then_sum"}], ids=str
)
def test_the_plain_method_has_trls_advantages_with_batch_scaling(tmp_path, url, given):
    def constant(prompts, **_):
        return [float(row % 3) for row in range(len(prompts))]

    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), rewards=[constant], **given)
    theirs = GRPOTrainer(
        policy(tmp_path / "policy"), [RubricReward(url), constant], settings(tmp_path, **given),
        train_dataset=dataset(PLAIN), processing_class=tokenizer(), rollout_func=saying(*TEXTS),
    )  # fmt: skip
    with pytest.warns(RubricRewardWarning, match="the trainer has other reward functions"):
        expected = batch(theirs)["advantages"]
    torch.testing.assert_close(batch(made)["advantages"], expected)
