"""Carries each batch's steps past verl to the estimator `adjudge_stepwise`, by being imported; for its V1 trainers.

verl keeps what a reward function tells beside the score, and the tokens, in its transfer queue; its trainer fetches
neither when it computes advantages. This wraps that one method, which is verl's own affair: it holds for verl 0.9 and
refuses where the method looks different. Needs verl.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

from trainer_client.verl.estimators import StepTokens, steps_context

METHOD, PARAMETERS = "_compute_advantage", ["self", "batch", "metrics"]
"""What is wrapped of verl's `PPOTrainer`."""

_FIELDS = ["responses", "extra_fields"]


def carry_steps(trainer: type, queue: Any, offsets: Any) -> None:
    """Have a trainer class carry steps; once is enough.

    Args:
        trainer: verl's `PPOTrainer`, for all that derive from it.
        queue: the module `transfer_queue`.
        offsets: makes a `TokenOffsets` of a tokenizer.

    Raises:
        RuntimeError: its method is none that this knows.
    """
    method = getattr(trainer, METHOD, None)
    if hasattr(method, "carries_steps"):
        return
    found = None if method is None else list(inspect.signature(method).parameters)
    if method is None or found != PARAMETERS:
        raise RuntimeError(
            f"{trainer.__name__}.{METHOD} takes {found}, not {PARAMETERS}; this version of verl is not known. Use "
            "reward_kwargs.step_deltas=fold with adv_estimator=adjudge_group instead"
        )

    @wraps(method)
    def with_steps(self: Any, batch: Any, metrics: Any) -> Any:
        if self.config.algorithm.adv_estimator != "adjudge_stepwise":
            return method(self, batch, metrics=metrics)
        if not hasattr(self, "adjudge_offsets"):
            self.adjudge_offsets = offsets(self.tokenizer)
        rows = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=_FIELDS)
        ids = [row.tolist() for row in rows["responses"].unbind()]
        fields = [getattr(held, "data", held) for held in rows["extra_fields"]]  # the queue's stores differ in this
        reward_info = [held.get("reward_extra_info") or {} for held in fields]
        steps = [read_steps(self.adjudge_offsets, *row) for row in zip(ids, reward_info, strict=True)]
        with steps_context(steps):
            return method(self, batch, metrics=metrics)

    with_steps.carries_steps = True  # type: ignore[attr-defined]
    setattr(trainer, METHOD, with_steps)


def read_steps(offsets: Any, ids: Sequence[int], reward_info: Mapping[str, Any]) -> StepTokens:
    """Find what each step of a response gained and which tokens it has.

    Args:
        offsets: of the policy's tokenizer.
        ids: the response's T tokens.
        told: what `compute_score` returned.
    """
    steps = json.loads(reward_info.get("steps") or "[]")
    if not steps:
        return StepTokens({}, {})
    text, _ = offsets.text_and_offsets(ids)
    spans = offsets.step_tokens(ids, text, [(number, start, end) for number, start, end, _ in steps])
    return StepTokens({number: delta for number, _, _, delta in steps}, spans or {})


carry_steps(
    import_module("verl.trainer.ppo.v1").PPOTrainer,
    import_module("transfer_queue"),
    import_module("trainer_client.offsets").TokenOffsets,
)
