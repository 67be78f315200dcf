"""No step without a reward: an optimizer with momentum would move the policy even when every gradient is zero.

Where no response of a whole optimizer step has a reward, on any rank (the judge was away, or every group was left
out), the gradients are dropped before the step, and the optimizer leaves the parameters alone. Under DeepSpeed, which
keeps gradients of its own, they stay zero but momentum still acts.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainerCallback

logger = logging.getLogger(__name__)


class SkipEmptySteps(TrainerCallback):
    """Drops the gradients of an optimizer step to which no token contributed."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._tokens = 0
        self.skipped = 0

    def observe(self, inputs: Mapping[str, Any]) -> None:
        """Count the tokens of one micro-batch that the loss is taken over."""
        if self._trainer.model.training:
            self._tokens += int(inputs["completion_mask"].sum())

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Drop the gradients if no rank saw a token."""
        accelerator = self._trainer.accelerator
        total = accelerator.reduce(torch.tensor(float(self._tokens), device=accelerator.device), reduction="sum")
        self._tokens = 0
        if total.item() > 0:
            return
        self.skipped += 1
        logger.warning("step %d: no response has a reward, so the policy is left as it is", state.global_step + 1)
        for parameter in self._trainer.model.parameters():
            parameter.grad = None
