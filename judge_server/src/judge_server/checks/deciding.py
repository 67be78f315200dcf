"""Decides a check, here and now. Where it runs, for how long and in how much memory is up to the caller."""

import re
from dataclasses import replace
from fractions import Fraction

from judge_server.checks.check import Check, step_to_search
from judge_server.checks.quantities import exact, read_quantity, within
from judge_server.checks.texts import find, same, told
from judge_server.ports import CallFailed, Finding
from trainer_client.steps import NO_STEP, WHOLE_RESPONSE
from trainer_client.wire.verification import ByMath, Contains, Exact, JsonSchema, Numeric, Regex

SATISFIED = Finding(score=1.0)
NOT_SATISFIED = Finding(score=0.0)


def decide(check: Check) -> Finding | CallFailed:
    """Give the check's finding, 1.0 or 0.0; a failure (`parse`) where what it compares with cannot be read.

    Of what was looked for, the finding names the step, if the check asks for that.
    """
    subject, expected = check.subject, check.expected
    match check.program:
        case Contains() | Regex() as wanted:
            try:
                return _found(check, None if subject is None else _place(subject, wanted))
            except (re.error, OverflowError, RecursionError) as error:
                return CallFailed("parse", f"the pattern is not a regular expression: {error}"[:300])
        case _ if subject is None:
            return NOT_SATISFIED
        case JsonSchema() as wanted:
            return _by_schema(subject, wanted)
        case _ if expected is None:
            return CallFailed("parse", "there is nothing to compare with: give `expected`, or the group a ground_truth")
        case Exact() as wanted:
            satisfied = same(subject, str(expected), case_sensitive=wanted.case_sensitive)
        case ByMath() as wanted:
            return _by_math(subject, str(expected), wanted)
        case Numeric() as wanted:
            return _by_number(subject, expected, wanted)
    return SATISFIED if satisfied else NOT_SATISFIED


def _place(subject: str, wanted: Contains | Regex) -> int | None:
    """Where what is looked for begins, None where it is not there."""
    if isinstance(wanted, Contains):
        return find(subject, wanted.all_of, wanted.any_of, case_sensitive=wanted.case_sensitive)
    pattern = re.compile(wanted.pattern, 0 if wanted.case_sensitive else re.IGNORECASE)
    match = (pattern.search if wanted.match == "search" else pattern.fullmatch)(subject)
    return None if match is None else match.start()


def _found(check: Check, at: int | None) -> Finding:
    """The finding of a search that came upon what it looked for at this place of its subject."""
    finding = SATISFIED if at is not None else NOT_SATISFIED
    return replace(finding, step=_step(check, at)) if check.names_step else finding


def _step(check: Check, at: int | None) -> int | None:
    """The step that the verdict of a search belongs to; None where that is none in particular."""
    program = check.program
    named = step_to_search(program)
    if named is not None:
        return NO_STEP if check.subject is None else named
    if program.of == "final_answer" or (isinstance(program, Regex) and program.match == "full"):
        return None
    if at is None:
        return NO_STEP
    return next((step.number for step in check.steps if step.start <= at < step.end), WHOLE_RESPONSE)


def _by_math(subject: str, expected: str, wanted: ByMath) -> Finding | CallFailed:
    from judge_server.checks import formulas

    compare = formulas.equal if wanted.of == "final_answer" else formulas.stated
    try:
        return SATISFIED if compare(expected, subject) else NOT_SATISFIED
    except formulas.UnreadableFormula:
        return _unreadable(expected, wanted, "no formula that math-verify reads")


def _by_number(subject: str, expected: str | float, wanted: Numeric) -> Finding | CallFailed:
    targets: tuple[Fraction, ...]
    if isinstance(expected, str):
        quantity = read_quantity(expected)
        if quantity is None:
            return _unreadable(expected, wanted, "no number")
        targets = quantity.readings
    else:
        targets = (exact(expected),)
    answer = read_quantity(subject)
    if answer is None and wanted.of == "final_answer":
        answer = read_quantity(told(subject) or "")
    values = answer.readings if answer is not None else ()
    satisfied = any(
        within(value, target, absolute=wanted.absolute, relative=wanted.relative)
        for value in values
        for target in targets
    )
    return SATISFIED if satisfied else NOT_SATISFIED


def _by_schema(subject: str, wanted: JsonSchema) -> Finding | CallFailed:
    from judge_server.checks import schemas

    try:
        return SATISFIED if schemas.satisfies(subject, wanted.json_schema) else NOT_SATISFIED
    except schemas.UnusableSchema as error:
        return CallFailed("parse", str(error))


def _unreadable(expected: str, wanted: ByMath | Numeric, what: str) -> CallFailed:
    source = "the ground truth" if wanted.expected is None else "the expected answer"
    shown = expected if len(expected) <= 100 else expected[:99] + "…"
    return CallFailed(
        "parse", f"{source} {shown!r} is {what}; correct it, or verify the criterion by `exact` or by the judge"
    )
