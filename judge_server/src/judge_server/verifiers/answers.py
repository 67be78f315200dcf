"""Read an answer: write its phrases as signs, take decoration away, and find every reading that leaves nothing out.

A quantity is an answer that is one number with at most a unit, as `numeric` compares it.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from judge_server.verifiers.notation import Token, same_characters, strip_markup, tokens_of, with_digits
from judge_server.verifiers.reader import read
from judge_server.verifiers.terms import Term
from judge_server.verifiers.units import Unit
from judge_server.verifiers.written_forms import DAYS, MONTH, without_text_commands

_SENTENCE = re.compile(
    r"(?P<subject>[^\d,;:=\\]{1,200}?)\b(?P<verb>is|are|was|were|equals|has|have|had|costs?|takes?|needs?|weighs?|earns?|makes?)"
    r"\b[ \t]*:?[ \t]+(?P<value>\S.*)",
    re.DOTALL,
)
_IT_IS = re.compile(r"\Ait['’]s\b", re.IGNORECASE)
_LEFT = re.compile(r"(?<=[\w}$])\s+(?:left|remaining|left over|remain)\Z")
_OF_THE_ANSWER = re.compile(
    r"\b(?:twice|double|triple|half|third|quarter|opposite|negative|minus|square|cube|root|reciprocal|inverse|multiple)\b"
    r"[^.]{0,12}\b(?:answer|result|solution|value|number|it|that|this|x)\b"
    r"|\b(?:answer|result|solution|value|number|it|that|this)(?:['’]s)?[ \t]+(?:plus|minus|times|less|increased"
    r"|decreased|divided|multiplied|squared|cubed|square|double|half|opposite)\b"
    r"|\b(?:(?:more|less|greater|fewer|larger|smaller)[ \t]+than|(?:predecessor|successor|complement)[ \t]+of)[ \t]+"
    r"(?:the[ \t]+)?(?:answer|result|solution|it|that|this)\b"
    r"|\b(?:opposite|contrary|reverse|negation|double)[ \t]*\Z",
    re.IGNORECASE,
)
_I_HAVE_NONE = re.compile(r"I[ \t]+have[ \t]+no\b", re.IGNORECASE)
"""A refusal, which states no empty set."""
_COPULA = re.compile(r"\b(?:is|are|was|were|equals|has|have|had)\b")
_HEDGE = re.compile(
    r"\b(?:or|either|neither|nor|not|never|no|none|nobody|nothing|hardly|if|unless|whether|wrong|false|incorrect)\b|n't\b",
    re.IGNORECASE,
)


def stated_value(answer: str) -> str | None:
    """Return the value that a sentence states: `80 km/h` for `The average speed is 80 km/h.`; None if it is not one.

    The sentence must have one verb ("is", "equals", "has", "costs"), and nothing before it may be an answer itself: no
    number, formula, list or "or". So a sentence that offers several answers gives none of them.
    """
    bare = _IT_IS.sub("it is", strip_markup(answer))
    match = _SENTENCE.fullmatch(bare)
    if match is None or len(_COPULA.findall(bare)) > 1 or _I_HAVE_NONE.match(bare):
        return None
    if _HEDGE.search(match["subject"]) or _OF_THE_ANSWER.search(match["subject"]):
        return None
    may_remain = match["verb"] in ("has", "have", "had") or match["subject"].casefold().split()[-1:] == ["there"]
    return _LEFT.sub("", match["value"]) if may_remain and re.match(r"\d", match["value"]) else match["value"]


_BEFORE_NUMBER = re.compile(
    r"\A(?:(?:about|approximately|approx\.?|around|roughly|nearly|almost|exactly|circa|ca\.|a total of)"
    r"\s+){1,3}+(?=[-+(\d.\\$€£¥₹\x01])",
    re.IGNORECASE,
)
_AFTER_NUMBER = re.compile(
    r"(?<=[\w)}\]%$])(?:\s*,)?(?:\s+|\s*\\text\{\s*|\s+\()(?:in total|total|in all|altogether|exactly|exact)[)}]?\Z",
    re.I,
)
_BEFORE_TIME = re.compile(rf"\A(?:in|on|at)\s+(?:the year\s+|an?\s+)?(?=\d|(?:{'|'.join(DAYS)}|{MONTH})\b)", re.I)
_PHRASES = (
    (
        re.compile(
            r"\b(?:is )?(?:greater|more|larger) than or equal to\b|\bat least\b|\bno (?:less|fewer) than\b", re.I
        ),
        r" \\geq ",
    ),
    (re.compile(r"\b(?:is )?(?:less|smaller|fewer) than or equal to\b|\bat most\b|\bno more than\b", re.I), r" \\leq "),
    (re.compile(r"\b(?:is )?(?:greater|more|larger) than\b", re.I), " > "),
    (re.compile(r"\b(?:is )?(?:less|smaller|fewer) than\b", re.I), " < "),
    (re.compile(r"\b(?:is )?not equal to\b", re.I), r" \\neq "),
    (re.compile(r"\b([ap])\.\s?m\b\.?", re.I), r"\1m"),
    (re.compile(r"(?<=\d):00(?=\s*[ap]m\b)", re.I), ""),
    (re.compile(r"\\(?:pmod|bmod|mod)(?![A-Za-z])"), " mod "),
    (re.compile(r"(?<=[)\]])\s*(?:U|\\text\{\s*U\s*\})\s*(?=[(\[])"), r" \\cup "),
    (re.compile(r"(?<=\d)[ \t]*+[xX][ \t]*+(?=10[ \t]*+(?:\^|\*\*))"), r" \\times "),
    (re.compile(r"(?<![\w.,])(\d{1,6})[ \t]*+h[ \t]*+(\d{1,2})[ \t]*+m(?!\w)"), r"\1 hours \2 minutes"),
    (re.compile(r"\bper annum\b", re.I), "per year"),
    (re.compile(r"\belectron[- ]volts?\b", re.I), "electronvolts"),
)
_EXCEPT = re.compile(
    r"(?:x is )?(?:all )?real(?:s| numbers?)(?: x)?,? (?:except|other than|but|excluding)(?: for)? (?:x = )?"
    r"(?P<points>.+)"
)
_FOR_ALL = re.compile(r"(?:for )?(?:all|any|every)\s+(?=[a-z]\s*(?:[<>≤≥]|\\[lg]e?q?\b))", re.I)
_IN_BASE = re.compile(r"(?P<digits>[0-9A-F]{1,200}+)\s*\(?(?:in )?base[ -](?P<base>\d{1,2})\)?")
_REMAINDER = re.compile(
    r"(?P<whole>\d+),?\s*(?:R\.?|r\.?|rem\.?|(?:with )?(?:an? )?remainder(?: of)?)\s*(?P<rest>\d+)", re.ASCII
)
_OR_MORE = re.compile(r"(?P<number>[-+]?[\d.,]+) or (?P<way>more|greater|above|less|fewer|below)", re.IGNORECASE)
_WHOLE = {
    "no solution": r"\emptyset",
    "no solutions": r"\emptyset",
    "empty set": r"\emptyset",
    "the empty set": r"\emptyset",
    "all real numbers": r"\mathbb{R}",
    "all reals": r"\mathbb{R}",
    "dne": "does not exist",
    "limit does not exist": "does not exist",
    "the limit does not exist": "does not exist",
}


def _plain(answer: str) -> str:
    """Write phrases as signs, and take decoration away."""
    text = strip_markup(same_characters(answer))
    words = " ".join(without_text_commands(text).split())
    if (whole := _WHOLE.get(words.casefold())) is not None:
        return whole
    text = _BEFORE_NUMBER.sub("", _BEFORE_TIME.sub("", with_digits(text)))
    if re.match(r"[-+(\d.\\$€£¥₹\x01]", text):
        text = _AFTER_NUMBER.sub("", text)
    for pattern, instead in _PHRASES:
        text = pattern.sub(instead, text)
    bare = text.strip()
    if more := _OR_MORE.fullmatch(bare):
        sign = r"\geq" if more["way"].lower() in ("more", "greater", "above") else r"\leq"
        return f"{sign} {more['number']}"
    if excepted := _EXCEPT.fullmatch(words):
        return rf"\mathbb{{R}} \setminus \{{{excepted['points']}\}}"
    if based := _IN_BASE.fullmatch(bare):
        return f"{based['digits']}_{{{based['base']}}}"
    if divided := _REMAINDER.fullmatch(bare):
        return f"{divided['whole']} R {divided['rest']}"
    return _FOR_ALL.sub("", text, count=1) if _FOR_ALL.match(text) else text


class Answer(NamedTuple):
    """The tokens of an answer, and what it may denote; no reading if a token has no place in the grammar."""

    tokens: list[Token]
    readings: tuple[Term, ...]


def read_answer(answer: str) -> Answer:
    """Return the tokens of an answer and its readings: more than one if `2,5` or `5m` may be read in two ways."""
    text = _plain(answer)
    tokens = tokens_of(text)
    readings = [read(tokens)]
    if any(a.kind == "number" and b.kind == "word" and not b.spaced for a, b in pairwise(tokens)):
        readings.append(read(tokens, glued_units=True))
    if not re.search(r"[()\[\]{}]", text):
        readings += [read(tokens_of(other)) for other in {with_decimal_point(text), _ungrouped(text)} - {text}]
    if among := _TO.fullmatch(text.strip()):  # odds or a range
        readings += [read(tokens_of(f"{among['a']}{sign}{among['b']}")) for sign in ":-"]
    found = tuple(dict.fromkeys(reading for reading in readings if reading is not None))
    return Answer(tokens, found)


_TO = re.compile(r"(?P<a>\d+(?:\.\d+)?) to (?P<b>\d+(?:\.\d+)?)", re.ASCII)
_GROUPED = re.compile(
    r"(?<![\w.,'])(?:[1-9]\d?(?:,\d\d)+,\d{3}(?:\.\d+)?|[1-9]\d{0,2}(?:(?:'\d{3})+|(?:_\d{3})+)(?:\.\d+)?"
    r"|[1-9]\d{0,2}(?:\.\d{3}){2,20})(?![\w,'])",
    re.ASCII,
)
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(?P<whole>[1-9]\d{0,2}(?:(?:[ \u00a0\u2009\u202f]\d{3}){1,20}|(?:\.\d{3}){1,20})(?=,)|\d+)"
    r",(?P<decimals>\d+)(?![\d.,])",
    re.ASCII,
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2},\d{3}", re.ASCII)


def _ungrouped(text: str) -> str:
    """Join the groups of digits of a text with one number: `12,34,567`, `1'234'567`, `1_234_567`, `1.234.567`."""
    return _GROUPED.sub(_joined, text) if len(_GROUPED.findall(text)) == 1 else text


def _joined(number: re.Match[str]) -> str:
    separators = ".,'_" if number[0].count(".") > 1 else ",'_"
    return number[0].translate(str.maketrans("", "", separators))


def with_decimal_point(text: str) -> str:
    """Replace the decimal comma of a text with one number by a point; keep a comma that groups thousands."""
    if len(_DECIMAL_COMMA.findall(text)) != 1:
        return text
    return _DECIMAL_COMMA.sub(_with_point, text)


def _with_point(number: re.Match[str]) -> str:
    if _THOUSANDS.fullmatch(number[0]):
        return number[0]
    whole = re.sub("[ .\u00a0\u2009\u202f]", "", number["whole"])
    return f"{whole}.{number['decimals']}"


MAX_QUANTITY_CHARACTERS = 200
"""The most characters of a text that is read as a number with at most a unit."""

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
    if len(text) > MAX_QUANTITY_CHARACTERS:
        return None
    found = [quantity for reading in read_answer(text).readings if (quantity := _quantity(reading)) is not None]
    return found[-1] if found else None


def _quantity(term: Term) -> Quantity | None:
    if term.head == "relation" and term.text in ("=", "~") and len(term.parts) == 2 and term.parts[0].head == "symbol":
        term = term.parts[1]
    if term.head == "quantity":
        value = _number_of(term.parts[0])
        return None if value is None else Quantity(value, term.unit)
    value = _number_of(term)
    return None if value is None else Quantity(value)


def _number_of(term: Term) -> Fraction | None:
    """Return the value of a number, a simple fraction or a number in scientific notation; None for anything else."""
    if term.head == "number":
        return None if term.text else term.value
    if term.head == "power":
        exponent = _number_of(term.parts[1])
        if exponent is None or exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
            return None
        return Fraction(10) ** exponent.numerator if term.parts[0] == Term("number", value=Fraction(10)) else None
    parts = [_number_of(part) for part in term.parts]
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
