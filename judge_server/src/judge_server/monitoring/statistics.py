"""The statistics of monitors: trends over steps, where they began, and intervals of shares and correlations."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer_client.wire.monitors import Interval

_ROUNDING = 1e-12


class Point(NamedTuple):
    """The mean of something at a training step, and the number of observations behind it."""

    step: int
    value: float
    weight: float = 1.0


class Trend(NamedTuple):
    """A line through a series of at least four points, by weighted least squares.

    Attributes:
        series: the points.
        change: what the line changes by from the first step to the last.
        z: the slope divided by its standard error, which comes from the residuals.
    """

    series: Sequence[Point]
    change: float
    z: float

    def began(self) -> int:
        """The step at which a level turns into a line, by the smallest sum of squared residuals."""
        steps, values, weights = zip(*self.series, strict=True)
        fits = []
        for at in steps[:-2]:
            after = [float(max(0, step - at)) for step in steps]
            fits.append((_line(after, values, weights)[1], at))
        began: int = min(fits)[1]
        return began


def trend(series: Sequence[Point]) -> Trend | None:
    """Fit a line to a series; None if it has fewer than four points."""
    if len(series) < 4:
        return None
    steps, values, weights = zip(*series, strict=True)
    slope, left = _line(steps, values, weights)
    total = sum(weights)
    mean = sum(w * t for w, t in zip(weights, steps, strict=True)) / total
    spread = sum(w * (t - mean) ** 2 for w, t in zip(weights, steps, strict=True))
    error = math.sqrt(max(0.0, left) / (len(series) - 2) / spread)
    z = slope / error if error > _ROUNDING else math.copysign(math.inf, slope) if abs(slope) > _ROUNDING else 0.0
    return Trend(series, slope * (steps[-1] - steps[0]), z)


def _line(x: Sequence[float], y: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Return the slope and the weighted sum of squared residuals."""
    total = sum(weights)
    mean_x = sum(w * a for w, a in zip(weights, x, strict=True)) / total
    mean_y = sum(w * b for w, b in zip(weights, y, strict=True)) / total
    xx = sum(w * (a - mean_x) ** 2 for w, a in zip(weights, x, strict=True))
    xy = sum(w * (a - mean_x) * (b - mean_y) for w, a, b in zip(weights, x, y, strict=True))
    yy = sum(w * (b - mean_y) ** 2 for w, b in zip(weights, y, strict=True))
    return (xy / xx, yy - xy * xy / xx) if xx > 0 else (0.0, yy)


def wilson(successes: float, count: int, z: float) -> Interval:
    """Return a share with Wilson's score interval; `count` must not be 0."""
    share = successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return Interval(value=share, low=max(0.0, centre - half), high=min(1.0, centre + half), n=count)


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
    if freedom < 4 or xx <= _ROUNDING or yy <= _ROUNDING:
        return None
    r = max(-1.0, min(1.0, xy / math.sqrt(xx * yy)))
    if abs(r) > 1 - _ROUNDING:
        return Interval(value=r, low=r, high=r, n=freedom)
    middle, half = math.atanh(r), z / math.sqrt(freedom - 2)
    return Interval(value=r, low=math.tanh(middle - half), high=math.tanh(middle + half), n=freedom)
