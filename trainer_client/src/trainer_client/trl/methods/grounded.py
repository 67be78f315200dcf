"""Rubric-Grounded RL: partial credit by criteria that come from a document the policy never sees.

The judge reads the document (column `grounding`) and awards each criterion a part of its weight; the reward is the
awarded share of the total weight. The baseline of an advantage is the mean of the *other* responses, and the loss is
the clipped surrogate with the k3 estimate of the divergence from the reference policy, averaged over tokens.

Most variants of the paper are settings of TRL: see `docs/reference/methods.md`. This module adds the leave-one-out
baseline and the bound on k3's exponent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trainer_client.advantages import Array, Baseline, Deviation, group_advantages
from trainer_client.losses import sequence_masked_weights
from trainer_client.trl.methods.base import Method, Rollout

if TYPE_CHECKING:
    import torch

DIVERGENCE_BOUND = 20.0
"""The bound on |log(pi_ref / pi)|, so that the divergence of a single token cannot explode."""


@dataclass(frozen=True, kw_only=True)
class Grounded(Method):
    """Leave-one-out advantages of partial credit.

    Attributes:
        baseline: `leave_one_out` (paper), or `mean`.
        deviation: the standard deviation that advantages are divided by: `group`, the whole group's (the paper's
            text), or `leave_one_out`, that of the other responses (NeMo-RL, which the paper runs on).
        sequence_band: keep a response only if the geometric mean of its tokens' pi_old / pi_vllm is within [low, high],
            and weight its tokens by their own ratios (Seq-Mask-TIS). None keeps TRL's correction.
        truncation_factor: multiplies the reward of a response that was cut off; None leaves it unchanged.
    """

    settings: ClassVar[Mapping[str, Any]] = {
        "beta": 0.01,
        "epsilon": 0.2,
        "loss_type": "dapo",
        "lr_scheduler_type": "constant_with_warmup",
        "use_bias_correction_kl": False,
        "vllm_importance_sampling_correction": False,
        "warmup_steps": 10,
    }

    baseline: Baseline = "leave_one_out"
    deviation: Deviation = "group"
    sequence_band: tuple[float, float] | None = None
    truncation_factor: float | None = None

    @property
    def reward_defaults(self) -> Mapping[str, Any]:
        """Judge all criteria in one call; an invalid output of the judge gives a reward of 0 (paper)."""
        penalty = {} if self.truncation_factor is None else {"truncation_factor": self.truncation_factor}
        return {"mode": "partial_credit", "on_failure": "zero_unparseable", **penalty}

    def advantages(self, group: Sequence[Rollout]) -> list[Array]:
        """Compute (r - mean of the others) / (sigma + eps), one number for all tokens of a response."""
        rewards = [rollout.reward for rollout in group]
        options = {"baseline": self.baseline, "deviation": self.deviation, **self._deviation}
        return [np.asarray(a) for a in group_advantages(rewards, **options)]

    def sampling_weights(self, batch: "Mapping[str, torch.Tensor]") -> "Mapping[str, torch.Tensor]":
        """Apply Seq-Mask-TIS weights if a band is set and TRL corrects for vLLM's probabilities."""
        if self.sequence_band is None or "importance_sampling_ratio" not in batch:
            return {}
        mask = batch["completion_mask"] * batch.get("tool_mask", 1)
        logps = batch["old_per_token_logps"], batch["sampling_per_token_logps"]
        low, high = self.sequence_band
        return {"importance_sampling_ratio": sequence_masked_weights(*logps, mask=mask, low=low, high=high)}

    def override_loss_inputs(
        self, logps: "torch.Tensor", inputs: Mapping[str, "torch.Tensor"]
    ) -> "Mapping[str, torch.Tensor]":
        """Bound d = log(pi_ref / pi) before TRL computes k3 = exp(d) - d - 1."""
        if "ref_per_token_logps" not in inputs:
            return {}
        distance = (inputs["ref_per_token_logps"] - logps).clamp(-DIVERGENCE_BOUND, DIVERGENCE_BOUND)
        return {"ref_per_token_logps": logps + distance}
