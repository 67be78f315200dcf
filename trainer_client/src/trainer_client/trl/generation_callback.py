"""What a callback of `RubricGRPOTrainer` is told beyond transformers' own events, and how it adds to the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback


@dataclass(frozen=True, slots=True)
class ScoredGeneration:
    """A generation batch after it was scored: N responses over all ranks, n of them this one's.

    Attributes:
        rewards: N, G consecutive ones to a prompt: what the method makes advantages of; None where there is none.
        functions: each reward function's N rewards, by the function's name.
        group_size: G.
        completions: n responses as the reward functions are given them, text or messages.
        first: the place among the N of the first of them.
        elsewhere: n times whether a response was generated from another prompt than the one it is trained on; None
            where all are generated from their own.
        training: whether it is trained on, or evaluated.
    """

    rewards: Sequence[float | None]
    functions: Mapping[str, Sequence[float | None]]
    group_size: int
    completions: Sequence[Any]
    first: int
    elsewhere: Sequence[bool] | None
    training: bool


class GenerationCallback(TrainerCallback):
    """A callback that measures generation batches; what its methods return is logged, by name.

    The methods are called on all ranks alike, so that they may gather. The log shows what the main process's return,
    averaged over a logging step.
    """

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Measure a generation batch, once for each."""
        return {}

    def on_loss(self, logps: torch.Tensor, inputs: Mapping[str, torch.Tensor], training: bool) -> Mapping[str, float]:
        """Measure a micro-batch when its loss is taken.

        Args:
            logps: B x T, log pi of the tokens under the policy as it is, without a gradient.
            inputs: what the loss is given: `completion_mask` among it, and `ref_per_token_logps` where beta is not 0.
            training: whether it is trained on, or evaluated.
        """
        return {}
