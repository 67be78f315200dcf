"""What a callback of `RubricGRPOTrainer` is told beyond transformers' own events, and how it adds to the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback

from trainer_client.trl.reward import RubricReward


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
        unpenalised: N, `rewards` before length and truncation penalties; None for all where none was told of.
        judged: N, the judge's own rewards before penalties, whatever is trained on; None for all without a judge.
        correct: N times whether the criteria of kind `answer` are satisfied; None where there are none or where
            missing verdicts decide it, and for all where none was told of.
        step: how many optimizer steps were done before it.
        reward: the trainer's `RubricReward`, whose `last` holds the n responses as they were judged; None without one.
    """

    rewards: Sequence[float | None]
    functions: Mapping[str, Sequence[float | None]]
    group_size: int
    completions: Sequence[Any]
    first: int
    off_policy: Sequence[bool] | None
    training: bool
    unpenalised: Sequence[float | None] | None = None
    judged: Sequence[float | None] | None = None
    correct: Sequence[bool | None] | None = None
    step: int = 0
    reward: RubricReward | None = None


class GenerationCallback(TrainerCallback):
    """A callback that measures generation batches; what its methods return is logged, by name.

    The methods are called on all ranks alike, so that they may gather. The log shows what the main process's return,
    averaged over a logging step.
    """

    def needs_reference_logps(self, training: bool) -> bool:
        """Whether `on_loss` is to be given the reference's log-probabilities where TRL computes none.

        That takes a copy of the policy as it was before training, and a forward pass of it for each micro-batch.
        """
        return False

    def state(self) -> Mapping[str, Any] | None:
        """Give what a checkpoint keeps, as JSON takes it; None where there is nothing to keep."""
        return None

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state of a checkpoint."""

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Measure a generation batch, once for each."""
        return {}

    def on_loss(self, logps: torch.Tensor, inputs: Mapping[str, torch.Tensor], training: bool) -> Mapping[str, float]:
        """Measure a micro-batch when its loss is taken.

        Args:
            logps: B x T, log pi of the tokens under the policy as it is, without a gradient.
            inputs: what the loss is given: `completion_mask` among it, and `ref_per_token_logps` where beta is not 0 or
                a callback wants it.
            training: whether it is trained on, or evaluated.
        """
        return {}
