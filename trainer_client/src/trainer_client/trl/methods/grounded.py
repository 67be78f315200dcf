"""Rubric-Grounded RL: partial credit by criteria that come from a document the policy never sees.

The judge reads the document (column `grounding`) and awards each criterion a part of its weight; the reward is the
share of all weight. The advantage has the mean of the *other* responses as its baseline, and the loss is the clipped
surrogate with the k3 estimate of the divergence from the reference policy, averaged over tokens.

TRL has most of the paper's variants as settings of its own, and they are used as they are; `docs/methods.md` lists
them. What is added: the leave-one-out baseline, and the bound on k3's exponent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trainer_client.advantages import Baseline, Deviation, group_advantages
from trainer_client.losses import sequence_masked_weights
from trainer_client.trl.methods.base import Array, Method, Rollout

if TYPE_CHECKING:
    import torch

DIVERGENCE_BOUND = 20.0
"""log(pi_ref / pi) is held within this on either side, so that no single token's divergence explodes."""


@dataclass(frozen=True, kw_only=True)
class Grounded(Method):
    """Leave-one-out advantages of partial credit.

    Attributes:
        baseline: `leave_one_out` (paper), or `mean`.
        deviation: what advantages are divided by: `group`, the whole group's deviation (the paper's words), or
            `leave_one_out`, that of the others (NeMo-RL, which the paper runs on).
        sequence_band: keep a response only where the geometric mean of its tokens' pi_old / pi_vllm is within
            [low, high], and weigh its tokens by their own ratios (Seq-Mask-TIS); None leaves TRL's correction as set.
        truncation_factor: what the reward of a response that was cut off is multiplied by; None leaves it as it is.
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
        """One call for all criteria; an invalid output of the judge is worth 0, which the answer says (paper)."""
        penalty = {} if self.truncation_factor is None else {"truncation_factor": self.truncation_factor}
        return {"mode": "partial_credit", "on_failure": "zero_unparseable", **penalty}

    def advantages(self, group: Sequence[Rollout]) -> list[Array]:
        """Give (r - mean of the others) / (sigma + eps), one number for all tokens of a response."""
        rewards = [rollout.reward for rollout in group]
        how = {"baseline": self.baseline, "deviation": self.deviation, **self._deviation}
        return [np.asarray(a) for a in group_advantages(rewards, **how)]

    def sampling_weights(self, batch: "Mapping[str, torch.Tensor]") -> "Mapping[str, torch.Tensor]":
        """Weigh by Seq-Mask-TIS where a band is given and TRL corrects for vLLM's probabilities."""
        if self.sequence_band is None or "importance_sampling_ratio" not in batch:
            return {}
        mask = batch["completion_mask"] * batch.get("tool_mask", 1)
        logps = batch["old_per_token_logps"], batch["sampling_per_token_logps"]
        low, high = self.sequence_band
        return {"importance_sampling_ratio": sequence_masked_weights(*logps, mask=mask, low=low, high=high)}

    def override_loss_inputs(
        self, logps: "torch.Tensor", inputs: Mapping[str, "torch.Tensor"]
    ) -> "Mapping[str, torch.Tensor]":
        """Bound log(pi_ref / pi) before TRL makes k3 = exp(d) - d - 1 of it."""
        if "ref_per_token_logps" not in inputs:
            return {}
        distance = (inputs["ref_per_token_logps"] - logps).clamp(-DIVERGENCE_BOUND, DIVERGENCE_BOUND)
        return {"ref_per_token_logps": logps + distance}
