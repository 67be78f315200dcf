"""GDPO: each component of a reward is normalised within the group before they are added (arXiv:2601.05242).

With `scaled_by="correlations"`, their sum is divided by their correlations instead (CorrGRPO, arXiv:2609.36820).

GRPO normalises the sum of a response's rewards, so that responses with the same total by different criteria have the
same advantage. GDPO normalises each component, adds them with their weights, and normalises the sums over the batch.
The components are those of the rubric's reward. What penalties and other reward functions add is one more component, of
weight 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trainer_client.advantages import Array, ScaledBy, component_advantages
from trainer_client.trl.methods.base import NO_ADVANTAGE, Method, Rollout

OTHER = "(other rewards and penalties)"
"""The component of all that is not the rubric's own reward."""

_SINGLE_PRECISION = 1e-6
"""The share of a reward up to which a difference comes from TRL's single precision."""


@dataclass(frozen=True, kw_only=True)
class Gdpo(Method):
    """Advantages from component rewards.

    Attributes:
        scaled_by: `deviations` for each component by its own (GDPO), `correlations` for their sum by theirs (CorrGRPO).
    """

    always_scales: ClassVar[bool] = True
    scaled_by: ScaledBy = "deviations"

    @property
    def reward_defaults(self) -> Mapping[str, Any]:
        """Reward each criterion by itself; a failed verdict costs a response only the component that needs it."""
        return {"mode": "weighted_mean", "on_failure": "skip", "components": "criterion"}

    def batch_advantages(self, groups: Sequence[Sequence[Rollout]]) -> list[Array]:
        """Compute the advantages of all rollouts of a batch, one number for all tokens of a response."""
        weights = [_weights(group) for group in groups]
        advantages = component_advantages(
            list(map(_components, groups)), weights, ddof=self.ddof, eps=self.eps, scaled_by=self.scaled_by
        )
        return [advantage for group in advantages for advantage in group]

    def advantages(self, group: Sequence[Rollout]) -> list[Array]:
        """Compute the advantages of a batch of one group."""
        return self.batch_advantages([group])

    def uninformative(self, group: Sequence[Rollout], memory: Any) -> bool:
        """Whether to leave a group out: by `reward`, if its components give no advantage, whatever the totals are."""
        if not self.dynamic_sampling or self.filter_metric == "accuracy":
            return super().uninformative(group, memory)
        return not any(abs(float(advantage)) > NO_ADVANTAGE for advantage in self.advantages(group))


def _components(group: Sequence[Rollout]) -> list[dict[str, float | None]]:
    """The component rewards of each rollout of a group; none for one without a reward."""
    others = [None if one.reward is None else one.reward - one.weight * (one.judged or 0.0) for one in group]
    known = [other for other in others if other is not None]
    scale = max([1.0, *(abs(one.reward) for one in group if one.reward is not None)])
    differ = bool(known) and max(known) - min(known) > _SINGLE_PRECISION * scale
    return [
        {} if one.reward is None else {**one.components, **({OTHER: other} if differ else {})}
        for one, other in zip(group, others, strict=True)
    ]


def _weights(group: Sequence[Rollout]) -> dict[str, float]:
    """The weights of a group's components in the reward; equal ones if its mode is not linear."""
    weights = {OTHER: 1.0}
    for one in group:
        equal = dict.fromkeys(one.components, 1.0 / max(1, len(one.components)))
        weights |= {name: one.weight * share for name, share in (one.component_weights or equal).items()}
    return weights
