"""Interval arithmetic for numbers as printed in papers.

A printed number stands for all numbers that round to it. A number computed from printed ones has a value, computed from
the numbers as printed, and bounds that hold whatever was rounded away.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

_PRINTED = re.compile(r"(?P<sign>[-+–−]?)(?P<digits>\d[\d,]*)(?P<decimals>\.\d+)?(?P<unit>[K%]?)")


@dataclass(frozen=True)
class RoundedNumber:
    """A value and its bounds before rounding. For a count, both bounds equal the value."""

    value: Fraction
    low: Fraction
    high: Fraction
    decimals: int = 0

    def __add__(self, other: "RoundedNumber") -> "RoundedNumber":
        """Add the values and the bounds."""
        return RoundedNumber(self.value + other.value, self.low + other.low, self.high + other.high)

    def __neg__(self) -> "RoundedNumber":
        """Negate the value and the bounds."""
        return RoundedNumber(-self.value, -self.high, -self.low, self.decimals)

    def __abs__(self) -> "RoundedNumber":
        """Return the absolute value."""
        if self.low >= 0:
            return self
        return -self if self.high <= 0 else RoundedNumber(abs(self.value), Fraction(0), max(-self.low, self.high))

    def __sub__(self, other: "RoundedNumber") -> "RoundedNumber":
        """Subtract."""
        return self + -other

    def __mul__(self, other: "RoundedNumber") -> "RoundedNumber":
        """Multiply; the bounds are the extremes of the four products."""
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return RoundedNumber(self.value * other.value, min(ends), max(ends))

    def __truediv__(self, other: "RoundedNumber") -> "RoundedNumber":
        """Divide.

        Raises:
            ZeroDivisionError: the divisor may be 0.
        """
        if other.low <= 0 <= other.high:
            raise ZeroDivisionError(f"a divisor lies between {other.low} and {other.high}")
        return self * RoundedNumber(1 / other.value, 1 / other.high, 1 / other.low)

    def through(self, rising: Callable[[float], float]) -> "RoundedNumber":
        """Apply a non-decreasing function."""
        value, low, high = (Fraction(rising(float(x))) for x in (self.value, self.low, self.high))
        return RoundedNumber(value, low, high)


def exact(value: float | Fraction) -> RoundedNumber:
    """Return an exact number, without rounding."""
    fraction = Fraction(value)
    return RoundedNumber(fraction, fraction, fraction)


def printed(text: str) -> RoundedNumber:
    """Parse a number as printed in a paper.

    A number with decimals, a percent sign or a K for thousands is rounded at its last digit; any other is a count.

    Raises:
        ValueError: the text is not such a number.
    """
    match = _PRINTED.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a printed number; write it like 1,234, 56.70, 98% or 12K")
    scale = 1000 if match["unit"] == "K" else 1
    decimals = len(match["decimals"] or ".") - 1
    size = Fraction(match["digits"].replace(",", "") + (match["decimals"] or "")) * scale
    value = -size if match["sign"] in ("-", "–", "−") and match["sign"] else size
    half = Fraction(scale, 2 * 10**decimals) if decimals or match["unit"] else Fraction(0)
    return RoundedNumber(value, value - half, value + half, decimals)


def mean(numbers: Sequence[RoundedNumber]) -> RoundedNumber:
    """Return the mean."""
    return total(numbers) / exact(len(numbers))


def total(numbers: Sequence[RoundedNumber]) -> RoundedNumber:
    """Return the sum."""
    return sum(numbers[1:], numbers[0])


def root(number: RoundedNumber) -> RoundedNumber:
    """Return the square root."""
    return number.through(math.sqrt)
