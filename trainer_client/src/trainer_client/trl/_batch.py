"""The groups of one generation batch, over all ranks: a method's advantages, and which rollouts the loss leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainer_client.trl.methods import Method, Rollout
from trainer_client.trl.methods.base import Array


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """What came of the rollouts of all ranks, in the order they were gathered.

    Attributes:
        rewards: of each rollout, what advantages are taken of; None where there is none.
        advantages: for each rollout an array of its T_i tokens, or one number for all of them.
        kept: whether the loss is taken over it: it has a reward, and its group tells something.
        metrics: what the log shows of the batch, by name.
        memory: what the method remembers after it.
    """

    rewards: list[float | None]
    advantages: list[Array]
    kept: list[bool]
    metrics: dict[str, float]
    memory: Any

    @classmethod
    def from_rollouts(
        cls, method: Method, rollouts: Sequence[Rollout], group_size: int, memory: Any = None
    ) -> "AdvantageBatch":
        """Let a method judge N rollouts, `group_size` consecutive ones to a group."""
        all_rewards: list[float | None] = []
        advantages: list[Array] = []
        kept: list[bool] = []
        unscored = uninformative = 0
        groups = [rollouts[start : start + group_size] for start in range(0, len(rollouts), group_size)]
        for group in groups:
            rewards = method.rewards(group)
            all_rewards += rewards
            left_out = method.uninformative(group, memory)
            advantages += method.advantages(group)
            kept += [reward is not None and not left_out for reward in rewards]
            unscored += all(reward is None for reward in rewards)
            uninformative += left_out
        metrics = {
            "rubric/left_out": 1 - sum(kept) / len(kept),
            "groups/unscored": unscored / len(groups),
            "groups/uninformative": uninformative / len(groups),
            **method.metrics(groups, memory),
        }
        return cls(all_rewards, advantages, kept, metrics, method.update_memory(memory, groups))

    def tensor(self, own: slice, completion_ids: torch.Tensor) -> torch.Tensor:
        """Give the advantages of one rank's rollouts: B, or B x T where they differ by token, padded with 0."""
        mine = self.advantages[own]
        if all(advantage.ndim == 0 for advantage in mine):
            return torch.tensor(np.stack(mine), dtype=torch.float32, device=completion_ids.device)
        padded = np.zeros(tuple(completion_ids.shape))
        for row, advantage in enumerate(mine):
            padded[row, : advantage.size] = advantage
        return torch.tensor(padded, dtype=torch.float32, device=completion_ids.device)

    @property
    def means(self) -> list[float]:
        """Each rollout's advantage, averaged over its tokens."""
        return [float(advantage.mean()) if advantage.size else 0.0 for advantage in self.advantages]
