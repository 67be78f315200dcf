"""A worker process of the checker: it decides checks within limits of time and memory.

Time is limited in CPU seconds, so that a busy machine makes no check fail. The limits are set here, because the kernel
enforces them in native code and without the parent: it refuses memory above the limit and ends a check that exceeds
its time. A first try is first interrupted by Python, so that the process remains for the next check.

The service decides quick checks itself by `decide`, so mpmath and jsonschema are only
imported by the checks that need them.
"""

import re
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from types import FrameType

from judge_server.ports import CallFailure, JudgeResult
from judge_server.verifiers.answers import (
    Quantity,
    compared_values,
    exact_fraction,
    read_quantity,
    stated_value,
    within_tolerance,
)
from judge_server.verifiers.check import Check, find, step_to_search, texts_equal
from judge_server.verifiers.notation import strip_markup
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

SATISFIED = JudgeResult(score=1.0)
NOT_SATISFIED = JudgeResult(score=0.0)


def decide(check: Check) -> JudgeResult | CallFailure:
    """Decide a check: a result of 1.0 or 0.0, or a `parse` failure if what it compares with cannot be read.

    The result names the step in which a search matched, if the check asks for that.
    """
    result = _decide_alone(check)
    for one in check.beside:
        if isinstance(result, CallFailure) or bool(result.score) == check.avoided:
            break
        other = _decide_alone(one)
        if isinstance(other, CallFailure) or bool(other.score) == check.avoided:
            step = WHOLE_RESPONSE if check.avoided else NO_STEP
            result = replace(other, step=step) if isinstance(other, JudgeResult) and check.names_step else other
    return result


def _decide_alone(check: Check) -> JudgeResult | CallFailure:
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
            texts = [_undressed(text) if wanted.of == "final_answer" else text for text in (subject, str(expected))]
            satisfied = texts_equal(*texts, case_sensitive=wanted.case_sensitive)
        case MathVerification() as wanted:
            return _by_math(subject, str(expected), wanted)
        case NumericVerification() as wanted:
            return _by_number(subject, expected, wanted)
    return SATISFIED if satisfied else NOT_SATISFIED


_IN_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{(?P<inside>[^{}]*)\}")


def _undressed(answer: str) -> str:
    r"""Return an answer without delimiters of a formula or `\text{…}` around all of it."""
    bare = strip_markup(answer)
    return inside["inside"] if (inside := _IN_TEXT.fullmatch(bare)) else bare


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
    counted = [use for use in check.uses if wanted.name in (None, use.name)]
    if wanted.arguments is not None:
        from judge_server.verifiers import schemas

        try:
            counted = [use for use in counted if schemas.arguments_satisfy(use.arguments, wanted.arguments)]
        except schemas.UnusableSchema as error:
            return CallFailure("parse", str(error))
    result = SATISFIED if _is_within(len(counted), wanted) else NOT_SATISFIED
    if not check.names_step:
        return result
    return replace(result, step=counted[0].turn if counted else NO_STEP)


def _is_within(count: int, wanted: ToolCallVerification | TurnsVerification) -> bool:
    return count >= wanted.at_least and (wanted.at_most is None or count <= wanted.at_most)


def _by_math(subject: str, expected: str, wanted: MathVerification) -> JudgeResult | CallFailure:
    from judge_server.verifiers import formulas

    compare = formulas.equal if wanted.of == "final_answer" else formulas.response_states
    try:
        return SATISFIED if compare(expected, subject) else NOT_SATISFIED
    except formulas.UnreadableFormula:
        return _unreadable(expected, wanted, "not a whole formula: a bracket or an operand lacks")


def _by_number(subject: str, expected: str | float, wanted: NumericVerification) -> JudgeResult | CallFailure:
    if isinstance(expected, str):
        target = _number_in(expected, wanted)
        if target is None:
            return _unreadable(expected, wanted, "not a number")
    else:
        target = Quantity(exact_fraction(expected))
    answer = _number_in(subject, wanted)
    pairs = [] if answer is None else compared_values(answer, target)
    satisfied = any(
        within_tolerance(value, goal, absolute=_absolute(wanted, goal) * float(size), relative=wanted.relative)
        for value, goal, size in pairs
    )
    return SATISFIED if satisfied else NOT_SATISFIED


def _number_in(text: str, wanted: NumericVerification) -> Quantity | None:
    number = read_quantity(text)
    if number is None and wanted.of == "final_answer":
        number = read_quantity(stated_value(text) or "")
    return number


def _absolute(wanted: NumericVerification, expected: Fraction) -> float:
    """The absolute tolerance; its default is at most as large a share of the expected number."""
    default = NumericVerification.model_fields["absolute"].default
    return min(default, default * float(abs(expected))) if wanted.absolute == default else wanted.absolute


def _by_schema(subject: str, wanted: JsonSchemaVerification) -> JudgeResult | CallFailure:
    from judge_server.verifiers import schemas

    try:
        return SATISFIED if schemas.satisfies(subject, wanted.json_schema) else NOT_SATISFIED
    except schemas.UnusableSchema as error:
        return CallFailure("parse", str(error))


def _unreadable(expected: str, wanted: MathVerification | NumericVerification, what: str) -> CallFailure:
    source = "the ground truth" if wanted.expected is None else "the expected answer"
    shown = expected if len(expected) <= 100 else expected[:99] + "…"
    return CallFailure(
        "parse", f"{source} {shown!r} is {what}; correct it, or verify the criterion by `exact` or by the judge"
    )


WALL_CLOCK_FACTOR = 4.0
"""How many times its limit of CPU seconds a check may take by the clock, when other processes keep the machine
busy."""


def init_worker(memory_mb: int) -> None:
    """Set up a worker process: load libraries, limit memory, and let SIGTERM end it at once."""
    from judge_server.verifiers import formulas, schemas

    formulas.equal("1/2", "0.5")
    schemas.satisfies("{}", {"type": "object"})
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
