"""Plain GRPO on a rubric's reward: the baseline that every paper compares with.

A = (r - mean) / (sigma + eps) for all tokens of a response, r being any mode's reward; with `RubricReward(mode=
"outcome")` it is training by the final answer alone. Everything else is TRL's own GRPO.
"""

from dataclasses import dataclass

from trainer_client.trl.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class RubricGrpo(Method):
    """Group advantages of the rubric's weighted mean."""
