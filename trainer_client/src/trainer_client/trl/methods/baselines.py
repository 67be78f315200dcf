"""The baselines: plain GRPO on a rubric's reward, and Rubrics as Rewards.

Plain GRPO is the baseline of every paper: A = (r - mean) / (sigma + eps) for all tokens of a response, where r is the
reward of any mode. With `RubricReward(mode="outcome")` it trains on the final answer alone. Everything else is TRL's
own GRPO.

Rubrics as Rewards is SRaR's baseline: r = base reward + the sum of all step deltas, and every token gets its group
advantage. SRaR differs from it only in assigning deltas to steps.
"""

from dataclasses import dataclass

from trainer_client.advantages import StepVariant
from trainer_client.trl.methods.base import Method
from trainer_client.trl.methods.srar import Srar


@dataclass(frozen=True, kw_only=True)
class RubricGrpo(Method):
    """Plain GRPO: group advantages of the rubric's reward."""


@dataclass(frozen=True, kw_only=True)
class Rar(Srar):
    """Rubrics as Rewards: group advantages of the base reward plus all deltas."""

    variant: StepVariant = "rar"
