"""Texts that make a regular expression backtrack, from the expression itself, and how its time grows with their length.

A matcher takes quadratic time or more if a text has many places at which a repetition may begin, or many ways to
divide the text between repetitions, and no end that matches. So each text repeats what a repetition of the expression
takes, behind what the expression wants before it, and ends with what it does not want.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from re import _constants as sre  # type: ignore[attr-defined] # the only parser of Python's own expressions
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_ALPHABET = "aA1 \n\t._-,:;'\"(){}[]<>/\\|*#$é世\u0301\u202e\U0001f600\U0001d41a"
"""Characters that stand for the others of a class."""

_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_LOOKS = (sre.ASSERT, sre.ASSERT_NOT)
_MANY = 16
"""A repetition of at most this many is no more than a constant."""

_MOST_TEXTS = 120
_MOST_SAMPLES = 6
_ENDS = ("", "\0", " x")

LONGEST = 16_384
LENGTHS = (*range(8, 32, 4), *(2**power for power in range(5, 15)))
"""Characters of the texts that are tried, up to `LONGEST`. The short ones end the trial of exponential work early."""

FAST_S = 0.02
"""So little processor time that the work for `LONGEST` characters is not quadratic."""

_LINEAR, _MOST_TRIES = 8.0, 4


def hostile_units(pattern: re.Pattern[Any]) -> list[tuple[str, str, str]]:
    """Return texts as (beginning, unit to repeat, end), at most `_MOST_TEXTS` of them, evenly chosen."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    flags = pattern.flags if isinstance(pattern.pattern, str) else pattern.flags | re.ASCII
    tree = parser.parse(text, flags & ~re.DEBUG)
    alphabet = dict.fromkeys(chr(char) for char in _literals(tree))
    members = _Members((*islice(alphabet, 24), *_ALPHABET))
    found: dict[tuple[str, str, str], None] = {}
    for before, unit in _repetitions(tree, "", members):
        for end in _ENDS:
            found[before, unit, end] = found["", unit, end] = found["", before + unit, end] = None
    for unit in (*alphabet, *(one + other for one, other in zip(alphabet, islice(alphabet, 1, None), strict=False))):
        found["", unit, "\0"] = None
    whole = _sample(tree, members)
    found["", whole, "\0"] = found["", whole + " ", ""] = None
    usable = [one for one in found if one[1]]
    step = max(1, len(usable) / _MOST_TEXTS)
    return [usable[int(n * step)] for n in range(int(len(usable) / step))]


def growth(use: Callable[[Any], object], unit: tuple[str, str, str], *, as_bytes: bool = False) -> float:
    """How many times as long a text takes that is four times as long as another; 0 if all are read fast."""
    for size in LENGTHS:
        most = _seconds(use, _text(unit, size, as_bytes))
        if most > FAST_S:
            break
    else:
        return 0.0
    small, large = _text(unit, size // 4, as_bytes), _text(unit, size, as_bytes)
    least = float("inf")
    for _ in range(_MOST_TRIES):
        least, most = min(least, _seconds(use, small)), min(most, _seconds(use, large))
        if most < FAST_S or most / max(least, 1e-6) < _LINEAR:
            return 0.0
    return most / max(least, 1e-6)


def uses(pattern: re.Pattern[Any], methods: Iterable[str]) -> Iterator[Callable[[Any], object]]:
    """Yield what the given methods of a pattern do with a text; a pattern is searched if none is known."""
    kinds = {"match": "match", "fullmatch": "fullmatch"}
    for kind in sorted({kinds.get(method, "findall") for method in methods} or {"findall"}):
        yield getattr(pattern, kind)


def _text(unit: tuple[str, str, str], size: int, as_bytes: bool) -> Any:
    before, repeated, end = unit
    text = before + repeated * max(1, size // len(repeated)) + end
    return text.encode("utf-8", "surrogatepass") if as_bytes else text


def _seconds(use: Callable[[Any], object], text: Any) -> float:
    began = time.process_time()
    use(text)
    return time.process_time() - began


class _Members:
    """The characters of an alphabet that a node of an expression matches."""

    def __init__(self, alphabet: tuple[str, ...]) -> None:
        self._alphabet = tuple(dict.fromkeys(alphabet))

    def of(self, operator: Any, argument: Any) -> list[str]:
        """The characters that a node of one character matches."""
        if operator is sre.LITERAL:
            return [chr(argument)]
        if operator is sre.NOT_LITERAL:
            return [char for char in self._alphabet if ord(char) != argument]
        if operator is sre.ANY:
            return [char for char in self._alphabet if char != "\n"]
        negated = argument[0][0] is sre.NEGATE
        return [char for char in self._alphabet if self._is_in(char, argument[negated:]) != negated] or [
            chr(low) for kind, low in _bounds(argument) if not negated
        ]

    def _is_in(self, char: str, items: Any) -> bool:
        for kind, value in items:
            if kind is sre.LITERAL and ord(char) == value:
                return True
            if kind is sre.RANGE and value[0] <= ord(char) <= value[1]:
                return True
            if kind is sre.CATEGORY and re.match(_CATEGORIES[value], char):
                return True
        return False


_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_NOT_DIGIT: r"\D", sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S", sre.CATEGORY_WORD: r"\w", sre.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def _bounds(items: Any) -> Iterator[tuple[Any, int]]:
    for kind, value in items:
        if kind is sre.LITERAL:
            yield kind, value
        elif kind is sre.RANGE:
            yield kind, value[0]


def _children(operator: Any, argument: Any) -> list[Any]:
    """The expressions inside of a node."""
    if operator in _REPEATS:
        return [argument[2]]
    if operator is sre.SUBPATTERN:
        return [argument[3]]
    if operator is sre.BRANCH:
        return list(argument[1])
    if operator in _LOOKS:
        return [argument[1]]
    if operator is sre.ATOMIC_GROUP:
        return [argument]
    if operator is sre.GROUPREF_EXISTS:
        return [one for one in argument[1:] if one is not None]
    return []


def _literals(tree: Any) -> Iterator[int]:
    for operator, argument in tree:
        if operator is sre.LITERAL:
            yield argument
        elif operator is sre.IN:
            yield from (value for kind, value in _bounds(argument))
        for child in _children(operator, argument):
            yield from _literals(child)


def _sample(tree: Any, members: _Members, place: int = 0) -> str:
    """A text that an expression roughly matches: looks around are not obeyed."""
    parts = []
    for operator, argument in tree:
        if operator in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            chars = members.of(operator, argument)
            parts.append(chars[place % len(chars)] if chars else "")
        elif operator in _REPEATS:
            parts.append(_sample(argument[2], members, place) * min(max(argument[0], 1), 3))
        elif operator not in _LOOKS and (children := _children(operator, argument)):
            parts.append(_sample(children[place % len(children)], members, place))
    return "".join(parts)


def _repetitions(tree: Any, before: str, members: _Members) -> Iterator[tuple[str, str]]:
    """Yield each long repetition inside of an expression: a text for what is before it, and units that it repeats."""
    for place, (operator, argument) in enumerate(tree):
        here = before + _sample(tree[:place], members)
        if operator in _REPEATS and argument[1] > _MANY:
            body = argument[2]
            samples = dict.fromkeys(_sample(body, members, n) for n in range(_MOST_SAMPLES))
            if len(body) == 1 and body[0][0] in (sre.NOT_LITERAL, sre.ANY, sre.IN):
                samples |= dict.fromkeys(members.of(*body[0])[: 2 * _MOST_SAMPLES])
            yield from ((here, one) for one in samples if one)
        for child in _children(operator, argument):
            yield from _repetitions(child, here, members)
