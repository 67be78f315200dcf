"""The baselines: plain GRPO on a rubric's reward, and Rubrics as Rewards.

Plain GRPO on a rubric's reward: the baseline that every paper compares with.

A = (r - mean) / (sigma + eps) for all tokens of a response, r being any mode's reward; with `RubricReward(mode=
"outcome")` it is training by the final answer alone. Everything else is TRL's own GRPO.

Rubrics as rewards: SRaR's criteria summed into one scalar for the whole response, its baseline.

r = base reward + the sum of all deltas; its group advantage goes to every token. What SRaR gains over this it gains by
knowing the step.
"""

from dataclasses import dataclass

from trainer_client.advantages import StepVariant
from trainer_client.trl.methods.base import Method
from trainer_client.trl.methods.srar import Srar


@dataclass(frozen=True, kw_only=True)
class RubricGrpo(Method):
    """Group advantages of the rubric's weighted mean."""


@dataclass(frozen=True, kw_only=True)
class Rar(Srar):
    """Group advantages of the base reward and all deltas together."""

    variant: StepVariant = "rar"
