"""Decides a check, here and now. Where it runs, for how long and in how much memory is up to the caller."""

import re
from dataclasses import replace
from fractions import Fraction

from judge_server.checks.check import Check, step_to_search
from judge_server.checks.quantities import exact_fraction, read_quantity, within_tolerance
from judge_server.checks.texts import find, stated_value, texts_equal
from judge_server.ports import CallFailure, JudgeResult
from trainer_client.steps import NO_STEP, WHOLE_RESPONSE
from trainer_client.wire.verification import (
    ContainsVerification,
    ExactVerification,
    JsonSchemaVerification,
    MathVerification,
    NumericVerification,
    RegexVerification,
)

SATISFIED = JudgeResult(score=1.0)
NOT_SATISFIED = JudgeResult(score=0.0)


def decide(check: Check) -> JudgeResult | CallFailure:
    """Give the check's finding, 1.0 or 0.0; a failure (`parse`) where what it compares with cannot be read.

    Of what was looked for, the finding names the step, if the check asks for that.
    """
    subject, expected = check.subject, check.expected
    match check.program:
        case ContainsVerification() | RegexVerification() as wanted:
            try:
                return _found(check, None if subject is None else _place(subject, wanted))
            except (re.error, OverflowError, RecursionError) as error:
                return CallFailure("parse", f"the pattern is not a regular expression: {error}"[:300])
        case _ if subject is None:
            return NOT_SATISFIED
        case JsonSchemaVerification() as wanted:
            return _by_schema(subject, wanted)
        case _ if expected is None:
            return CallFailure(
                "parse", "there is nothing to compare with: give `expected`, or the group a ground_truth"
            )
        case ExactVerification() as wanted:
            satisfied = texts_equal(subject, str(expected), case_sensitive=wanted.case_sensitive)
        case MathVerification() as wanted:
            return _by_math(subject, str(expected), wanted)
        case NumericVerification() as wanted:
            return _by_number(subject, expected, wanted)
    return SATISFIED if satisfied else NOT_SATISFIED


def _place(subject: str, wanted: ContainsVerification | RegexVerification) -> int | None:
    """Where what is looked for begins, None where it is not there."""
    if isinstance(wanted, ContainsVerification):
        return find(subject, wanted.all_of, wanted.any_of, case_sensitive=wanted.case_sensitive)
    pattern = re.compile(wanted.pattern, 0 if wanted.case_sensitive else re.IGNORECASE)
    match = (pattern.search if wanted.match == "search" else pattern.fullmatch)(subject)
    return None if match is None else match.start()


def _found(check: Check, at: int | None) -> JudgeResult:
    """The finding of a search that came upon what it looked for at this place of its subject."""
    result = SATISFIED if at is not None else NOT_SATISFIED
    return replace(result, step=_step(check, at)) if check.names_step else result


def _step(check: Check, at: int | None) -> int | None:
    """The step that the verdict of a search belongs to; None where that is none in particular."""
    program = check.program
    named = step_to_search(program)
    if named is not None:
        return NO_STEP if check.subject is None else named
    if program.of == "final_answer" or (isinstance(program, RegexVerification) and program.match == "full"):
        return None
    if at is None:
        return NO_STEP
    return next((step.number for step in check.steps if step.start <= at < step.end), WHOLE_RESPONSE)


def _by_math(subject: str, expected: str, wanted: MathVerification) -> JudgeResult | CallFailure:
    from judge_server.checks import formulas

    compare = formulas.equal if wanted.of == "final_answer" else formulas.response_states
    try:
        return SATISFIED if compare(expected, subject) else NOT_SATISFIED
    except formulas.UnreadableFormula:
        return _unreadable(expected, wanted, "no formula that math-verify reads")


def _by_number(subject: str, expected: str | float, wanted: NumericVerification) -> JudgeResult | CallFailure:
    targets: tuple[Fraction, ...]
    if isinstance(expected, str):
        quantity = read_quantity(expected)
        if quantity is None:
            return _unreadable(expected, wanted, "no number")
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
    from judge_server.checks import schemas

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
