"""Read units in the tokens of an answer: `km/h`, `m s^{-2}`, `square feet`, `eggs per day`, `degrees Celsius`.

Each function returns a unit and where it ends; what may follow a unit is decided by the reader of the answer.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from judge_server.verifiers import units
from judge_server.verifiers.notation import Token
from judge_server.verifiers.units import Unit

END = Token("end", "")
"""What follows the last token."""


def read_unit_fraction(tokens: Sequence[Token], at: int) -> tuple[Unit | None, int]:
    r"""Read `\frac{km}{h}`."""
    found: list[Unit] = []
    at += 1
    for _ in range(2):
        if at >= len(tokens) or tokens[at].text != "{":
            return None, at
        unit, at = read_unit(tokens, at + 1, glued=False, unsure_allowed=False)
        if unit is None or at >= len(tokens) or tokens[at].text != "}":
            return None, at
        found.append(unit)
        at += 1
    return found[0].times(found[1], -1), at


def read_unit(tokens: Sequence[Token], at: int, *, glued: bool, unsure_allowed: bool) -> tuple[Unit | None, int]:
    """Read a product and quotient of units, as in `km/h`, `square feet` or `eggs per day`."""
    unit: Unit | None = None
    power = 1
    for _ in range(6):
        factor, after = _read_unit_factor(tokens, at, glued=glued and unit is None, unsure_allowed=unsure_allowed)
        if factor is None:
            return (unit, at) if power == 1 and unit is not None and not _joins(tokens, at - 1) else (None, at)
        unit = Unit().times(factor, power) if unit is None else unit.times(factor, power)
        if power < 0 and factor.things:
            unit = replace(
                unit, things=(*unit.things[: -len(factor.things)], *("per " + thing for thing in factor.things))
            )
        at = after
        token = tokens[at] if at < len(tokens) else END
        following = tokens[at + 1] if at + 1 < len(tokens) else END
        power = 1
        if token.text in ("/", "per", "a", "an", "each", "every") and (
            token.text == "/" or token.spaced | token.upright
        ):
            power, at = -1, at + 1
        elif (token.text in ("\\cdot", "*", "\\times") and following.kind == "word") or (
            token.text == "of" and following.kind == "word"
        ):
            at += 1
        elif token.kind != "word" or not units.may_follow(tokens[at - 1].text, token.text):
            return unit, at
    return unit, at


def _joins(tokens: Sequence[Token], at: int) -> bool:
    return tokens[at].text in ("/", "per", "a", "an", "each", "every", "\\cdot", "*", "\\times", "of")


def _read_unit_factor(
    tokens: Sequence[Token], at: int, *, glued: bool, unsure_allowed: bool
) -> tuple[Unit | None, int]:
    def word(index: int) -> str:
        return tokens[index].text if index < len(tokens) and tokens[index].kind == "word" else ""

    if at < len(tokens) and tokens[at].text == "°":
        if word(at + 1) in ("C", "F") and not tokens[at + 1].spaced:
            return Unit((("°" + word(at + 1), 1),)), at + 2
        return units.DEGREE, at + 1
    if at < len(tokens) and tokens[at].text in units.CURRENCIES:
        return units.CURRENCIES[tokens[at].text], at + 1
    phrase = (word(at).casefold(), word(at + 1).casefold())
    if phrase in (("basis", "points"), ("basis", "point")):
        return units.BASIS_POINT, at + 2
    if phrase == ("per", "cent"):
        return units.PERCENT, at + 2
    if phrase in (("per", "mille"), ("per", "mil")):
        return units.PER_MILLE, at + 2
    if phrase == ("degrees", "celsius") or phrase == ("degrees", "fahrenheit"):
        return Unit((("°" + phrase[1][0].upper(), 1),)), at + 2
    if phrase[0] in ("percent", "pct", "percentage"):
        if phrase[1] in ("point", "points"):
            return Unit((("percentage point", 1),)), at + 2
        return units.PERCENT, at + 1
    if phrase[0] in ("celsius", "fahrenheit"):
        return Unit((("°" + phrase[0][0].upper(), 1),)), at + 1
    ohm = (["k", "\\Omega"], 2, 1000) if word(at) == "k" else (["\\Omega"], 1, 1)
    if [token.text for token in tokens[at : at + ohm[1]]] == ohm[0]:
        unit = units.unit("ohm", glued=False) or Unit()
        return replace(unit, size=unit.size * ohm[2]), at + ohm[1]
    if (
        at < len(tokens)
        and tokens[at].text == "\\mu"
        and word(at + 1)
        and (not tokens[at + 1].spaced or at + 2 == len(tokens))
    ):
        micro = units.unit("u" + word(at + 1), glued=False)
        return (None, at) if micro is None else _with_exponent(micro, tokens, at + 2)
    exponent = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}.get(phrase[0], 0)
    if exponent:
        skip = 2 if phrase[0] in ("sq", "cu") and at + 1 < len(tokens) and tokens[at + 1].text == "." else 1
        measured = units.unit(word(at + skip), glued=False)
        if measured is not None and measured.dimensions:
            return Unit().times(measured, exponent), at + skip + 1
        if phrase[0] != "square":
            return None, at
    if phrase in (("nautical", "miles"), ("light", "years"), ("light", "year"), ("nautical", "mile")):
        return Unit(((phrase[0], 1),)), at + 2
    found = units.unit(word(at), glued=glued) if word(at) else None
    if found is None or (found.needed and glued and not unsure_allowed and found not in (units.BASIS_POINT,)):
        return None, at
    return _with_exponent(found, tokens, at + 1)


def _with_exponent(found: Unit, tokens: Sequence[Token], at: int) -> tuple[Unit | None, int]:
    """Apply an exponent that is written after a unit."""
    rest = [token.text for token in tokens[at : at + 5]]
    if rest[:1] in (["squared"], ["cubed"]):
        return Unit().times(found, 2 if rest[0] == "squared" else 3), at + 1
    if rest[:1] != ["^"]:
        return found, at
    digits = rest[1:2]
    length = 2
    if digits == ["{"]:
        digits, length = (
            ([rest[2]], 4) if rest[3:4] == ["}"] else (["-" + rest[3]], 5) if rest[2:3] == ["-"] else ([""], 0)
        )
    elif digits == ["-"]:
        digits, length = ["-" + "".join(rest[2:3])], 3
    if digits and re.fullmatch(r"-?[1-4]", digits[0], re.ASCII):
        return Unit(needed=found.needed).times(found, int(digits[0])), at + length
    return None, at
