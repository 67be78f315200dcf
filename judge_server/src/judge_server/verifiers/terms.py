"""The parts of an answer that was read as mathematics, and what is made of them while reading."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from judge_server.verifiers.notation import Token
from judge_server.verifiers.units import Unit


@dataclass(frozen=True, slots=True)
class Term:
    """A part of an answer.

    Attributes:
        head: what it is: `number`, `symbol`, `add`, `multiply`, `divide`, `power`, `inverse`, `scaled`, `negate`,
            `plus_minus`, `call`, `list`, `tuple`, `set`, `interval`, `set_operation`, `matrix`, `row`, `relation`,
            `quantity` or `sequence`.
        parts: its parts in order. A relation with nothing before its first sign has one part fewer.
        text: the name of a symbol or function, the signs of a relation or sequence, the brackets of an interval or
            matrix, or what joins the items of a list.
        value: of a number.
        digits: the number of significant digits of a number with a decimal point; 0 without one.
        places: the number of digits after the decimal point.
        unit: of a quantity.
    """

    head: str
    parts: tuple["Term", ...] = ()
    text: str = ""
    value: Fraction = Fraction(0)
    digits: int = 0
    places: int = 0
    unit: Unit | None = None


def number(value: Fraction | int) -> Term:
    """Return an exact number."""
    return Term("number", value=Fraction(value))


class NotRead(Exception):
    """A token has no place in the grammar."""


RELATIONS = {"=": "=", "\\approx": "~", "<": "<", ">": ">", "\\leq": "<=", "\\geq": ">=", "\\neq": "!=", "\\in": "in"}
RELATIONS |= {"\\notin": "not in", "\\equiv": "equiv", "\\cong": "cong", "\\sim": "~", "\\doteq": "="}

_REPEATING = re.compile(
    r"(?P<fixed>\d*\.\d*?)(?:\\(?:overline|bar|dot)\s*+(?:\{\s*+)?(?P<a>\d+)\s*\}?|\((?P<b>\d+)\)|(?P<c>(?:\d\u0305)+))",
    re.ASCII,
)
_GOES_ON = re.compile(r"(?P<number>\d+\.\d+)\D.*", re.ASCII | re.DOTALL)


def number_term(written: str) -> Term:
    """Read a number token; raise `NotRead` if its digits go on in an unknown way."""
    if _REPEATING.fullmatch(written):
        return _repeating(written)
    if (goes_on := _GOES_ON.fullmatch(written)) and not re.match(r"\d+\.\d+[eE]", written):
        return _recurring(goes_on["number"])
    if len(written) > 3000:
        raise NotRead
    mantissa = re.split("[eE]", written)[0]
    places = len(mantissa.partition(".")[2])
    digits = len(mantissa.replace(".", "").lstrip("0")) if places else 0
    value = Fraction(written if written[0] != "." else "0" + written)
    if len(written) > len(mantissa) and digits:
        places -= int(written[len(mantissa) + 1 :])
    return Term("number", value=value, digits=digits, places=places)


def _repeating(written: str) -> Term:
    match = _REPEATING.fullmatch(written)
    if match is None or len(written) > 200:
        raise NotRead
    block = (match["a"] or match["b"] or match["c"]).replace("\u0305", "")
    whole, _, fixed = match["fixed"].partition(".")
    base = Fraction(int((whole or "0") + fixed), 10 ** len(fixed))
    return number(base + Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(fixed)))


def _recurring(written: str) -> Term:
    """Read `0.333…`: a block that is repeated to the end goes on; other digits are a decimal that was cut off."""
    if len(written) > 60:
        raise NotRead
    for start in range(written.index(".") + 1, len(written)):
        tail = written[start:]
        for length in range(1, len(tail) // 2 + 1):
            block = tail[:length]
            if len(tail) >= max(2 * length, 3 if length == 1 else 0) and all(
                digit == block[at % length] for at, digit in enumerate(tail)
            ):
                if len(tail) % length:
                    continue
                return _repeating(f"{written[:start]}({block})")
    places = len(written.partition(".")[2])
    digits = len(written.replace(".", "").lstrip("0"))
    return Term("number", text="cut off", value=Fraction(written), digits=digits, places=places)


def sequence_term(tokens: Sequence[Token]) -> Term | None:
    """Read numbers that hyphens, slashes, colons or points join: a range, a date, a score, a ratio, a time of day."""
    if len(tokens) < 3 or tokens[0].kind != "number":
        return None
    signs = [token.text for token in tokens[1::2]]
    numbers = tokens[::2]
    if any(token.kind != "number" for token in numbers) or not set(signs) <= {"-", "/", ":", "."}:
        return None
    if len(numbers) == len(signs) or signs == ["/"] or len(set(signs)) > 1:
        return None
    return Term("sequence", tuple(number_term(token.text) for token in numbers), text=" ".join(signs))


def scaled(term: Term, by: Fraction) -> Term:
    """Return a number times another one."""
    if term.head == "number":
        if term.value.numerator.bit_length() > 14_000:
            raise NotRead
        return number(term.value * by)
    return Term("scaled", (term, number(by)))


def is_matrix(term: Term) -> bool:
    """Whether a term is a matrix, and no determinant."""
    return term.head == "matrix" and not term.text


def times_matrix(factors: Sequence[Term]) -> Term:
    """Multiply each entry of the last factor, a matrix, by the others."""
    *scalars, matrix = factors
    rows = [Term("row", tuple(Term("multiply", (*scalars, cell)) for cell in row.parts)) for row in matrix.parts]
    return Term("matrix", tuple(rows))


def signed(sign: str, term: Term) -> Term:
    """Return a term with a sign: `+`, `-`, or both."""
    if sign == "+":
        return term
    if sign == "-":
        return times_matrix([number(-1), term]) if is_matrix(term) else Term("negate", (term,))
    return Term("plus_minus", (term,), text=sign)


def is_constant(term: Term) -> bool:
    """Whether a term has no letters but those of constants, so that a unit may follow."""
    if term.head == "symbol":
        return term.text in ("\\pi", "e")
    if term.head in ("tuple", "list", "set", "interval", "matrix") or term.text.startswith("of "):
        return False
    return all(map(is_constant, term.parts))


def mixed(whole: Term, fraction: Term) -> Term | None:
    """Read a mixed number such as `1 4/5`; None if it is a product."""
    parts = fraction.parts
    if whole.head != "number" or whole.digits or whole.value.denominator != 1 or fraction.head != "divide":
        return None
    if any(part.head != "number" or part.digits for part in parts):
        return None
    if not 0 < parts[0].value < parts[1].value:
        raise NotRead
    return number(whole.value + parts[0].value / parts[1].value)


def is_minus_one(term: Term) -> bool:
    """Whether a term is -1, which makes `sin^{-1}` the inverse function."""
    return term.head == "negate" and term.parts[0].head == "number" and term.parts[0].value == 1
