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
    """Wrap a trainer class so that one estimator is called within a context. Repeated calls have no effect.

    Args:
        trainer: verl's `PPOTrainer`; the wrapper applies to its subclasses too.
        estimator: the name of the estimator.
        context: makes the context from a trainer and a batch.
        remedy: what to do if this version of verl is not supported.

    Raises:
        RuntimeError: the method is missing or has an unknown signature.
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
    """Fetch fields of a batch from verl's transfer queue.

    Args:
        queue: the module `transfer_queue`.
        batch: the keys of B rows.
        fields: the names of other fields than `extra_fields`.

    Returns:
        The fields, and the `extra_fields` of each row; their `reward_extra_info` is the result of `compute_score`.
    """
    rows = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[*fields, "extra_fields"])
    return rows, [getattr(value, "data", value) for value in rows["extra_fields"]]  # some queue backends wrap values
