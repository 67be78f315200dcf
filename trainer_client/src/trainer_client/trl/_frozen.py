"""The policy as it was before training: TRL's reference model, or a copy that is loaded when it is needed."""

from typing import Any

import torch
from trl.trainer.grpo_trainer import add_fused_lm_head
from trl.trainer.utils import create_model_from_path, get_config_model_id


class FrozenPolicy:
    """Gives the frozen policy of a trainer. The copy takes as much memory as the policy's own weights."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._copy: Any = None

    @property
    def model(self) -> Any:
        """The model, loaded from where the policy came from when it is first asked for."""
        trainer = self._trainer
        if trainer.ref_model is not None:
            return trainer.ref_model
        if self._copy is None:
            loading = dict(trainer.args.model_init_kwargs or {})
            loading.setdefault("dtype", trainer.model.dtype)
            copy = create_model_from_path(get_config_model_id(trainer.model.config), **loading).eval()
            copy.requires_grad_(False)
            add_fused_lm_head(
                copy, temperature=trainer.temperature, cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32
            )
            self._copy = trainer.accelerator.prepare_model(copy, evaluation_mode=True)
        return self._copy

    def log_probabilities(self, compute: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> torch.Tensor:
        """Compute log pi of a micro-batch's tokens under it. B x T, without a gradient.

        Args:
            compute: TRL's `_get_per_token_logps_and_entropies`.
            arguments, options: what TRL calls it with, without the model.
        """
        options = {**options, "compute_entropy": False, "compute_aux_loss": False}
        with torch.no_grad():
            logps: torch.Tensor = compute(self.model, *arguments, **options)[0]
        return logps
