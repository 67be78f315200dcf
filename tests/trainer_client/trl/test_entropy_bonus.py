"""The entropy bonus is aggregated like the policy term, whatever the loss divides by."""

import pytest
import torch
from trl import GRPOTrainer

from tests.trainer_client.trl.training import PLAIN, dataset, trainer

pytestmark = pytest.mark.trl

ROWS, WEIGHT = 4, 0.01


class Tokens:
    """Log-probabilities and entropies in place of a model's, so that gradients are per token."""

    def __init__(self, length):
        generator = torch.Generator().manual_seed(1)
        self.logps = (-torch.rand(ROWS, length, generator=generator)).requires_grad_()
        self.entropies = torch.rand(ROWS, length, generator=generator).requires_grad_()

    def inputs(self, lengths, advantage=1.0):
        longest = self.logps.size(1)
        mask = (torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)).long()
        return {
            "prompt_ids": torch.ones(ROWS, 2, dtype=torch.long),
            "prompt_mask": torch.ones(ROWS, 2, dtype=torch.long),
            "completion_ids": torch.ones(ROWS, longest, dtype=torch.long),
            "completion_mask": mask,
            "advantages": torch.full((ROWS,), advantage),
            "num_items_in_batch": mask.sum(),
        }


def gradients(tmp_path, monkeypatch, length, lengths=None, **given):
    """Gradients of the loss by each token's log-probability and by its entropy."""
    tokens = Tokens(length)
    answer = tokens.logps, tokens.entropies, None
    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", lambda *_, **__: answer)
    settings = {"method": "rgr", "entropy_coef": WEIGHT, "max_completion_length": length} | given
    made = trainer(tmp_path, "http://judge.test", data=dataset(PLAIN), **settings)
    made.current_gradient_accumulation_steps = 1
    made._compute_loss(made.model, tokens.inputs(lengths or [length] * ROWS)).backward()
    return tokens.logps.grad, tokens.entropies.grad


@pytest.mark.parametrize("longest", [40, 512, 5120])
@pytest.mark.parametrize("lengths", [[40, 40, 40, 40], [40, 5, 17, 31]])
def test_the_bonus_has_the_same_share_of_the_gradient_for_any_response_length(tmp_path, monkeypatch, longest, lengths):
    policy, bonus = gradients(tmp_path, monkeypatch, 40, lengths, max_completion_length=longest)
    assert policy.norm() > 0
    assert (bonus.norm() / policy.norm()).item() == pytest.approx(WEIGHT, rel=1e-4)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo"])
@pytest.mark.parametrize("method", ["rgr", "rubric"])
def test_the_bonus_weights_tokens_like_the_policy_term(tmp_path, monkeypatch, loss_type, method):
    given = {"loss_type": loss_type, "method": method, "epsilon": 10.0, "epsilon_high": 10.0}
    policy, bonus = gradients(tmp_path, monkeypatch, 20, [20, 7, 1, 12], **given)
    torch.testing.assert_close(bonus, WEIGHT * policy, rtol=1e-4, atol=1e-7)
    assert (bonus[1, 7:] == 0).all()


def test_the_bonus_applies_to_the_tokens_that_the_loss_is_restricted_to(tmp_path, monkeypatch):
    policy, bonus = gradients(tmp_path, monkeypatch, 20, top_entropy_quantile=0.25)
    assert (policy != 0).float().mean() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(bonus, WEIGHT * policy, rtol=1e-4, atol=1e-7)


def test_an_adaptive_bonus_is_zero_while_entropy_is_above_its_target(tmp_path, monkeypatch):
    adaptive = {"use_adaptive_entropy": True, "entropy_target": 0.1, "entropy_coef_min": 0.0, "entropy_coef_max": 1.0}
    _, bonus = gradients(tmp_path, monkeypatch, 20, **adaptive)
    assert bonus is None or (bonus == 0).all()
