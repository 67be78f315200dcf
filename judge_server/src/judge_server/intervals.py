"""Confidence intervals that a service computes, without numpy."""

import math

Z = 1.959963984540054
"""The 97.5% quantile of the normal distribution, for intervals of 95%."""


def wilson(successes: float, n: float, z: float = Z) -> tuple[float, float]:
    """Return Wilson's interval of a proportion, which contains it, in [0, 1] (Wilson 1927); `n` is not 0."""
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))  # against rounding errors
