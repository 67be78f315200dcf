"""A worker process of the checker: it decides checks within limits of time and memory.

Time is limited in CPU seconds, so that a busy machine makes no check fail. The limits are set here, because the kernel
enforces them in native code and without the parent: it refuses memory above the limit and ends a check that exceeds
its time. A first try is first interrupted by Python, so that the process remains for the next check.

Answers are compared as mathematics with math-verify, or as text. JSON is validated against a JSON Schema, whose
references must lead within the schema: nothing is fetched.
"""

import json
import logging
import re
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from types import FrameType
from typing import NoReturn

import math_verify  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

from judge_server.ports import CallFailure, JudgeResult
from judge_server.verifiers.check import (
    Check,
    exact_fraction,
    find,
    read_quantity,
    stated_value,
    step_to_search,
    strip_markup,
    texts_equal,
    within_tolerance,
    without_spaced_groups,
    without_text_commands,
)
from trainer_client.steps import NO_STEP, WHOLE_RESPONSE
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JsonSchemaVerification,
    MathVerification,
    NumericVerification,
    RegexVerification,
    ToolCallVerification,
    TurnsVerification,
)

_LETTER = re.compile(r"\(?(?P<letter>[A-Za-z])\)?")
_LABEL = re.compile(r"\(?(?P<letter>[A-Za-z])[).:]\s.*", re.DOTALL)
_SIGNS = re.compile(r"[\\^_=<>{}|$+*]|/\s*\d|\d\s*/")
_WORD = re.compile(r"[^\W\d_]{3,}|\b(?i:no)\b")
_OTHER_SCRIPT = re.compile(r"[^\W\d_a-zA-Z\u0370-\u03ff]")
_MATHEMATICAL = re.compile("and|(?:arc)?(?:sin|cos|tan|cot|sec|csc)|log|exp|sqrt|max|min|gcd|lcm|mod|det")
_BARE_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])|π")
_PI = r"\\pi "
_UPRIGHT_E = re.compile(r"\\(?:mathrm|text)\s*\{\s*e\s*\}")

_Formulas = list[object]


class UnreadableFormula(ValueError):
    """The expected answer cannot be read as mathematics or words."""


def equal(expected: str, answer: str) -> bool:
    """Whether a final answer equals the expected one, as written or as stated in a sentence ("The speed is 80 km/h").

    Identical texts are equal whether or not they can be read. Raises `UnreadableFormula` if the expected answer has to
    be read and cannot.
    """
    return _equal(expected, answer) or ((value := stated_value(answer)) is not None and _equal(expected, value))


def _equal(expected: str, answer: str) -> bool:
    if texts_equal(strip_markup(expected), strip_markup(answer), case_sensitive=True):
        return True
    if _in_words(expected):
        return _same_words(expected, answer)
    if (letter := _letter(expected)) and letter in (_letter(answer), _label(answer)):
        return True
    return _same_decimal(expected, answer) or _verify(_parse(expected), _read_formula(_boxed(answer)))


def response_states(expected: str, response: str) -> bool:
    """Whether the answer that math-verify finds in a full response equals the expected one.

    Raises `UnreadableFormula` if the expected answer cannot be read.
    """
    if _in_words(expected):
        return _same_words(expected, response)
    return _verify(_parse(expected), _read_formula(response))


def _parse(expected: str) -> _Formulas:
    parsed = _read_formula(_boxed(expected))
    if not parsed:
        raise UnreadableFormula(expected)
    return parsed


def _boxed(answer: str) -> str:
    quantity = read_quantity(answer)
    if quantity is not None and "=" not in answer and not quantity.decimal_comma:
        return rf"\boxed{{{quantity.digits}{'%' * quantity.percent}}}"
    formula = _UPRIGHT_E.sub("e", without_spaced_groups(strip_markup(answer)))
    return rf"\boxed{{{_BARE_PI.sub(_PI, formula)}}}"


def _same_decimal(expected: str, answer: str) -> bool:
    """Whether two numbers, at least one with a decimal comma, are equal. `_verify` compares them as lists."""
    wanted, given = read_quantity(expected), read_quantity(answer)
    if wanted is None or given is None or not (wanted.decimal_comma or given.decimal_comma):
        return False
    return wanted.value == given.value and wanted.percent == given.percent


def _read_formula(text: str) -> _Formulas:
    formulas: _Formulas = math_verify.parse(text, fallback_mode="no_fallback", parsing_timeout=None)
    return formulas


def _verify(wanted: _Formulas, given: _Formulas) -> bool:
    try:
        return bool(given) and bool(math_verify.verify(wanted, given, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - sympy raises anything on what it cannot compare
        return False


def _in_words(answer: str) -> bool:
    """Whether an answer is words (`Paris`, `June 20`) and not a formula: it has letters that name no function."""
    if read_quantity(answer) is not None:
        return False
    bare = without_text_commands(strip_markup(answer))
    if _SIGNS.search(bare):
        return False
    words = (word for word in _WORD.findall(bare) if not _MATHEMATICAL.fullmatch(word))
    return any(words) or _OTHER_SCRIPT.search(bare) is not None


def _same_words(expected: str, answer: str) -> bool:
    return texts_equal(_words(expected), _words(answer), case_sensitive=False)


def _words(answer: str) -> str:
    return strip_markup(without_text_commands(strip_markup(answer)))


def _letter(answer: str) -> str | None:
    match = _LETTER.fullmatch(_words(answer))
    return match["letter"].upper() if match else None


def _label(answer: str) -> str | None:
    match = _LABEL.fullmatch(_words(answer))
    return match["letter"].upper() if match else None


_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<rest>.*)")


class UnusableSchema(ValueError):
    """The schema is invalid, or refers to something that it does not contain."""


def satisfies(text: str, schema: dict[str, JsonValue]) -> bool:
    """Whether a text is JSON, bare or in its last fenced block, that satisfies a schema (draft 2020-12).

    `format` is not asserted. Raises `UnusableSchema`.
    """
    _check(schema)
    try:
        value = _read_json(text)
    except (ValueError, RecursionError):
        return False
    return _is_valid(value, schema)


def arguments_satisfy(arguments: str | dict[str, JsonValue], schema: dict[str, JsonValue]) -> bool:
    """Whether the arguments of a tool call are an object that satisfies a schema; raises `UnusableSchema`."""
    _check(schema)
    try:
        value = _json(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and _is_valid(value, schema)


def _check(schema: dict[str, JsonValue]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise UnusableSchema(
            f"the schema is not a valid JSON Schema, at {error.json_path}: {error.message[:200]}"
        ) from None


def _is_valid(value: JsonValue, schema: dict[str, JsonValue]) -> bool:
    empty: Registry[JsonValue] = Registry()
    try:
        return bool(Draft202012Validator(schema, registry=empty).is_valid(value))
    except Unresolvable as error:
        raise UnusableSchema(
            f"the schema refers to {error.ref[:200]!r}, which it does not contain; define it under $defs"
        ) from None
    except RecursionError:
        raise UnusableSchema("the schema refers to itself endlessly, or the JSON nests too deeply") from None


def last_block(text: str) -> str | None:
    """Return the content of the last fenced block of a Markdown text, or None; an open block runs to the end."""
    last: list[str] | None = None
    opened = ""
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line.rstrip("\r"))
        if not opened:
            if fence and not (fence["marks"][0] == "`" and "`" in fence["rest"]):
                opened, last = fence["marks"], []
        elif fence and fence["marks"].startswith(opened) and not fence["rest"].strip():
            opened = ""
        elif last is not None:
            last.append(line)
    return None if last is None else "\n".join(last)


def _read_json(text: str) -> JsonValue:
    try:
        return _json(text)
    except ValueError:
        block = last_block(text)
        if block is None:
            raise
        return _json(block)


def _json(text: str) -> JsonValue:
    value: JsonValue = json.loads(text, parse_constant=_refuse)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


SATISFIED = JudgeResult(score=1.0)
NOT_SATISFIED = JudgeResult(score=0.0)


def decide(check: Check) -> JudgeResult | CallFailure:
    """Decide a check: a result of 1.0 or 0.0, or a `parse` failure if what it compares with cannot be read.

    The result names the step in which a search matched, if the check asks for that.
    """
    subject, expected = check.subject, check.expected
    match check.program:
        case ContainsVerification() | RegexVerification() as wanted:
            try:
                return _search_result(check, None if subject is None else _place(subject, wanted))
            except (re.error, OverflowError, RecursionError) as error:
                return CallFailure("parse", f"the pattern is not a regular expression: {error}"[:300])
        case _ if subject is None:
            return NOT_SATISFIED
        case JsonSchemaVerification() as wanted:
            return _by_schema(subject, wanted)
        case ToolCallVerification() as wanted:
            return _by_calls(check, wanted)
        case TurnsVerification() as wanted:
            return SATISFIED if _is_within(check.turns, wanted) else NOT_SATISFIED
        case _ if expected is None:
            return CallFailure(
                "parse", "there is nothing to compare with; give `expected`, or give the group a ground_truth"
            )
        case ExactVerification() as wanted:
            satisfied = texts_equal(subject, str(expected), case_sensitive=wanted.case_sensitive)
        case MathVerification() as wanted:
            return _by_math(subject, str(expected), wanted)
        case NumericVerification() as wanted:
            return _by_number(subject, expected, wanted)
    return SATISFIED if satisfied else NOT_SATISFIED


def _place(subject: str, wanted: ContainsVerification | RegexVerification) -> int | None:
    """Return the index where the match begins; None without a match."""
    if isinstance(wanted, ContainsVerification):
        return find(subject, wanted.all_of, wanted.any_of, case_sensitive=wanted.case_sensitive)
    pattern = re.compile(wanted.pattern, 0 if wanted.case_sensitive else re.IGNORECASE)
    match = (pattern.search if wanted.match == "search" else pattern.fullmatch)(subject)
    return None if match is None else match.start()


def _search_result(check: Check, at: int | None) -> JudgeResult:
    """Return the result of a search that matched at index `at` of its subject, or not at all (None)."""
    result = SATISFIED if at is not None else NOT_SATISFIED
    return replace(result, step=_step(check, at)) if check.names_step else result


def _step(check: Check, at: int | None) -> int | None:
    """Return the step that the verdict of a search belongs to; None if it is no particular one."""
    program = check.program
    named = step_to_search(program)
    if named is not None:
        return NO_STEP if check.subject is None else named
    if program.of == "final_answer" or (isinstance(program, RegexVerification) and program.match == "full"):
        return None
    if at is None:
        return NO_STEP
    return next((step.number for step in check.steps if step.start <= at < step.end), WHOLE_RESPONSE)


def _by_calls(check: Check, wanted: ToolCallVerification) -> JudgeResult | CallFailure:
    """Count the calls that match; the verdict belongs to the turn of the first, if a call satisfies it."""

    named, schema = [use for use in check.uses if wanted.name in (None, use.name)], wanted.arguments
    try:
        counted = [use for use in named if schema is None or arguments_satisfy(use.arguments, schema)]
    except UnusableSchema as error:
        return CallFailure("parse", str(error))
    result = SATISFIED if _is_within(len(counted), wanted) else NOT_SATISFIED
    if not check.names_step:
        return result
    return replace(result, step=counted[0].turn if counted else NO_STEP)


def _is_within(count: int, wanted: ToolCallVerification | TurnsVerification) -> bool:
    return count >= wanted.at_least and (wanted.at_most is None or count <= wanted.at_most)


def _by_math(subject: str, expected: str, wanted: MathVerification) -> JudgeResult | CallFailure:

    compare = equal if wanted.of == "final_answer" else response_states
    try:
        return SATISFIED if compare(expected, subject) else NOT_SATISFIED
    except UnreadableFormula:
        return _unreadable(expected, wanted, "not a formula that math-verify can read")


def _by_number(subject: str, expected: str | float, wanted: NumericVerification) -> JudgeResult | CallFailure:
    targets: tuple[Fraction, ...]
    if isinstance(expected, str):
        quantity = read_quantity(expected)
        if quantity is None:
            return _unreadable(expected, wanted, "not a number")
        targets = quantity.readings
    else:
        targets = (exact_fraction(expected),)
    answer = read_quantity(subject)
    if answer is None and wanted.of == "final_answer":
        answer = read_quantity(stated_value(subject) or "")
    values = answer.readings if answer is not None else ()
    satisfied = any(
        within_tolerance(value, target, absolute=wanted.absolute, relative=wanted.relative)
        for value in values
        for target in targets
    )
    return SATISFIED if satisfied else NOT_SATISFIED


def _by_schema(subject: str, wanted: JsonSchemaVerification) -> JudgeResult | CallFailure:

    try:
        return SATISFIED if satisfies(subject, wanted.json_schema) else NOT_SATISFIED
    except UnusableSchema as error:
        return CallFailure("parse", str(error))


def _unreadable(expected: str, wanted: MathVerification | NumericVerification, what: str) -> CallFailure:
    source = "the ground truth" if wanted.expected is None else "the expected answer"
    shown = expected if len(expected) <= 100 else expected[:99] + "…"
    return CallFailure(
        "parse", f"{source} {shown!r} is {what}; correct it, or verify the criterion by `exact` or by the judge"
    )


WALL_CLOCK_FACTOR = 4.0
"""How many times its limit of CPU seconds a check may take by the clock, when other processes keep the machine busy."""


def init_worker(memory_mb: int) -> None:
    """Set up a worker process: load libraries, limit memory, and let SIGTERM end it at once."""

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    equal("1/2", "0.5")
    satisfies("{}", {"type": "object"})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would wait for native code to return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGVTALRM, _interrupt)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))


class TryTimeExceeded(BaseException):
    """The time of a first try is over. A BaseException, so that no library catches it."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise TryTimeExceeded


@contextmanager
def time_limits(seconds: float, interrupt_s: float | None = None) -> Iterator[None]:
    """Raise `TryTimeExceeded` after `interrupt_s` CPU seconds; end the process after `seconds` of them."""
    signal.setitimer(signal.ITIMER_REAL, WALL_CLOCK_FACTOR * seconds)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_VIRTUAL, interrupt_s or 0)
    try:
        yield
    finally:
        for timer in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)


def decide_within(
    check: Check, seconds: float, memory_mb: int, first_try_s: float | None
) -> JudgeResult | CallFailure | None:
    """Decide a check; None if `first_try_s` CPU seconds were not enough.

    The process ends if native code does not return within `seconds` of CPU time.
    """
    try:
        with time_limits(seconds, first_try_s):
            return decide(check)
    except TryTimeExceeded:
        return None
    except MemoryError:
        return CallFailure("engine", f"the {check.program.method} check exceeded its {memory_mb} MB of memory")
    except Exception as error:  # noqa: BLE001 - an unexpected error of a library is a failure, not a verdict
        return CallFailure(
            "engine", f"the {check.program.method} check failed with {type(error).__name__}: {error!s:.200}"
        )


def compile_within(patterns: Sequence[str], seconds: float, compile_s: float) -> tuple[int, str] | None:
    """Compile regular expressions within `compile_s` CPU seconds; return the index of the first bad one, and why.

    The process ends if native code does not return within `seconds` of CPU time.
    """
    place = -1
    try:
        with time_limits(seconds, compile_s):
            for pattern in patterns:
                place += 1
                re.compile(pattern)
    except TryTimeExceeded:
        return place, f"this regular expression takes longer than {compile_s:g} s to compile; write a simpler one"
    except MemoryError:
        return place, "this regular expression takes too much memory to compile; write a simpler one"
    except (re.error, OverflowError, RecursionError) as error:
        return place, f"this is not a regular expression: {error}"
    finally:
        re.purge()
    return None
