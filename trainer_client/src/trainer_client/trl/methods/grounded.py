"""Rubric-Grounded RL: partial credit by criteria that come from a document the policy never sees.

The judge reads the document (column `grounding`) and awards each criterion a part of its weight; the reward is the
share of all weight. The advantage has the mean of the *other* responses as its baseline, and the loss is the clipped
surrogate with the k3 estimate of the divergence from the reference policy, averaged over tokens.

TRL has most of the paper's variants as settings of its own, and they are used as they are; `docs/methods.md` lists
them. What is added: the leave-one-out baseline, the bound on k3's exponent, and groups without information left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trainer_client.advantages import Baseline, group_advantages
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
        dynamic_sampling: leave a group whose rewards are all equal out of the loss, after DAPO. No other group is
            sampled in its place: TRL draws the prompts of a step before it knows a reward.
        truncation_factor: what the reward of a response that was cut off is multiplied by; None leaves it as it is.
    """

    settings: ClassVar[Mapping[str, Any]] = {
        "beta": 0.01,
        "epsilon": 0.2,
        "loss_type": "dapo",
        "use_bias_correction_kl": False,
    }

    baseline: Baseline = "leave_one_out"
    dynamic_sampling: bool = False
    truncation_factor: float | None = None

    @property
    def scoring(self) -> Mapping[str, Any]:
        """One call for all criteria; what the judge could not read is worth 0, which the answer says (paper)."""
        penalty = {} if self.truncation_factor is None else {"truncation_factor": self.truncation_factor}
        return {"mode": "partial_credit", "on_failure": "zero", **penalty}

    def advantages(self, group: Sequence[Rollout]) -> list[Array]:
        """Give (r - mean of the others) / (sigma + eps), one number for all tokens of a response."""
        rewards = [rollout.reward for rollout in group]
        return [np.asarray(a) for a in group_advantages(rewards, baseline=self.baseline, **self._deviation)]

    def uninformative(self, group: Sequence[Rollout], memory: Any) -> bool:
        """Whether all rewards that there are equal each other."""
        return self.dynamic_sampling and len({r.reward for r in group if r.reward is not None}) < 2

    def compared_with(
        self, logps: "torch.Tensor", inputs: Mapping[str, "torch.Tensor"]
    ) -> "Mapping[str, torch.Tensor]":
        """Bound log(pi_ref / pi) before TRL makes k3 = exp(d) - d - 1 of it."""
        if "ref_per_token_logps" not in inputs:
            return {}
        distance = (inputs["ref_per_token_logps"] - logps).clamp(-DIVERGENCE_BOUND, DIVERGENCE_BOUND)
        return {"ref_per_token_logps": logps + distance}
