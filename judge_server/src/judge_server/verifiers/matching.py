"""Compare texts and numbers as people and models write them.

Texts are compared without the markup around an answer (LaTeX, Markdown). Numbers are read as in `1,234.5`, `1 234,5`,
`$12`, `12%`, `3e4`, `1/2`, `\\frac12` and `80 km/h`, but only from a text that is a single number: anything to work out
(`2\\pi`, `3 million`, `1 + 1`) is not read. A comma before three digits groups thousands, unless a 0 stands before it.
Before any other number of digits it is a decimal comma, although it may separate two numbers of a list:
`Quantity.decimal_comma`.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from trainer_client.text.final_answer import boxed_answer

LAYERS = 16
"""How many nested layers of markup around an answer are removed."""

_WRAPPED = re.compile(
    r"\$\$(?P<a>[^$]*)\$\$|\$(?P<b>[^$]*)\$|\\\((?P<c>.*)\\\)|\\\[(?P<d>.*)\\\]|\*\*(?P<e>[^*]*)\*\*"
    r"|`(?P<f>[^`]*)`",
    re.DOTALL,
)
_SENTENCE = re.compile(
    r"(?P<subject>[^\d,;:=\\]{1,200}?)\b(?:is|are|was|equals)\b[ \t]*:?[ \t]+(?P<value>\S.*)", re.DOTALL
)
_COPULA = re.compile(r"\b(?:is|are|was|equals)\b")
_HEDGE = re.compile(r"\b(?:or|either|neither|nor|not|if|unless|whether)\b", re.IGNORECASE)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mbox)\s*\{(?P<inside>[^{}]*)\}")


def texts_equal(a: str, b: str, *, case_sensitive: bool) -> bool:
    """Whether two texts are equal apart from surrounding and repeated white space."""
    return _folded(" ".join(a.split()), case_sensitive) == _folded(" ".join(b.split()), case_sensitive)


def find(text: str, all_of: Sequence[str], any_of: Sequence[str], *, case_sensitive: bool) -> int | None:
    """Find every text of `all_of` and, unless it is empty, one of `any_of`; None if `text` lacks them.

    Returns:
        The index in `text` of the first entry of `all_of` or, if that is empty, of the earliest match of `any_of`.
    """
    searched = _folded(text, case_sensitive)
    all_found, any_found = (
        [searched.find(_folded(needle, case_sensitive)) for needle in needles] for needles in (all_of, any_of)
    )
    matches = [at for at in any_found if at >= 0]
    if -1 in all_found or (any_found and not matches):
        return None
    at = all_found[0] if all_found else min(matches)
    if len(searched) == len(text):  # folding shortens no character, so each kept its index
        return at
    return bisect_right(range(len(text)), at, key=lambda end: len(_folded(text[:end], case_sensitive))) - 1


def strip_markup(answer: str) -> str:
    r"""Remove `\boxed{…}`, `$…$`, `\(…\)`, `\[…\]`, `**…**` or backticks around an answer, and a full stop.

    Up to `LAYERS` layers are removed, so that the work is bounded by that many passes over the answer.
    """
    for _ in range(LAYERS):
        stripped = answer.strip()
        if stripped.endswith(".") and not stripped.endswith(".."):
            stripped = stripped[:-1].rstrip()
        if wrapped := _WRAPPED.fullmatch(stripped):
            stripped = next(inside for inside in wrapped.groups() if inside is not None)
        if stripped.startswith("\\boxed"):
            stripped = boxed_answer(stripped) or stripped
        if stripped == answer:
            break
        answer = stripped
    return answer


def stated_value(answer: str) -> str | None:
    """Return the value that a sentence states: `80 km/h` for `The average speed is 80 km/h.`; None if it is not one.

    The sentence must have one verb ("is", "are", "was", "equals"), and nothing before it may be an answer itself: no
    number, formula, list or "or". So a sentence that offers several answers gives none of them.
    """
    bare = strip_markup(answer)
    match = _SENTENCE.fullmatch(bare)
    if match is None or _HEDGE.search(match["subject"]) or len(_COPULA.findall(bare)) > 1:
        return None
    return match["value"]


def without_text_commands(answer: str) -> str:
    r"""Replace `\text{…}`, `\mathrm{…}` and the like by their content."""
    return _TEXT_COMMAND.sub(lambda command: f" {command['inside']} ", answer)


def _folded(text: str, case_sensitive: bool) -> str:
    return text if case_sensitive else text.casefold()


MAX_CHARACTERS = 200
"""The most characters of a text that is read as a number."""

_DIGITS = (
    r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+)(?:\.\d*)?|\d+\.?\d*|\.\d+)"
    r"(?:[eE][+-]?\d{1,3})?"
)
_QUANTITY = re.compile(
    rf"(?:[A-Za-z]+\s*[=≈]\s*|[=≈]\s*)?(?P<sign>[+-]?)\s*(?P<currency>[$€£¥₹]?)\s*(?P<minus>-?)"
    rf"(?:(?P<whole>\d+)\s+(?=[^/]+/))?(?P<number>{_DIGITS})(?:\s*/\s*(?P<divisor>{_DIGITS}))?"
    r"(?:\s*(?P<percent>%|(?i:per ?cent|pct)\b))?"
    r"(?P<unit>\s*[A-Za-z°µΩ][A-Za-z°µΩ/.²³ -]*(?:\^?\{?-?[23]\}?)?)?",
    re.ASCII,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]+)\}|(\d))\s*(?:\{([^{}]+)\}|(\d))")
_GROUPED = re.compile(r"(?<=\d)(?:,?\\[,!]|\{,\})\s*(?=\d{3}(?!\d))")
_SPACING = re.compile(r"\\[,!;: ]|[~\u00a0\u2009\u202f]")
_INLINE = re.compile(r"\$([^$]+)\$")
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(?P<whole>[1-9]\d{0,2}(?:(?: \d{3})+|(?:\.\d{3})+)(?=,)|\d+),(?P<decimals>\d+)(?![\d.,])", re.ASCII
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2},\d{3}", re.ASCII)
_SPACED = re.compile(r"(?<![\w.,^\\])[1-9]\d{0,2}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\w)", re.ASCII)
_SHORT_UNIT = re.compile(
    "a|m|s|g|h|l|L|V|W|N|J|C|F|[kcmn]m|k?g|mg|m[lL]|lb|oz|ft|in|yd|mi|hr|k?[hH]z|[kM]W|kV|[kM]J|eV|Pa|pt|[ap]m|[AP]M"
    "|per|of|by|at|the"
)
_NO_UNIT = re.compile(
    "sin|cos|tan|log|exp|sqrt|and|plus|minus|times|over|half|mod|hundred|thousand|million|billion|trillion|dozen"
    "|percent|percentage",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as written: its exact value, its digits, and whether it has a percent sign, a currency or a unit.

    `decimal_comma` tells that a comma was read as the decimal point; `2,5` may be a list of two numbers instead.
    """

    value: Fraction
    digits: str
    percent: bool
    has_unit: bool
    decimal_comma: bool = False

    @property
    def readings(self) -> tuple[Fraction, ...]:
        """The values it may stand for: `12%` is 12 if a percentage was asked for, and 0.12 if not."""
        return (self.value, self.value / 100) if self.percent else (self.value,)


def read_quantity(text: str) -> Quantity | None:
    """Read a text that is one number, with a currency before it or percent or a unit after it; None if it is not."""
    if len(text) > MAX_CHARACTERS:
        return None
    pointed = _DECIMAL_COMMA.sub(_with_point, plain := _plain(text))
    match = _QUANTITY.fullmatch(pointed)
    if match is None or not _is_unit(match["unit"] or ""):
        return None
    number, divisor = (re.sub("[, ]", "", match[part] or "1") for part in ("number", "divisor"))
    if not Fraction(divisor):
        return None
    negative = (match["sign"] == "-") != bool(match["minus"])
    value = Fraction(number) / Fraction(divisor) + int(match["whole"] or 0)
    parts = [f"{Decimal(part):f}" for part in ((number, divisor) if match["divisor"] else (number,))]
    is_plain = not match["whole"] and (len(parts) == 1 or "." not in "".join(parts))
    shown = "/".join(parts) if is_plain else str(value)
    return Quantity(
        value=-value if negative else value,
        digits="-" * negative + shown,
        percent=match["percent"] is not None,
        has_unit=bool(match["unit"] or match["currency"]),
        decimal_comma=pointed != plain,
    )


def without_spaced_groups(text: str) -> str:
    """Remove spaces that group the thousands of numbers: `1 000` becomes `1000`."""
    return _SPACED.sub(lambda number: re.sub(r"\s", "", number[0]), text)


def within_tolerance(value: Fraction, expected: Fraction, *, absolute: float, relative: float) -> bool:
    """Whether |value - expected| <= absolute + relative * |expected|, in exact decimal arithmetic."""
    return abs(value - expected) <= exact_fraction(absolute) + exact_fraction(relative) * abs(expected)


def exact_fraction(number: float) -> Fraction:
    """Return the decimal that a float is written as: 1/10 for 0.1."""
    return Fraction(repr(number))


def _with_point(number: re.Match[str]) -> str:
    """Replace a number's decimal comma by a point; keep a comma that groups thousands."""
    if _THOUSANDS.fullmatch(number[0]):
        return number[0]
    return f"{re.sub('[ .]', '', number['whole'])}.{number['decimals']}"


def _plain(text: str) -> str:
    bare = text.replace("\\$", "$").replace("\\%", "%").replace("−", "-")
    bare = _SPACING.sub(" ", _GROUPED.sub("", _INLINE.sub(r"\1", strip_markup(bare))))
    bare = strip_markup(without_text_commands(bare))
    bare = re.sub(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})", "°", bare)
    return _FRACTION.sub(lambda frac: f" {frac[1] or frac[2]}/{frac[3] or frac[4]} ", bare).strip()


def _is_unit(unit: str) -> bool:
    words = re.findall(r"[A-Za-z]+", unit)
    return all(_SHORT_UNIT.fullmatch(word) or (len(word) > 2 and not _NO_UNIT.fullmatch(word)) for word in words)
