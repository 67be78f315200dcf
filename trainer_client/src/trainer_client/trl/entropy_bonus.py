"""The entropy bonus of `RubricGRPOTrainer`, aggregated over tokens as the policy term of TRL's loss is."""

from collections.abc import Mapping
from typing import Any

import torch


def aggregate(
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    loss_type: str,
    longest: int,
    accumulation: float,
    items: torch.Tensor | float,
) -> torch.Tensor:
    """Aggregate B x T values as TRL aggregates the policy term of a micro-batch.

    Args:
        values: B x T, one for each token.
        mask: B x T, 1 for a token that counts, 0 for others.
        loss_type: TRL's `loss_type`.
        longest: the longest completion allowed, in tokens, which `dr_grpo` divides by.
        accumulation: the number of micro-batches in an optimizer step.
        items: the number of this process's tokens in an optimizer step, which `dapo`, `cispo` and `vespo` divide by.

    Returns:
        A scalar tensor.
    """
    counted = values * mask
    match loss_type:
        case "grpo" | "sapo":
            return (counted.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean() / accumulation
        case "bnpo":
            return counted.sum() / mask.sum().clamp(min=1.0) / accumulation
        case "dr_grpo":
            return counted.sum() / (values.size(0) * longest) / accumulation
        case "luspo":
            return counted.sum(-1).mean() / accumulation
        case _:
            return counted.sum() / items


class EntropyBonus:
    """Replaces TRL's entropy bonus, one micro-batch at a time, with one aggregated over tokens as the policy term is.

    TRL subtracts the bonus from the loss as a mean over tokens, whatever the loss divides by. `dr_grpo` divides by the
    longest completion allowed: with 5,120 tokens allowed and 40 written, the bonus weighs 128 times as much relative
    to the policy term as with 40 allowed. verl, which RGR-GRPO was run on, aggregates both in the same way.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._entropies: torch.Tensor | None = None
        self._chosen: torch.Tensor | None = None
        self._coefficient = 0.0

    def begin(self) -> None:
        """Begin a micro-batch, and note the coefficient that TRL is about to apply."""
        trainer = self._trainer
        self._entropies = self._chosen = None
        self._coefficient = float(trainer.entropy_coef) if trainer._entropy_bonus_enabled else 0.0
        if trainer.use_adaptive_entropy and trainer._last_world_entropy > trainer.args.entropy_target:
            self._coefficient = 0.0

    def observe(self, entropies: torch.Tensor | None) -> None:
        """Record the entropies of the micro-batch's tokens, B x T, with their gradient."""
        self._entropies = entropies

    def restrict_to(self, mask: torch.Tensor) -> None:
        """Record the mask of the tokens that the loss is restricted to, B x T (`top_entropy_quantile`)."""
        self._chosen = mask

    def correct(self, loss: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Replace TRL's bonus in a loss with this one."""
        if self._coefficient == 0.0 or self._entropies is None:
            return loss
        trainer, entropies = self._trainer, self._entropies
        training = trainer.model.training
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        bonus_mask = mask if self._chosen is None else mask * self._chosen
        accumulation = float(trainer.current_gradient_accumulation_steps) if training else 1.0
        items = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        if training:
            items = items * accumulation / trainer.args.steps_per_generation
        theirs = (entropies * bonus_mask).sum() / bonus_mask.sum().clamp(min=1.0) / accumulation
        ours = aggregate(
            entropies if self._chosen is None else entropies * self._chosen,
            mask,
            loss_type=trainer.loss_type,
            longest=trainer.max_completion_length,
            accumulation=accumulation,
            items=items,
        )
        return loss + self._coefficient * (theirs - ours)
