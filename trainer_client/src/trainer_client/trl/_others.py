"""The reward functions that a rubric reward is added to: called as TRL calls them, and read number by number."""

import asyncio
import functools
import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer_client._criteria import as_number

RewardFunction = Callable[..., Any]
"""A sync or async reward function as TRL takes it; no model and no name of one."""

logger = logging.getLogger(__name__)


def check_reward_functions(functions: Sequence[RewardFunction], weights: Sequence[float] | None) -> tuple[float, ...]:
    """Give the weights of the rubric and of these functions, 1 each unless given.

    Raises:
        TypeError: one is not a function; models go to the trainer.
        ValueError: there is not one finite weight for each.
    """
    torch = sys.modules.get("torch")
    for function in functions:
        if not callable(function) or (torch is not None and isinstance(function, torch.nn.Module)):
            raise TypeError(
                f"others has a {type(function).__name__}, and takes functions only; give reward models to the trainer"
            )
    count = len(functions) + 1
    given = (1.0,) * count if weights is None else tuple(float(weight) for weight in weights)
    if len(given) != count or not all(map(math.isfinite, given)):
        raise ValueError(f"weights is {weights!r}; give {count} finite numbers: the rubric's, then one for each other")
    return given


async def call_extra_reward(function: RewardFunction, columns: Mapping[str, Any], rows: int) -> list[float | None]:
    """Give a function's rewards of N rows; None where it gives none, and what is not a finite number is told.

    Raises:
        ValueError: it does not give N.
    """
    given = await function(**columns) if _is_async(function) else await asyncio.to_thread(function, **columns)
    if len(given) != rows:
        raise ValueError(f"reward function {function_name(function)!r} gave {len(given)} rewards for {rows} responses")
    rewards = [None if reward is None else as_number(reward) for reward in given]
    non_finite = sum(reward is not None and not math.isfinite(reward) for reward in rewards)
    if non_finite:
        logger.warning(
            "reward function %r gave no finite number for %d of %d responses; they have no reward",
            function_name(function),
            non_finite,
            rows,
        )
    return rewards


def weighted_sum(parts: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Add the parts of a reward; None where one is missing, or the sum is not a finite number."""
    total = 0.0
    for part, weight in zip(parts, weights, strict=True):
        if part is None:
            return None
        total += weight * part
    return total if math.isfinite(total) else None


def function_name(function: RewardFunction) -> str:
    """Name a function as TRL does."""
    function = _unwrap_partial(function)
    return str(getattr(function, "__name__", type(function).__name__))


def _is_async(function: RewardFunction) -> bool:
    function = _unwrap_partial(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _unwrap_partial(function: RewardFunction) -> RewardFunction:
    while isinstance(function, functools.partial):
        function = function.func
    return function
