"""Compare what answers denote: exactly where both are rational, else with as many digits as their parts need.

Rational values are compared as fractions. Other values are computed with mpmath, with a precision that grows with the
largest and the smallest number that occurs in them, so that no difference is lost and nothing is rounded to zero. With
variables, both sides are computed at points that depend on the two texts. A value that would need more than
`MAX_BITS` bits is not compared: it equals only what is written alike.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from hashlib import sha256
from math import comb, factorial, gcd, lcm
from typing import Any

import mpmath  # type: ignore[import-untyped]

from judge_server.verifiers.reader import ELEMENTARY
from judge_server.verifiers.terms import Term

MAX_BITS = 60_000
"""The most bits of a number that is computed."""

DECIMAL_DIGITS = 6
"""The fewest significant digits with which a decimal stands for a value that has no finite one: 0.333333 for 1/3."""

_MAX_FACTORIAL = 3000
_GUARD_BITS = 64

Number = Any
"""A `Fraction`, an `mpf` or an `mpc`; mpmath has no types."""


class Undefined(Exception):
    """An expression has no value here, or one that cannot be computed within the limits."""


@dataclass
class _Point:
    """Values of the variables, and the largest and smallest sizes that occurred, as powers of two."""

    values: dict[str, Fraction] = field(default_factory=dict)
    choose: Callable[[str], Fraction] | None = None
    largest: int = 0
    smallest: int = 0

    def see(self, value: Number) -> Number:
        """Note the size of an intermediate value."""
        if isinstance(value, Fraction):
            if not value:
                return value
            size = value.numerator.bit_length() - value.denominator.bit_length()
            if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
                raise Undefined
        else:
            magnitude = mpmath.mag(value)
            if not isinstance(magnitude, int):
                if magnitude == -mpmath.inf:
                    return value
                raise Undefined
            size = magnitude
        self.largest, self.smallest = max(self.largest, size), min(self.smallest, size)
        if self.largest - self.smallest > MAX_BITS:
            raise Undefined
        return value

    def variable(self, name: str) -> Fraction:
        """Return the value of a variable."""
        if name not in self.values:
            if self.choose is None:
                raise Undefined
            self.values[name] = self.choose(name)
        return self.values[name]


def symbols(term: Term) -> set[str]:
    """Return the names of the variables in a term."""
    if term.head == "symbol":
        return set() if term.text in ("\\pi", "e", "i", "\\infty", "\\emptyset") else {term.text}
    found = {term.text} if term.text.startswith("of ") else set()
    return found.union(*map(symbols, term.parts))


def is_scalar(term: Term) -> bool:
    """Whether a term denotes a number, given values for its variables."""
    if term.head == "symbol":
        return term.text not in ("\\emptyset",) and not term.text.startswith(("name ", "\\mathbb"))
    heads = ("number", "add", "multiply", "divide", "inverse", "scaled", "power", "negate", "call")
    return term.head in heads and all(map(is_scalar, term.parts))


def rational(term: Term) -> Fraction | None:
    """Return the value of a term without variables if it is rational by its form; None otherwise."""
    value = _computed(term, _Point())
    return value if isinstance(value, Fraction) else None


def _computed(term: Term, point: "_Point") -> Number | None:
    """Return the value of a term at a point; None if it has none there, or none within the limits."""
    try:
        return _value(term, point)
    except (Undefined, ArithmeticError, ValueError, TypeError):
        return None


def equal_scalars(a: Term, b: Term) -> bool:
    """Whether two terms denote the same number, for all values of their variables."""
    if a == b:
        return True
    if _is_infinite(a) or _is_infinite(b):
        return _is_infinite(a) == _is_infinite(b)
    names = symbols(a) | symbols(b)
    if not names:
        return _equal_at(a, b, _Point) is True
    agreed = 0
    for choose in _points(a, b):
        same = _equal_at(a, b, partial(_Point, choose=choose))
        if same is False:
            return False
        agreed += same is True
    return agreed >= 3


def ratio_is_constant(a: Term, b: Term, *, positive: bool) -> bool:
    """Whether a / b has one value, other than 0, for all values of the variables; above 0 if `positive`."""
    first: tuple[Number, Number] | None = None
    agreed = 0
    for choose in _points(a, b):
        with mpmath.workprec(256):
            x, y = (_computed(term, _Point(choose=choose)) for term in (a, b))
        if x is None or y is None:
            continue
        if not x or not y:
            if bool(x) != bool(y):
                return False
            continue
        if positive and not (_is_real(x) and _is_real(y) and x / y > 0):
            return False
        first = first or (x, y)
        if not _close(x * first[1], first[0] * y):
            return False
        agreed += 1
    return agreed >= (3 if symbols(a) | symbols(b) else 1)


def _close(x: Number, y: Number) -> bool:
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x == y
    with mpmath.workprec(256):
        x, y = _mp(x), _mp(y)
        return bool(abs(x - y) <= mpmath.ldexp(1, -160) * max(abs(x), abs(y)))


def _points(a: Term, b: Term) -> Iterator[Callable[[str], Fraction]]:
    """Yield points: positive ones, ones of both signs, and whole numbers, as the two texts determine them."""
    seed = sha256(repr((a, b) if repr(a) < repr(b) else (b, a)).encode("utf-8", "surrogatepass")).digest()

    def draw(kind: int, name: str) -> Fraction:
        bits = int.from_bytes(sha256(seed + f"{kind} {name}".encode("utf-8", "surrogatepass")).digest()[:8], "big")
        if kind >= 5:
            return Fraction(2 + bits % 29 + kind)
        value = Fraction(1 + bits % 99_991, 10_007 if kind != 1 else 100_003)
        return -value if kind >= 2 and bits >> 40 & 1 else value

    for kind in range(8):
        yield partial(draw, kind)


def _equal_at(a: Term, b: Term, point: Callable[[], _Point]) -> bool | None:
    """Whether two terms are equal at one point; None if one of them has no value there that can be compared."""
    bits = 128
    while True:
        places = (point(), point())
        with mpmath.workprec(bits):
            x, y = (_computed(term, place) for term, place in zip((a, b), places, strict=True))
            if x is None or y is None:
                return None
            if isinstance(x, Fraction) and isinstance(y, Fraction):
                return x == y
            largest = max(place.largest for place in places)
            smallest = min(place.smallest for place in places)
            needed = 2 * (largest - smallest) + 4 * _GUARD_BITS
            x, y = _mp(x), _mp(y)
            if mpmath.isnan(x) or mpmath.isnan(y):
                return None
            if places[0].values and _is_complex(x) != _is_complex(y) and not (_has_i(a) or _has_i(b)):
                return None
            difference = abs(x - y)
            if difference > mpmath.ldexp(1, largest - bits + _GUARD_BITS):
                return False
            if needed > MAX_BITS:
                return None
            if bits >= needed:
                return True
        bits = needed


def _mp(value: Number) -> Number:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _is_complex(value: Number) -> bool:
    return bool(abs(mpmath.im(value)) > abs(value) * mpmath.ldexp(1, -_GUARD_BITS))


def _is_real(value: Number) -> bool:
    return isinstance(value, Fraction) or not _is_complex(value)


def _has_i(term: Term) -> bool:
    return (term.head == "symbol" and term.text == "i") or any(map(_has_i, term.parts))


def _is_infinite(term: Term) -> int:
    """Return 1 for infinity, -1 for its opposite, else 0."""
    if term.head == "negate":
        return -_is_infinite(term.parts[0])
    return int(term.head == "symbol" and term.text == "\\infty")


def _value(term: Term, point: _Point) -> Number:
    """Compute a term at a point, in the precision that mpmath works with now; rational parts stay fractions."""
    head, parts = term.head, term.parts
    if head == "number":
        return point.see(term.value)
    if head == "symbol":
        return _symbol(term.text, point)
    values = [_value(part, point) for part in parts]
    if head == "negate":
        return -values[0]
    if head == "add":
        total = values[0]
        for value in values[1:]:
            total = point.see(_plus(total, value))
        return total
    if head in ("multiply", "divide", "inverse", "scaled"):
        product: Number = Fraction(1)
        for index, value in enumerate(values):
            inverse = head == "inverse" or (head == "divide" and index == 1)
            product = point.see(_times(product, _inverse(value) if inverse else value))
        return product
    if head == "power":
        return point.see(_power(values[0], values[1]))
    if head == "call":
        return point.see(_call(term.text, values, point, term))
    raise Undefined


def _symbol(name: str, point: _Point) -> Number:
    if name == "\\pi":
        return +mpmath.pi
    if name == "e":
        return +mpmath.e
    if name == "i":
        return mpmath.mpc(0, 1)
    if name in ("\\infty", "\\emptyset") or name.startswith(("name ", "\\mathbb")):
        raise Undefined
    return point.variable(name)


def _plus(a: Number, b: Number) -> Number:
    return a + b if isinstance(a, Fraction) == isinstance(b, Fraction) else _mp(a) + _mp(b)


def _times(a: Number, b: Number) -> Number:
    return a * b if isinstance(a, Fraction) == isinstance(b, Fraction) else _mp(a) * _mp(b)


def _inverse(value: Number) -> Number:
    if not value:
        raise Undefined
    return 1 / value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            size = abs(exponent.numerator) * (base.numerator.bit_length() + base.denominator.bit_length())
            if base in (0, 1, -1):
                size = 0
            if size <= MAX_BITS:
                if not base and exponent <= 0:
                    raise Undefined
                return base**exponent.numerator
            if size > 2**40:
                raise Undefined
        elif base >= 0 and (root := _exact_root(base, exponent.denominator)) is not None:
            return _power(root, Fraction(exponent.numerator))
    base, exponent = _mp(base), _mp(exponent)
    if not base:
        if mpmath.re(exponent) <= 0:
            raise Undefined
        return Fraction(0)
    if abs(exponent) * abs(mpmath.log(base)) > 2**20:
        raise Undefined
    return mpmath.power(base, exponent)


def _exact_root(value: Fraction, index: int) -> Fraction | None:
    """Return the index-th root of a fraction if it is rational."""
    if index > 64:
        return None
    roots = [_integer_root(part, index) for part in (value.numerator, value.denominator)]
    if roots[0] ** index != value.numerator or roots[1] ** index != value.denominator:
        return None
    return Fraction(roots[0], roots[1])


def _integer_root(value: int, index: int) -> int:
    if value < 2:
        return value
    guess = 1 << -(-value.bit_length() // index)
    while True:
        better = ((index - 1) * guess + value // guess ** (index - 1)) // index
        if better >= guess:
            return guess
        guess = better


def _call(name: str, values: list[Number], point: _Point, term: Term) -> Number:
    if name.startswith("of "):
        return _unknown_function(name, values, point)
    if name == "factorial":
        return _factorial(values[0])
    if name in ("max", "min", "gcd", "lcm") and len(values) < 2:
        raise Undefined
    if name in ("binom", "gcd", "lcm"):
        return _of_integers(name, values)
    if name in ("max", "min"):
        if not all(map(_is_real, values)):
            raise Undefined
        return (max if name == "max" else min)(values, key=_mp)
    if len(values) != 1:
        raise Undefined
    value = values[0]
    if name == "abs":
        return abs(value)
    if name == "sqrt":
        return _power(value, Fraction(1, 2))
    if name in ("floor", "ceil"):
        if isinstance(value, Fraction):
            return Fraction(value.__floor__() if name == "floor" else value.__ceil__())
        return getattr(mpmath, name)(value)
    return _elementary(name, _mp(value), point)


def _elementary(name: str, value: Number, point: _Point) -> Number:
    if name in ("log", "lg"):  # a logarithm to a base that is not named is no other one
        base = _mp(point.variable("base of log")) if point.choose is not None else mpmath.mpf(10)
        return mpmath.log(value) / mpmath.log(base) if value else _undefined()
    if name == "ln":
        return mpmath.log(value) if value else _undefined()
    if name == "sgn":
        return Fraction(int(mpmath.sign(value)))
    name = _MPMATH_NAMES.get(name, name)
    if name not in _MPMATH_NAMES.values():
        raise Undefined
    if abs(value) > 2**20:
        raise Undefined
    if name == "tanh":  # it differs from 1 by as little as this
        point.see(mpmath.exp(2 * abs(mpmath.re(value))))
    return getattr(mpmath, name)(value)


_MPMATH_NAMES = {name: name.replace("arc", "a") for name in ELEMENTARY}


def _undefined() -> Number:
    raise Undefined


def _unknown_function(name: str, values: list[Number], point: _Point) -> Number:
    """Give a function that is only named a value for each argument."""
    shown = [str(value) if isinstance(value, Fraction) else mpmath.nstr(value, 20) for value in values]
    return point.variable(f"{name}({', '.join(shown)})")


def _factorial(value: Number) -> Number:
    if isinstance(value, Fraction) and value.denominator == 1:
        if not 0 <= value <= _MAX_FACTORIAL:
            raise Undefined
        return Fraction(factorial(value.numerator))
    if abs(value) > _MAX_FACTORIAL:
        raise Undefined
    return mpmath.gamma(_mp(value) + 1)


def _of_integers(name: str, values: list[Number]) -> Number:
    if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
        if name == "binom":
            return mpmath.binomial(*map(_mp, values))
        raise Undefined
    whole = [value.numerator for value in values]
    if name == "binom":
        top, bottom = whole
        if not 0 <= bottom <= top or min(bottom, top - bottom) > _MAX_FACTORIAL or top.bit_length() > 64:
            raise Undefined
        return Fraction(comb(top, bottom))
    return Fraction(gcd(*whole) if name == "gcd" else lcm(*whole))


def equal_numbers(a: Term, b: Term) -> bool:
    """Whether two scalars are the same number, or one of them is a decimal of the other with enough digits.

    A decimal with at least `DECIMAL_DIGITS` significant digits stands for a value without a finite decimal if it is
    that value rounded or cut off at its last digit.
    """
    if equal_scalars(a, b):
        return not (_cut_off(a) or _cut_off(b)) or a == b
    written_a, written_b = _decimal(a), _decimal(b)
    if written_a is not None and written_b is not None:
        return _same_float(written_a, written_b)
    for decimal, exact in ((written_a, b), (written_b, a)):
        if decimal is not None and not _has_decimal(exact) and not symbols(exact) and _stands_for(decimal, exact):
            return True
    return False


def _cut_off(term: Term) -> bool:
    return term.head == "number" and term.text == "cut off"


def _decimal(term: Term) -> Term | None:
    """Return a decimal as a number with the digits and places that it has; None if the term is none."""
    if term.head == "negate" and (inner := _decimal(term.parts[0])) is not None:
        return Term("number", value=-inner.value, digits=inner.digits, places=inner.places, text=inner.text)
    if term.head == "multiply" and len(term.parts) == 2:
        mantissa, power = term.parts
        exponent = _exponent_of_ten(power)
        if mantissa.head == "number" and mantissa.digits and exponent is not None:
            return Term(
                "number",
                value=mantissa.value * Fraction(10) ** exponent,
                digits=mantissa.digits,
                places=mantissa.places - exponent,
            )
    return term if term.head == "number" and term.digits else None


def _exponent_of_ten(term: Term) -> int | None:
    if term.head != "power" or term.parts[0].head != "number" or term.parts[0].value != 10:
        return None
    exponent = rational(term.parts[1])
    if exponent is None or exponent.denominator != 1 or abs(exponent) > 9999:
        return None
    return exponent.numerator


def _has_decimal(term: Term) -> bool:
    return (term.head == "number" and term.digits > 0) or any(map(_has_decimal, term.parts))


def _stands_for(decimal: Term, exact: Term) -> bool:
    if decimal.digits < DECIMAL_DIGITS:
        return False
    if (value := rational(exact)) is None:
        with mpmath.workprec(64 + 4 * (abs(decimal.places) + decimal.digits)):
            computed = _computed(exact, _Point())
            if computed is None or not _is_real(computed) or abs(mpmath.re(computed)) > mpmath.ldexp(1, 4000):
                return False
            value = Fraction(*mpmath.libmp.to_rational(mpmath.re(computed)._mpf_))
    elif _ends(value):
        return False
    step = Fraction(1, 10) ** decimal.places
    off = abs(decimal.value - value)
    was_cut = abs(decimal.value) <= abs(value) and off < step
    return was_cut if decimal.text == "cut off" else off * 2 <= step or was_cut


def _ends(value: Fraction) -> bool:
    """Whether a fraction has a finite decimal."""
    rest = value.denominator
    rest >>= (rest & -rest).bit_length() - 1
    return pow(5, rest.bit_length(), rest) == 0


def _same_float(a: Term, b: Term) -> bool:
    """Whether two decimals differ only as a computed number does from the short one that it stands for."""
    short, long = sorted((a, b), key=lambda term: term.digits)
    if long.digits < 16 or short.digits > 15:
        return False
    return abs(short.value - long.value) * 10**15 <= abs(short.value)


def approximate(term: Term) -> float | None:
    """Return a value without variables as a float, to order values by; None if it is no real number."""
    with mpmath.workprec(80):
        value = _computed(term, _Point())
        try:
            return None if value is None or not _is_real(value) else float(mpmath.re(_mp(value)))
        except OverflowError:
            return None
