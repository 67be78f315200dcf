"""Criteria on the last turn, on each turn, and on the use of tools."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from judge_server.errors import InvalidRequest
from judge_server.judging.replies import combine_turns
from judge_server.ledger.rows import rows_of
from judge_server.ports import Batch, Call, CallFailure, JudgeResult, Reply
from judge_server.scheduling.checker import Checker
from judge_server.verifiers import Check, ToolUse
from tests.judge_server.judging.test_trajectories import TRAJECTORY
from tests.judge_server.ledger.judged import SynchronousRecorder, score, scorer
from tests.judge_server.support import RecordingScript, deadline_after, request
from trainer_client.wire import Criterion, RewardAnswer, Verdict
from trainer_client.wire.criteria import content_digest

EACH = {"id": "e", "description": "Is polite.", "applies_to": "each_turn"}
LAST = {"id": "l", "description": "Answers.", "applies_to": "last_turn"}
WHOLE = {"id": "w", "description": "Is right."}


def yes_but_in_turn_2(batch: Batch, call: Call) -> Reply:
    return Reply(masses=(0.2, 0.8) if "turn 2" in call.question else (0.9, 0.1), chosen="1")


async def answered(
    *criteria: dict[str, Any], script: Any = yes_but_in_turn_2, response: Any = TRAJECTORY, **fields: Any
) -> tuple[RewardAnswer, SynchronousRecorder]:
    recorder = SynchronousRecorder()
    made = await scorer(recorder, script)
    try:
        return await score(made, request(response, rubric={"criteria": list(criteria)}, **fields)), recorder
    finally:
        await made.judge.close()


def verdicts(answer: RewardAnswer) -> list[Verdict]:
    return list(answer.groups[0].responses[0].verdicts)


async def test_a_criterion_on_each_turn_is_asked_about_every_turn_and_met_if_all_turns_meet_it() -> None:
    script = RecordingScript(yes_but_in_turn_2)
    answer, recorder = await answered(EACH, WHOLE, script=script)
    each, whole = verdicts(answer)
    assert [(one.turn, one.score) for one in each.turns] == [(1, 1.0), (2, 0.0), (3, 1.0)]
    assert (each.score, each.probability, each.step) == (0.0, 0.2, 2)
    assert (whole.score, whole.turns) == (1.0, ())
    assert answer.usage.judge_calls == 4
    assert sum("In turn 2 alone: Is polite." in asked for asked in script.asked) == 1
    rows = rows_of(recorder.judged, keep_texts=True)
    assert [(use.criterion, use.failure) for use in rows.uses] == [("e", None), ("w", None)]
    assert sorted(row.score for row in rows.verdicts if row.score is not None) == [0.0, 1.0]


async def test_a_negative_criterion_is_met_if_any_turn_meets_it() -> None:
    for negative in ({"weight": -1}, {"kind": "pitfall", "weight": 0}):
        answer, _ = await answered(EACH | negative, WHOLE, reward={"mode": "points"})
        assert (verdicts(answer)[0].score, verdicts(answer)[0].step) == (1.0, 1)


async def test_a_criterion_on_the_last_turn_is_asked_about_that_turn_alone() -> None:
    script = RecordingScript(yes_but_in_turn_2)
    answer, _ = await answered(LAST, script=script, judging={"protocol": "stepwise", "steps": "turns"})
    (asked,) = script.asked
    assert "In turn 3 alone: Answers." in asked
    assert (verdicts(answer)[0].score, verdicts(answer)[0].step) == (1.0, 3)


@pytest.mark.parametrize("response", ["Yes.", [{"role": "assistant", "content": "Yes."}]])
async def test_a_single_turn_is_judged_as_a_whole(response: Any) -> None:
    script = RecordingScript(yes_but_in_turn_2)
    answer, _ = await answered(EACH, LAST, script=script, response=response)
    assert not any("alone" in asked for asked in script.asked)
    assert [one.turns for one in verdicts(answer)] == [(), ()]


async def test_a_programs_verdict_on_a_response_does_not_depend_on_the_responses_before_it() -> None:
    said = {"role": "assistant", "content": "Yes."}
    one, several = [said], [said, {"role": "user", "content": "Sure?"}, said]
    polite = EACH | {"verification": {"method": "contains", "any_of": ["Yes"]}}
    named = set()
    for responses in ([one, several], [several, one]):
        made = await scorer(SynchronousRecorder())
        body = request(*responses, rubric={"criteria": [polite]}, judging={"protocol": "stepwise", "steps": "turns"})
        given = (await score(made, body)).groups[0].responses[responses.index(one)].verdicts[0]
        named.add((given.score, given.step))
        await made.judge.close()
    assert named == {(1.0, 1)}


async def test_a_failed_turn_fails_the_verdict_unless_another_turn_decides() -> None:
    def fails(turn: str) -> Any:
        def script(batch: Batch, call: Call) -> Reply | CallFailure:
            failed = CallFailure("truncated_input", "too long")
            return failed if turn in call.question else yes_but_in_turn_2(batch, call)

        return script

    decided, _ = await answered(EACH, script=fails("turn 1"))
    open_, _ = await answered(EACH, script=fails("turn 2"))
    assert (verdicts(decided)[0].status, verdicts(decided)[0].score) == ("ok", 0.0)
    assert [one.failure for one in verdicts(decided)[0].turns] == ["truncated_input", None, None]
    assert (verdicts(open_)[0].status, open_.groups[0].responses[0].reward) == ("failed", None)
    assert open_.usage.failed == 1


OUTCOMES = st.one_of(
    st.floats(0, 1).map(lambda p: JudgeResult(float(p >= 0.5), p)), st.just(CallFailure("timeout", "late"))
)


@given(st.lists(OUTCOMES, min_size=1, max_size=6), st.booleans())
def test_turns_combine_with_and_but_negative_criteria_with_or(
    outcomes: list[JudgeResult | CallFailure], avoided: bool
) -> None:
    combined = combine_turns(list(enumerate(outcomes, 1)), avoided=avoided)
    scores = [one.score == 1.0 for one in outcomes if isinstance(one, JudgeResult)]
    decides = any(scores) if avoided else not all(scores)
    failed = any(isinstance(one, CallFailure) for one in outcomes)
    if failed and not decides:
        assert isinstance(combined, CallFailure)
        return
    assert isinstance(combined, JudgeResult)
    assert combined.score == float(any(scores) if avoided else all(scores))
    assert combined.probability is not None
    assert combined.score == float(combined.probability >= 0.5)
    if decides:
        assert combined.step is not None
        deciding = outcomes[combined.step - 1]
        assert isinstance(deciding, JudgeResult)
        assert deciding.score == combined.score
    else:
        assert combined.step == 0


def test_grades_of_turns_are_averaged() -> None:
    graded = [(1, JudgeResult(0.5, grade=2.0)), (2, JudgeResult(1.0, grade=4.0))]
    combined = combine_turns(graded, avoided=False)
    assert isinstance(combined, JudgeResult)
    assert (combined.score, combined.grade, combined.step) == (0.75, 3.0, 0)
    assert isinstance(combine_turns([*graded, (3, CallFailure("timeout", "late"))], avoided=False), CallFailure)


@pytest.mark.parametrize(
    ("judging", "reason"),
    [
        ({"criteria_per_call": "all"}, "needs a call of its own"),
        ({"protocol": "stepwise"}, "needs steps that are turns"),
        ({"votes": 2, "rationale": True}, "cannot be judged by several votes"),
    ],
)
async def test_options_incompatible_with_turn_criteria_are_refused(judging: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"criterion 'e' applies to 'each_turn', which {reason}"):
        await answered(EACH, judging=judging)


def uses(*calls: tuple[int, str, Any]) -> tuple[ToolUse, ...]:
    return tuple([ToolUse(*one) for one in calls])


SEARCHED = uses((1, "search", '{"q": "7"}'), (2, "search", {"q": 7}), (2, "open", "not JSON"))
TEXT = {"properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.mark.parametrize(
    ("wanted", "satisfied", "step"),
    [
        ({}, True, 1),
        ({"name": "search", "at_least": 2}, True, 1),
        ({"name": "search", "arguments": TEXT}, True, 1),
        ({"name": "search", "arguments": TEXT, "at_least": 2}, False, 1),
        ({"name": "open", "arguments": {"type": "object"}}, False, -1),
        ({"name": "open"}, True, 2),
        ({"name": "delete"}, False, -1),
        ({"name": "delete", "at_least": 0, "at_most": 0}, True, -1),
        ({"at_least": 0, "at_most": 2}, False, 1),
    ],
)
async def test_tool_calls_are_counted(wanted: dict[str, Any], satisfied: bool, step: int) -> None:
    verification = Criterion.model_validate(
        {"id": "c", "description": "d", "verification": {"method": "tool_call", **wanted}}
    ).verification
    assert verification is not None
    checker = Checker(workers=1)
    check = Check(verification, "", None, None, names_step=True, uses=SEARCHED, turns=2)
    outcome = await checker.run(check, await deadline_after())
    await checker.close()
    assert outcome == JudgeResult(float(satisfied), step=step)


async def test_programs_check_messages_and_single_turns() -> None:
    criteria = [
        {"id": "called", "description": "d", "verification": {"method": "tool_call", "name": "search"}},
        {"id": "few", "description": "d", "verification": {"method": "turns", "at_most": 2}},
        {
            "id": "always",
            "description": "d",
            "verification": {"method": "tool_call"},
            "applies_to": "each_turn",
        },
        {
            "id": "ends",
            "description": "d",
            "verification": {"method": "contains", "any_of": ["prime"]},
            "applies_to": "last_turn",
        },
    ]
    answer, _ = await answered(*criteria)
    found = {one.criterion: (one.score, one.step, one.method) for one in verdicts(answer)}
    assert found == {
        "called": (1.0, None, "tool_call"),
        "few": (0.0, None, "turns"),
        "always": (0.0, 3, "tool_call"),
        "ends": (1.0, None, "contains"),
    }
    assert answer.usage.judge_calls == 0


async def test_a_plain_text_has_no_tool_calls_and_one_turn() -> None:
    criteria = [
        {"id": "called", "description": "d", "verification": {"method": "tool_call"}},
        {"id": "one", "description": "d", "verification": {"method": "turns", "at_least": 1, "at_most": 1}},
    ]
    answer, _ = await answered(*criteria, response="search(7)")
    assert [one.score for one in verdicts(answer)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"verification": {"method": "turns"}}, "every count satisfies this"),
        ({"verification": {"method": "turns", "at_least": 3, "at_most": 2}}, "no count lies between them"),
        ({"verification": {"method": "turns", "at_most": 2}, "applies_to": "last_turn"}, "of the whole trajectory"),
        (
            {"verification": {"method": "contains", "any_of": ["x"], "step": 1}, "applies_to": "each_turn"},
            "leave out one of them",
        ),
    ],
)
def test_a_meaningless_verification_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Criterion.model_validate({"id": "c", "description": "d", **fields})


def test_the_default_scope_does_not_change_the_digest() -> None:
    plain = Criterion(id="c", description="d")
    assert content_digest([plain]) == content_digest([plain.model_copy(update={"applies_to": "trajectory"})])
    assert content_digest([plain]) != content_digest([plain.model_copy(update={"applies_to": "each_turn"})])
    assert content_digest([plain]) == "sha256:16f80f0afa17643ac76673c846fe9b8da45afb9f44280029c868549be57c6306"
