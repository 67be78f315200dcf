"""Penalties on a reward for a response's length, or for being cut off.

A reward of None means that judging failed, and stays None. Lengths are in tokens of the policy. Nothing is clipped, so
a penalised reward may leave [0, 1].
"""

import math
from typing import Any

from trainer_client.modes import Explained, short
from trainer_client.rewards import Reward, as_number, read_finite_or_none
from trainer_client.wire.rewards import RewardOptions


def length_penalty(
    reward: Reward, length: float, *, coefficient: float = 1e-4, target: float = 2000, excess_only: bool = False
) -> float | None:
    """Compute r - lambda * (L - L*), the length penalty of RGR-GRPO (section 3).

    Linear on both sides of the target: as in the paper, a response shorter than L* gains lambda * (L* - L).

    Args:
        reward: r, or None.
        length: L, the response's length in tokens.
        coefficient: lambda, per token, at least 0 (RGR-GRPO: 1e-4).
        target: L*, in tokens (RGR-GRPO: 2000).
        excess_only: subtract lambda * max(0, L - L*) instead, so that a short response gains nothing (ours).

    Raises:
        ValueError: the reward is not a finite number, or another argument is not a finite number of at least 0.
    """
    excess = _at_least_zero("length", length) - _at_least_zero("target", target)
    penalty = _at_least_zero("coefficient", coefficient) * (max(0.0, excess) if excess_only else excess)
    value = read_finite_or_none("reward", reward)
    return None if value is None else value - penalty


def overlong_penalty(reward: Reward, length: float, *, limit: float, buffer: float) -> float | None:
    """Add DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13) to a reward.

    0 up to `limit` - `buffer` tokens, then linear to -1 at `limit`, and -1 beyond.

    Args:
        reward: r, or None.
        length: the response's length in tokens.
        limit: L_max, the length in tokens at which the punishment is full (DAPO: 20480).
        buffer: L_cache, the number of tokens over which it grows, in (0, limit] (DAPO: 4096).

    Raises:
        ValueError: the reward or the length is not a finite number, the length is below 0, or the buffer is not in
            (0, limit].
    """
    length, limit, buffer = (
        _at_least_zero(name, given) for name, given in (("length", length), ("limit", limit), ("buffer", buffer))
    )
    if not 0.0 < buffer <= limit:
        raise ValueError(f"buffer is {buffer:g} and limit {limit:g}; the buffer must be above 0 and at most the limit")
    value = read_finite_or_none("reward", reward)
    return None if value is None else value - min(1.0, max(0.0, (length - (limit - buffer)) / buffer))


def truncation_penalty(reward: Reward, stopped: bool | None, *, factor: float) -> float | None:
    """Multiply the reward of a response that did not stop by itself (Rubric-Grounded RL, appendix C).

    A negative reward stays as it is: a factor below 1 would raise it, and reward being cut off.

    Args:
        reward: r, or None.
        stopped: whether the response ended by itself; False if it was cut off.
        factor: in [0, 1]; 1 changes nothing. The paper's value is not known.

    Raises:
        ValueError: the reward is not a finite number, `stopped` is None, or the factor is not in [0, 1].
    """
    share = as_number(factor)
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"factor is {factor!r}; it is a share in [0, 1]")
    if stopped is None:
        raise ValueError("a truncation penalty needs stopped; say whether the response ended by itself")
    value = read_finite_or_none("reward", reward)
    return value if value is None or stopped or value < 0 else value * share


def penalise(reward: Reward, options: RewardOptions, *, tokens: int | None, stopped: bool | None) -> float | None:
    """Apply the penalties of a request's options; without any, the reward is unchanged.

    The truncation factor comes first, since it scales the reward of the verdicts. The length penalty and the overlong
    penalty are then subtracted from the result.

    Args:
        reward: r, or None.
        options: `truncation_factor`, `length_penalty` and `overlong_penalty` of a request.
        tokens: the response's length; only the penalties on length need it.
        stopped: whether the response ended by itself; only the truncation factor needs it.

    Raises:
        ValueError: `tokens` or `stopped` is None and a penalty needs it, or the reward is not a finite number.
    """
    value = read_finite_or_none("reward", reward)
    if options.truncation_factor is not None:
        value = truncation_penalty(value, stopped, factor=options.truncation_factor)
    if options.length_penalty is None and options.overlong_penalty is None:
        return value
    if tokens is None:
        raise ValueError("a penalty on length needs tokens; give the response's length in the policy's tokens")
    return _less_for_length(value, options, tokens)


def _less_for_length(value: float | None, options: RewardOptions, tokens: int) -> float | None:
    if (length := options.length_penalty) is not None:
        value = length_penalty(
            value,
            tokens,
            coefficient=length.coefficient,
            target=length.target_tokens,
            excess_only=length.excess_only,
        )
    if (overlong := options.overlong_penalty) is not None:
        value = overlong_penalty(value, tokens, limit=overlong.limit_tokens, buffer=overlong.buffer_tokens)
    return value


def explain_penalties(
    reward: Explained, options: RewardOptions, *, tokens: int | None, stopped: bool | None
) -> Explained:
    """Add the penalties of a request's options to the explanation of a reward; arguments and order are `penalise`'s.

    Penalties on length are left out if the length is not known.
    """
    sentence, expression, value = reward
    if options.truncation_factor is not None and stopped is False and value >= 0:
        sentence += " The response was cut off, so its reward is multiplied by the truncation factor."
        expression = f"({expression}) × {short(options.truncation_factor)}"
        value = truncation_penalty(value, stopped, factor=options.truncation_factor) or 0.0
    if tokens is None:
        return Explained(sentence, expression, value)
    if (length := options.length_penalty) is not None:
        sentence += f" A penalty on its length of {tokens} tokens is subtracted."
        excess = f"({tokens} − {length.target_tokens})"
        expression += f" − {short(length.coefficient)} × {f'max(0, {excess})' if length.excess_only else excess}"
    if (near := options.overlong_penalty) is not None:
        sentence += f" A penalty for coming near the limit of {near.limit_tokens} tokens is subtracted."
        start = near.limit_tokens - near.buffer_tokens
        expression += f" − min(1, max(0, ({tokens} − {start}) / {near.buffer_tokens}))"
    return Explained(sentence, expression, _less_for_length(value, options, tokens) or 0.0)


def _at_least_zero(name: str, given: Any) -> float:
    value = as_number(given)
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} is {given!r}; use a finite number of at least 0")
    return value
