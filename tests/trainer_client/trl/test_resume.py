"""Training resumed from a checkpoint equals uninterrupted training."""

import json

import pytest
import torch

from tests.trainer_client.trl.training import CRITERIA, dataset, trainer, weights
from trainer_client import Client
from trainer_client.trl import RubricReward

pytestmark = pytest.mark.trl

SETTINGS = {
    "method": "srar", "num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 8,
    "optim": "adamw_torch", "learning_rate": 1e-2, "lr_scheduler_type": "linear", "shuffle_dataset": True,
    "save_steps": 2, "save_strategy": "steps",
}  # fmt: skip


def noisy(prompts, completions, **_):
    """A reward that differs between samples."""
    return [sum(map(ord, completion)) % 7 / 7 for completion in completions]


@pytest.mark.parametrize(
    ("prompts", "checkpoint", "more"),
    [(8, 2, {}), (8, 2, {"steps_per_generation": 2}), (3, 4, {}), (4, 4, {})],
    ids=["every step samples", "two steps share samples", "within the second epoch", "between two epochs"],
)
def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path, url, prompts, checkpoint, more):
    data = dataset(prompts=prompts)
    whole = trainer(tmp_path, url, data=data, rewards=[noisy], max_steps=6, **SETTINGS, **more)
    whole.train()
    again = trainer(tmp_path, url, data=data, rewards=[noisy], max_steps=6, **SETTINGS, **more)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{checkpoint}"))
    assert again.state.global_step == 6
    assert torch.equal(weights(again.model), weights(whole.model))
    later = [{k: v for k, v in row.items() if "time" not in k and "_s" not in k} for row in whole.state.log_history]
    rewards = [row["rewards/noisy/mean"] for row in later if "rewards/noisy/mean" in row]
    assert [row["rewards/noisy/mean"] for row in again.state.log_history if "rewards/noisy/mean" in row] == rewards


def test_a_resumed_run_keeps_its_pinned_rubric_version(tmp_path, url):
    with Client(url) as client:
        first = client.publish_rubric("tests/resumed", CRITERIA)
    data = dataset(prompts=6).remove_columns("rubric")
    begun = trainer(tmp_path, url, data=data, reward=RubricReward(url, "tests/resumed"), max_steps=2, **SETTINGS)
    begun.train()
    with Client(url) as client:
        newer = client.publish_rubric("tests/resumed", [dict(CRITERIA[0], description="Another."), *CRITERIA[1:]])
    kept = json.loads((tmp_path / "out" / "checkpoint-2" / "adjudge_state.json").read_text())
    assert kept == {"pins": {"tests/resumed": first.reference}}
    resumed = trainer(tmp_path, url, data=data, reward=RubricReward(url, "tests/resumed"), max_steps=4, **SETTINGS)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert newer.version == first.version + 1
    criteria = resumed.rubric_reward.last.rows[0].criteria
    assert criteria[0].description == CRITERIA[0]["description"]
