"""The undocumented parts of TRL that the trainer relies on, one test each, so that a new minor version that changes
one of them fails here first, with a clear message.
"""

import inspect
import math
from importlib.metadata import version

import pytest
import torch
from trl import GRPOTrainer

from tests.trainer_client.trl.training import PLAIN, RIGHT, WRONG, dataset, trainer
from trainer_client.trl import RubricGRPOTrainer
from trainer_client.trl.methods import RubricGrpo

pytestmark = pytest.mark.trl

SIGNATURES = {
    "_get_train_sampler": ["self", "dataset"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_compute_loss": ["self", "model", "inputs"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
}
HELP = "TRL changed code that trainer_client.trl.trainer overrides: adapt that file, then these tests, then the pin"


def row_inputs(trained):
    inputs = trained._generate_and_score_completions([dict(row) for row in dataset(PLAIN) for _ in range(4)])
    trained.current_gradient_accumulation_steps = 1
    return inputs


def test_the_minor_version_of_trl_is_the_supported_one():
    assert version("trl").split(".")[:2] == ["1", "16"], HELP


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_overridden_method_keeps_its_parameters(name):
    assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters) == SIGNATURES[name], HELP


def test_every_overridden_private_method_exists_in_trl_or_transformers():
    ours = [name for name in vars(RubricGRPOTrainer) if inspect.isfunction(vars(RubricGRPOTrainer)[name])]
    called_by_trl = [name for name in ours if "super()." + name in inspect.getsource(getattr(RubricGRPOTrainer, name))]
    assert {*SIGNATURES, "_get_per_token_logps_and_entropies"} <= set(called_by_trl)
    for name in called_by_trl:
        assert hasattr(GRPOTrainer, name), HELP


def test_a_generation_batch_has_the_keys_that_the_trainer_replaces(tmp_path, url):
    inputs = row_inputs(trainer(tmp_path, url, texts=[RIGHT, WRONG], data=dataset(PLAIN), beta=0.1))
    missing = {
        "advantages", "completion_ids", "completion_mask", "num_items_in_batch", "ref_per_token_logps",
    } - inputs.keys()  # fmt: skip
    assert not missing, f"{HELP}: no {missing} in a generation batch"
    assert inputs["completion_mask"].shape == inputs["completion_ids"].shape, HELP
    assert inputs["num_items_in_batch"].ndim == 0, HELP


def test_rows_are_gathered_in_the_order_of_groups(tmp_path, url):
    trained = trainer(tmp_path, url, texts=[RIGHT, WRONG, WRONG, WRONG], data=dataset(PLAIN))
    trained.train()
    prompts = list(trained._logs["prompt"])
    assert prompts == sorted(prompts), f"{HELP}: the members of a group are not consecutive"


def test_the_loss_accepts_an_advantage_per_token(tmp_path, url):
    trained = trainer(tmp_path, url, texts=[RIGHT], data=dataset(PLAIN))
    inputs = row_inputs(trained)
    inputs["advantages"] = torch.zeros_like(inputs["completion_ids"], dtype=torch.float32)
    inputs["advantages"][0, 3] = 5.0
    loss = trained._compute_loss(trained.model, inputs)
    assert loss.item() == pytest.approx(-5.0 / inputs["completion_mask"].sum().item()), HELP


class DoubledLikelihoodGrpo(RubricGrpo):
    """A method that makes every token exp(log 2) as likely as before."""

    def override_loss_inputs(self, logps, inputs):
        return {"old_per_token_logps": logps - math.log(2)}


def test_the_loss_reads_the_old_log_probabilities_after_computing_the_new_ones(tmp_path, url):
    trained = trainer(tmp_path, url, texts=[RIGHT], data=dataset(PLAIN), epsilon=9.0)
    trained.method = DoubledLikelihoodGrpo()
    inputs = row_inputs(trained)
    inputs["advantages"] = torch.ones(8)
    loss = trained._compute_loss(trained.model, inputs)
    assert loss.item() == pytest.approx(-2.0, rel=1e-5), (
        f"{HELP}: the ratio does not use the method's old log-probabilities"
    )
    assert loss.grad_fn is not None


def test_a_reward_function_can_access_its_trainer(tmp_path, url):
    seen = []

    def looks(prompts, log_metric, **_):
        seen.append(getattr(log_metric, "__self__", None))
        return [0.0] * len(prompts)

    trained = trainer(tmp_path, url, texts=[RIGHT], data=dataset(PLAIN), rewards=[looks])
    row_inputs(trained)
    assert seen == [trained], f"{HELP}: log_metric is not a method of the trainer"
    assert trained.eos_token_ids == [trained.processing_class.eos_token_id], HELP
