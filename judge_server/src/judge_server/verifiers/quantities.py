"""Numbers with their units, as `numeric` compares them, read by the rules of `math`."""

from dataclasses import dataclass
from fractions import Fraction

from judge_server.verifiers.answers import read_answer
from judge_server.verifiers.reader import Term
from judge_server.verifiers.units import Unit

MAX_CHARACTERS = 200
"""The most characters of a text that is read as a number."""

_MAX_EXPONENT = 999


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as written, without its unit's size, and the unit."""

    value: Fraction
    unit: Unit | None = None

    @property
    def is_percentage(self) -> bool:
        """Whether the unit is a share of a hundred, a thousand or ten thousand."""
        return self.unit is not None and self.unit.dimensions == (("percent", 1),)


def read_quantity(text: str) -> Quantity | None:
    """Read a text that is one number with at most a unit or a name; None if it is not, or needs arithmetic."""
    if len(text) > MAX_CHARACTERS:
        return None
    found = [quantity for reading in read_answer(text).readings if (quantity := _quantity(reading)) is not None]
    return found[-1] if found else None


def _quantity(term: Term) -> Quantity | None:
    if term.head == "relation" and term.text in ("=", "~") and len(term.parts) == 2 and term.parts[0].head == "symbol":
        term = term.parts[1]
    if term.head == "quantity":
        value = _plain(term.parts[0])
        return None if value is None else Quantity(value, term.unit)
    value = _plain(term)
    return None if value is None else Quantity(value)


def _plain(term: Term) -> Fraction | None:
    """Return the value of a number, a simple fraction or a number in scientific notation; None for anything else."""
    if term.head == "number":
        return None if term.text else term.value
    if term.head == "power":
        exponent = _plain(term.parts[1])
        if exponent is None or exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
            return None
        return Fraction(10) ** exponent.numerator if term.parts[0] == Term("number", value=Fraction(10)) else None
    parts = [_plain(part) for part in term.parts]
    if None in parts:
        return None
    values = [part for part in parts if part is not None]
    if term.head == "negate":
        return -values[0]
    if term.head == "divide" and values[1] and all(part.head == "number" for part in term.parts):
        return values[0] / values[1]
    is_scientific = term.head == "multiply" and len(values) == 2 and term.parts[1].head == "power"
    if term.head == "scaled" or (is_scientific and term.parts[0].head == "number"):
        return values[0] * values[1]
    return None


def within_tolerance(value: Fraction, expected: Fraction, *, absolute: float, relative: float) -> bool:
    """Whether |value - expected| <= absolute + relative * |expected|, in exact decimal arithmetic."""
    return abs(value - expected) <= exact_fraction(absolute) + exact_fraction(relative) * abs(expected)


def exact_fraction(number: float) -> Fraction:
    """Return the decimal that a float is written as: 1/10 for 0.1."""
    return Fraction(repr(number))


def compared_values(given: Quantity, expected: Quantity) -> list[tuple[Fraction, Fraction, Fraction]]:
    """Return what may be compared: the given value, the expected one, and the size of the expected unit beside it.

    Two percentages, or two other quantities with units, are compared in the expected unit; units of different kinds
    are never equal. If only one has a unit, the numbers are compared as written, and a percentage also as the share
    that it is.
    """
    one = Fraction(1)
    if given.unit is not None and expected.unit is not None:
        alike = given.unit.dimensions == expected.unit.dimensions
        things = {each for each in (given.unit.things, expected.unit.things) if each}
        if not alike or len(things) > 1:
            return []
        return [(given.value * given.unit.size / expected.unit.size, expected.value, one)]
    unit = given.unit or expected.unit
    pairs = [] if unit is not None and unit.needed else [(given.value, expected.value, one)]
    if unit is not None and given.is_percentage:
        pairs.append((given.value * unit.size / 100, expected.value, one))
    elif unit is not None and expected.is_percentage:
        pairs.append((given.value, expected.value * unit.size / 100, unit.size / 100))
    return pairs
