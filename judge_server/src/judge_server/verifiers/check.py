"""A check: the verification of one criterion by a program, and the texts it reads.

Texts and numbers are compared as people and models write them.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from typing import NamedTuple

from pydantic import JsonValue

from trainer_client.steps import WHOLE_RESPONSE, Step
from trainer_client.text.final_answer import boxed_answer, extract_final_answer
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JsonSchemaVerification,
    JudgeVerification,
    MathVerification,
    NumericVerification,
    RegexVerification,
    ToolCallVerification,
    TurnsVerification,
    Verification,
    needs_ground_truth,
)
from trainer_client.wire.groups import Message

Program = (
    MathVerification
    | ExactVerification
    | ContainsVerification
    | RegexVerification
    | JsonSchemaVerification
    | NumericVerification
    | ToolCallVerification
    | TurnsVerification
)
"""A verification that needs no judge."""

_RULES = 4  # raise when the same check may have another result than before
_LIBRARIES = {
    "math": ("math-verify", "latex2sympy2-extended", "sympy"),
    "json_schema": ("jsonschema",),
    "tool_call": ("jsonschema",),
}


class ToolUse(NamedTuple):
    """A call of a tool: the number of its turn, the tool's name, and the arguments as the policy wrote them."""

    turn: int
    name: str
    arguments: str | dict[str, JsonValue]


def tool_uses(messages: Sequence[Message], turns: Sequence[Step]) -> tuple[ToolUse, ...]:
    """Return the calls of tools in a response, given its messages and its turns."""
    said = [message for message in messages if message.role == "assistant"]
    return tuple(
        [
            ToolUse(turn.number, call.function.name, call.function.arguments)
            for turn, message in zip(turns, said, strict=True)
            for call in message.tool_calls
        ]
    )


@dataclass(frozen=True, slots=True)
class Check:
    """A verification of one response; it can be pickled.

    Attributes:
        verification: the method and what it compares with; never `judge`.
        text: the judged response.
        final_answer: what `trainer_client.text.final_answer.extract_final_answer` found in `text`.
        ground_truth: the group's ground truth, used if the verification has no expected answer of its own.
        true_answer: what `stated_answer` returns for it, given by callers with many checks on one ground truth.
        steps: the steps of `text`.
        names_step: whether the result names the step that the verdict belongs to.
        uses: the calls of tools in the response.
        turns: the number of its turns.
    """

    verification: Verification
    text: str
    final_answer: str | None
    ground_truth: str | None
    steps: tuple[Step, ...] = ()
    names_step: bool = False
    true_answer: str | None = None
    uses: tuple[ToolUse, ...] = ()
    turns: int = 1

    @property
    def program(self) -> Program:
        """The verification; raises `ValueError` if it is by the judge."""
        if isinstance(self.verification, JudgeVerification):
            raise ValueError("a criterion verified by the judge cannot be a check; ask the judge")
        return self.verification

    @property
    def subject(self) -> str | None:
        """The part of the response that is verified; None if it is a final answer or step that the response lacks."""
        if isinstance(self.program, ToolCallVerification):
            return json.dumps(self.uses)
        if isinstance(self.program, TurnsVerification):
            return str(self.turns)
        if self.program.of == "final_answer":
            return self.final_answer
        number = step_to_search(self.program) or WHOLE_RESPONSE
        if number == WHOLE_RESPONSE:
            return self.text
        return next((self.text[step.start : step.end] for step in self.steps if step.number == number), None)

    @property
    def expected(self) -> str | float | None:
        """What the verification compares with: its own expected answer, or the ground truth; None if there is neither.

        If the ground truth is a worked solution that states a final answer, final answers are compared with that one.
        """
        program = self.program
        if not isinstance(program, MathVerification | ExactVerification | NumericVerification):
            return None
        if program.expected is not None or self.ground_truth is None:
            return program.expected
        if program.of == "response" and isinstance(program, ExactVerification):
            return self.ground_truth
        return stated_answer(self.ground_truth) if self.true_answer is None else self.true_answer

    @property
    def digest(self) -> bytes:
        """The 32-byte digest, equal for checks that must have equal results: only texts that are compared enter.

        The versions of the libraries that decide enter too.
        """
        return self.digest_with(self.program_digest(), {})

    def program_digest(self) -> bytes:
        """Return the part of the digest that is the same for every response of a group."""
        program = self.program
        content = [_RULES, _versions(program.method), program.model_dump(mode="json"), self.expected, self.names_step]
        return sha256(json.dumps(content, sort_keys=True).encode()).digest()

    def digest_with(self, program_digest: bytes, subjects: dict[str, bytes]) -> bytes:
        """Return the digest from its program part; `subjects` caches the digests of texts."""
        subject = self.subject
        if subject is None:
            return sha256(program_digest).digest()
        if subject not in subjects:
            subjects[subject] = sha256(subject.encode("utf-8", "surrogatepass")).digest()
        return sha256(program_digest + subjects[subject]).digest()


def stated_answer(ground_truth: str) -> str:
    """Return the final answer that a ground truth states, or all of it if it states none."""
    return extract_final_answer(ground_truth) or ground_truth


def step_to_search(verification: Verification) -> int | None:
    """Return the number of the only step that a verification searches; None if it names none."""
    return verification.step if isinstance(verification, ContainsVerification | RegexVerification) else None


def missing_field(verification: Verification, ground_truth: str | None) -> str | None:
    """Return the group field that a verification needs and lacks; None if nothing is missing."""
    return "ground_truth" if needs_ground_truth(verification) and not (ground_truth or "").strip() else None


@cache
def _versions(method: str) -> list[str]:
    return [f"{name} {version(name)}" for name in _LIBRARIES.get(method, ())]


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
