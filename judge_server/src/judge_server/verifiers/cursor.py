"""A position in the tokens of an answer, and the units and currencies that are read there."""

from dataclasses import replace
from fractions import Fraction

from judge_server.verifiers import units
from judge_server.verifiers.notation import CURRENCY_SIGN, Token
from judge_server.verifiers.terms import RELATIONS, NotRead
from judge_server.verifiers.units import END, Unit, read_unit, read_unit_fraction

MAX_DEPTH = 40
"""How deep brackets, fractions and powers of an answer may nest."""

_DOLLARS = {"A": "AUD", "AUD": "AUD", "C": "CAD", "CAD": "CAD", "US": "USD", "USD": "USD"}
_CURRENCY_WORDS = frozenset([*_DOLLARS, "EUR", "GBP", "JPY", "INR", "Rs", "RMB", "CNY"])


class Cursor:
    """A position in tokens that moves forward over what is read. What must be there and is not raises `NotRead`."""

    def __init__(self, tokens: list[Token], glued_units: bool) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._glued_units = glued_units

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else END

    def _next(self) -> Token:
        token = self._peek()
        if token is END:
            raise NotRead
        self._at += 1
        return token

    def _accept(self, *texts: str) -> bool:
        if self._peek().text in texts and self._peek() is not END:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise NotRead

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotRead

    def _per(self, unit: Unit) -> Unit | None:
        """Consume `per day` or `/day`; None if no unit follows."""
        if self._peek().text not in ("/", "per", "a", "an", "each", "every"):
            return None
        found = self._unit_at(self._at + 1, glued=False)
        if found is None:
            return None
        self._at, divisor = found
        unit = unit.times(divisor, -1)
        kept = unit.things[: len(unit.things) - len(divisor.things)]
        return replace(unit, things=(*kept, *("per " + thing for thing in divisor.things)))

    def _currency_at(self, at: int) -> tuple[int, Unit] | None:
        """Return where a currency ends that begins at a token, and its unit; None if none does."""
        token, after = self._peek(at - self._at), self._peek(at + 1 - self._at)
        if token.text in units.CURRENCIES:
            return at + 1, units.CURRENCIES[token.text]
        if token.kind != "word" or token.text not in _CURRENCY_WORDS:
            return None
        if after.text in units.CURRENCIES and not after.spaced:
            if after.text != CURRENCY_SIGN or not (dollars := units.unit_of(_DOLLARS.get(token.text, ""), glued=False)):
                raise NotRead
            return at + 2, dollars
        if len(token.text) > 1 and token.text != "US" and (after.kind == "number" or after.text == "."):
            unit = units.unit_of(token.text, glued=False)
            return None if unit is None else (at + 1 + (after.text == "."), unit)
        return None

    def _short_scale(self) -> Fraction | None:
        """Consume a letter that scales an amount of money."""
        token = self._peek()
        found = units.SHORT_SCALES.get(token.text) or (Fraction(10**6) if token.text == "m" else None)
        if token.kind == "word" and found is not None:
            self._at += 1
            return found
        return None

    def _unit(self) -> Unit | None:
        """Consume a unit; None if none follows."""
        token = self._peek()
        found = self._unit_at(self._at, glued=not (token.spaced or token.upright))
        if found is None:
            return None
        self._at, unit = found
        return unit

    def _unit_at(self, at: int, *, glued: bool) -> tuple[int, Unit] | None:
        """Return where a unit ends that begins at a token, and the unit; None if none does, or more follows it."""
        tokens = self._tokens
        here = tokens[at] if at < len(tokens) else END
        if here.text == "%":
            unit: Unit | None = units.PERCENT
            at += 1
            if at + 1 < len(tokens) and tokens[at].text in ("per", "a", "each", "every"):
                divisor, at = read_unit(tokens, at + 1, glued=False, unsure_allowed=False)
                unit = None if divisor is None else units.PERCENT.times(divisor, -1)
        elif here.text == "\\frac":
            unit, at = read_unit_fraction(tokens, at)
        elif here.text == "‰" or here.text == "‱":
            unit, at = (units.PER_MILLE if here.text == "‰" else units.BASIS_POINT), at + 1
        else:
            unit, at = read_unit(tokens, at, glued=glued, unsure_allowed=self._glued_units)
        if unit is None or at - self._at > 16:
            return None
        after = tokens[at] if at < len(tokens) else END
        if after.kind == "number" and after.spaced | after.upright | (tokens[at - 1].upright) and unit.dimensions:
            return at, unit
        if after.text == "." and at + 1 == len(tokens):
            at, after = at + 1, END
        is_end = (
            after is END
            or after.text in (",", ";", ")", "]", "\\}", "}", "|", "\\cup", "&", "\\\\", "-", "+")
            or after.text in RELATIONS
        )
        return (at, unit) if is_end or (after.kind == "word" and after.text in ("and", "or")) else None
