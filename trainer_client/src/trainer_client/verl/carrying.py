"""Run an estimator with what verl does not pass it, for verl's V1 trainers.

verl stores a reward function's output beside the score in its transfer queue, but its trainer does not read it when it
computes advantages. The method that does so is internal to verl: wrapping it works with verl 0.9.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

METHOD, PARAMETERS = "_compute_advantage", ["self", "batch", "metrics"]
"""The method of verl's `PPOTrainer` to wrap, and its parameters."""


def carry(
    trainer: type, estimator: str, context: Callable[[Any, Any], AbstractContextManager[None]], remedy: str
) -> None:
    """Wrap verl's `PPOTrainer` so that one estimator is called within a context, which is made of trainer and batch.

    Subclasses are wrapped too, and repeated calls have no effect. Raises RuntimeError, with the remedy, if the method
    is missing or has an unknown signature.
    """
    method = getattr(trainer, METHOD, None)
    carries: frozenset[str] = getattr(method, "carries", frozenset())
    if estimator in carries:
        return
    parameters = None if method is None else list(inspect.signature(method).parameters)
    if method is None or parameters != PARAMETERS:
        raise RuntimeError(
            f"{trainer.__name__}.{METHOD} takes {parameters}, not {PARAMETERS}; this version of verl is not "
            f"supported. {remedy}"
        )

    @wraps(method)
    def in_context(self: Any, batch: Any, metrics: Any) -> Any:
        if self.config.algorithm.adv_estimator != estimator:
            return method(self, batch, metrics=metrics)
        with context(self, batch):
            return method(self, batch, metrics=metrics)

    in_context.carries = carries | {estimator}  # type: ignore[attr-defined]
    setattr(trainer, METHOD, in_context)


def fetch(queue: Any, batch: Any, fields: list[str]) -> tuple[Any, list[Mapping[str, Any]]]:
    """Fetch fields of a batch, the keys of B rows, from verl's transfer queue (the module `transfer_queue`).

    Returns the fields, and the `extra_fields` of each row, whose `reward_extra_info` is the result of `compute_score`.
    """
    rows = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[*fields, "extra_fields"])
    return rows, [getattr(value, "data", value) for value in rows["extra_fields"]]  # some queue backends wrap values
