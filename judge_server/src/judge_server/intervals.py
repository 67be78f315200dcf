"""Confidence intervals that a service computes, without numpy."""

import math

from trainer_client.wire.monitors import Interval

Z = 1.959963984540054
"""The 97.5% quantile of the normal distribution, for intervals of 95%."""

ROUNDING = 1e-12
"""Variation up to this is that of rounding errors."""


def wilson(successes: float, n: float, z: float = Z) -> tuple[float, float]:
    """Return Wilson's interval of a proportion, which contains it, in [0, 1] (Wilson 1927); `n` is not 0."""
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))  # against rounding errors


def share_interval(successes: float, count: int, z: float) -> Interval:
    """Return a share with Wilson's score interval; `count` must not be 0."""
    low, high = wilson(successes, count, z)
    return Interval(value=successes / count, low=low, high=high, n=count)


def mean_interval(total: float, squares: float, count: int, z: float) -> Interval | None:
    """Return a mean with its normal interval, from the sum and the sum of squares; None for fewer than two values."""
    if count < 2:
        return None
    mean = total / count
    variance = max(0.0, (squares - count * mean * mean) / (count - 1))
    half = z * math.sqrt(variance / count)
    return Interval(value=mean, low=mean - half, high=mean + half, n=count)


def correlation_interval(xx: float, yy: float, xy: float, freedom: int, z: float) -> Interval | None:
    """Return a correlation with Fisher's interval, from sums of products of deviations; None without variation."""
    if freedom < 4 or xx <= ROUNDING or yy <= ROUNDING:
        return None
    r = max(-1.0, min(1.0, xy / math.sqrt(xx * yy)))
    if abs(r) > 1 - ROUNDING:
        return Interval(value=r, low=r, high=r, n=freedom)
    middle, half = math.atanh(r), z / math.sqrt(freedom - 2)
    return Interval(value=r, low=math.tanh(middle - half), high=math.tanh(middle + half), n=freedom)
