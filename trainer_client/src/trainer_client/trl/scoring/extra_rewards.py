"""Reward functions beside the rubric, called as TRL calls them, and the weighted sum of all parts of a reward."""

import asyncio
import functools
import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_client._inputs import as_number

RewardFunction = Callable[..., Any]
"""A sync or async reward function as TRL takes it, but not a model or the name of one."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExtraRewards:
    """Reward functions, and the weights of the rubric's reward and of each of theirs."""

    functions: tuple[RewardFunction, ...] = ()
    weights: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, functions: Sequence[RewardFunction], weights: Sequence[float] | None) -> "ExtraRewards":
        """Check functions and weights, which are 1 each by default.

        Raises TypeError if one is not a function (reward models must be given to the trainer), and ValueError if there
        is not one finite weight for each.
        """
        torch = sys.modules.get("torch")
        for function in functions:
            if not callable(function) or (torch is not None and isinstance(function, torch.nn.Module)):
                raise TypeError(
                    f"extra_rewards contains a {type(function).__name__}, but takes functions only; give reward models "
                    "to the trainer"
                )
        count = len(functions) + 1
        given = (1.0,) * count if weights is None else tuple(float(weight) for weight in weights)
        if len(given) != count or not all(map(math.isfinite, given)):
            raise ValueError(
                f"weights is {weights!r}; give {count} finite numbers: the rubric's, then one for each of extra_rewards"
            )
        return cls(tuple(functions), given)


async def call_extra_reward(function: RewardFunction, columns: Mapping[str, Any], rows: int) -> list[float | None]:
    """Call a function and return its N rewards, None where it gives none. Log rewards that are not finite.

    Raises ValueError if it does not return N rewards.
    """
    given = await function(**columns) if _is_async(function) else await asyncio.to_thread(function, **columns)
    name = _name(function)
    if len(given) != rows:
        raise ValueError(f"reward function {name!r} returned {len(given)} rewards for {rows} responses")
    rewards = [None if reward is None else as_number(reward) for reward in given]
    if non_finite := sum(reward is not None and not math.isfinite(reward) for reward in rewards):
        logger.warning(
            "reward function %r did not return a finite number for %d of %d responses; they have no reward",
            name,
            non_finite,
            rows,
        )
    return rewards


def weighted_sum(parts: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Sum the weighted parts of a reward; None if a part is missing or the sum is not finite."""
    total = 0.0
    for part, weight in zip(parts, weights, strict=True):
        if part is None:
            return None
        total += weight * part
    return total if math.isfinite(total) else None


def _name(function: RewardFunction) -> str:
    """The name under which TRL logs a function."""
    function = _unwrap_partial(function)
    return str(getattr(function, "__name__", type(function).__name__))


def _is_async(function: RewardFunction) -> bool:
    function = _unwrap_partial(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _unwrap_partial(function: RewardFunction) -> RewardFunction:
    while isinstance(function, functools.partial):
        function = function.func
    return function
