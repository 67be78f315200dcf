"""A reply is read as a verdict or a failure, never guessed."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.questions import ask_alone, ask_criteria
from judge_server.judging.replies import MIN_CHOICE_MASS, read_yes_no
from judge_server.ports import MASS_TOLERANCE, CallFailure, JsonOutput, JudgeResult, LabelChoice, Reply, TokenChoice
from tests.judge_server.support import criteria, prepared
from trainer_client.wire import Criterion

(ONE,) = criteria("Is it?")


def token_choice(protocol: Any) -> TokenChoice:
    """The token choice for a criterion and a response with two steps."""
    answer = ask_alone(prepared(protocol), ONE, (1, 2), None).call.answer
    assert isinstance(answer, TokenChoice)
    return answer


BINARY = token_choice("binary")
STEPWISE = token_choice("stepwise")

share = st.floats(1e-6, 0.5)
masses = st.tuples(share, share).filter(lambda pair: sum(pair) >= MIN_CHOICE_MASS)


def test_stepwise_offers_each_step_the_whole_response_and_none() -> None:
    assert STEPWISE.then is not None
    assert STEPWISE.then.labels == ("1", "2", "0", "-1")


def test_no_spelling_means_both_yes_and_no() -> None:
    yes, no = BINARY.options
    assert set(yes.spellings) == {
        f"{space}{word}" for space in ("", " ") for word in ("yes", "Yes", "YES", "true", "True")
    }
    assert not set(yes.spellings) & set(no.spellings)


@given(masses)
def test_the_probability_is_the_share_of_yes_in_the_mass_of_both(pair: tuple[float, float]) -> None:
    finding = read_yes_no(BINARY, Reply(pair))
    assert isinstance(finding, JudgeResult)
    assert finding.probability == pytest.approx(pair[0] / sum(pair))
    assert finding.choice_mass == pytest.approx(sum(pair))
    assert finding.score == (1.0 if finding.probability >= 0.5 else 0.0)
    assert finding.raw_probability == finding.probability
    assert finding.step is None


def verdict(score: float, probability: float, mass: float, step: int | None = None) -> JudgeResult:
    """A verdict, whose numbers may be rounded."""
    share: Any = pytest.approx(probability)
    return JudgeResult(score, share, pytest.approx(mass), step, raw_probability=share)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "reply", "expected"),
    [
        (BINARY, Reply((0.25, 0.25)), verdict(1.0, 0.5, 0.5)),
        (BINARY, Reply((0.6000000001, 0.4000000001)), verdict(1.0, 0.6, 1.0)),
        (BINARY, Reply((MIN_CHOICE_MASS, 0.0)), verdict(1.0, 1.0, MIN_CHOICE_MASS)),
        (BINARY, Reply(text="Yes."), JudgeResult(1.0)),
        (BINARY, Reply(text="no", reasoning="Because."), JudgeResult(0.0, rationale="Because.")),
        (STEPWISE, Reply(text="no, step 2"), JudgeResult(0.0, step=2)),
        (STEPWISE, Reply((0.6, 0.2), text="yes, step 1"), verdict(1.0, 0.75, 0.8, 1)),
        *[(STEPWISE, Reply((0.1, 0.7), step), verdict(0.0, 1 / 8, 0.8, int(step))) for step in ("1", "2", "0", "-1")],
    ],
)
def test_a_reply_is_read_as_a_verdict(of: TokenChoice, reply: Reply, expected: JudgeResult) -> None:
    finding = read_yes_no(of, reply)
    assert finding == expected
    assert isinstance(finding, JudgeResult)
    assert (finding.choice_mass or 0.0) <= 1.0


LITTLE = MIN_CHOICE_MASS * 0.99
IMPOSSIBLE = [
    *[(1.0, 1.0), (0.6, 0.6), (math.nan, 0.5), (math.inf, 0.0), (1e304, 0.0), (-0.1, 0.9)],
    *[(1.0 + 2 * MASS_TOLERANCE, 0.0), (0.5,), (0.3, 0.3, 0.3)],
]


@pytest.mark.parametrize(
    ("of", "reply", "kind", "says"),
    [
        *[(STEPWISE, Reply((0.9, 0.1), step), "parse", "") for step in (None, "", "3", "01", "1 ", "whole")],
        *[(STEPWISE, Reply(text=text), "parse", "") for text in ("", "maybe", "yes, step 7", "yes")],
        (STEPWISE, Reply((0.6, 0.3), text="no, step 1"), "parse", "says no"),
        *[(of, Reply((0.0, 0.0), "1"), "parse", "no probability") for of in (BINARY, STEPWISE)],
        (BINARY, Reply((LITTLE, 0.0)), "parse", "min_choice_mass"),
        (BINARY, Reply((math.exp(-40), 0.0)), "parse", "min_choice_mass"),
        (STEPWISE, Reply((0.0, LITTLE), "1"), "parse", "min_choice_mass"),
        *[(of, Reply(masses, "1"), "engine", "impossible") for of in (BINARY, STEPWISE) for masses in IMPOSSIBLE],
    ],
)
def test_a_reply_that_gives_no_verdict_is_a_failure(of: TokenChoice, reply: Reply, kind: str, says: str) -> None:
    outcome = read_yes_no(of, reply)
    assert isinstance(outcome, CallFailure)
    assert outcome.kind == kind
    assert says in outcome.detail


def test_the_minimum_mass_is_configurable() -> None:
    assert isinstance(read_yes_no(BINARY, Reply((0.3, 0.1)), min_choice_mass=0.5), CallFailure)
    assert isinstance(read_yes_no(BINARY, Reply((1e-9, 0.0)), min_choice_mass=0.0), JudgeResult)
    assert isinstance(read_yes_no(BINARY, Reply((0.0, 0.0)), min_choice_mass=0.0), CallFailure)


def read(question: Any, reply: Reply) -> list[JudgeResult | CallFailure]:
    """The outcomes of a question's criteria in a reply."""
    outcomes: list[JudgeResult | CallFailure] = question.read(reply)
    assert len(outcomes) == len(question.criteria)
    return outcomes


def test_reasons_are_asked_for_before_the_verdict() -> None:
    plain, reasoned = (ask_alone(prepared(rationale=r), ONE, (), None).call for r in (False, True))
    assert plain.reasoning is None
    assert reasoned.reasoning is not None
    assert "why or why not" in reasoned.question
    assert "yes or no" in reasoned.reasoning.ask


def graded(scale: int) -> Any:
    """The question that asks for a grade on this scale."""
    return ask_alone(prepared("graded"), Criterion(id="a", description="x", scale=scale), (), None)


def one_finding(question: Any, reply: Reply) -> JudgeResult:
    """The single verdict of a readable reply."""
    (finding,) = read(question, reply)
    assert isinstance(finding, JudgeResult)
    return finding


def only(place: int, among: int, mass: float) -> tuple[float, ...]:
    """Masses that are all on one of several places."""
    return tuple(mass if n == place else 0.0 for n in range(among))


@pytest.mark.parametrize(("scale", "grade"), [(4, 0), (4, 3), (4, 4), (9, 7), (10, 0), (10, 10), (20, 13)])
def test_a_grade_is_scored_as_its_share_of_the_scale(scale: int, grade: int) -> None:
    question = graded(scale)
    replies = [Reply(text=f"{grade}")]
    if isinstance(question.call.answer, LabelChoice):
        replies.append(Reply(chosen=str(grade)))
    else:
        replies.append(Reply(only(grade, scale + 1, 0.1)))
    for reply in replies:
        finding = one_finding(question, reply)
        assert (finding.score, finding.grade, finding.probability) == (grade / scale, grade, None)


def test_masses_on_several_grades_give_the_expected_grade_and_missing_mass_is_ignored() -> None:
    finding = one_finding(graded(4), Reply((0.0, 0.1, 0.1, 0.1, 0.2), reasoning="Because."))
    assert (finding.grade, finding.score) == (pytest.approx(2.8), pytest.approx(0.7))
    assert (finding.choice_mass, finding.rationale) == (pytest.approx(0.5), "Because.")


GRADE_MASSES = (
    st.integers(1, 9)
    .flatmap(lambda scale: st.lists(st.floats(0, 0.1), min_size=scale + 1, max_size=scale + 1).map(tuple))
    .filter(lambda masses: sum(masses) >= 1.1 * MIN_CHOICE_MASS)
)


@given(GRADE_MASSES)
def test_an_expected_grade_lies_on_the_scale(masses: tuple[float, ...]) -> None:
    scale = len(masses) - 1
    finding = one_finding(graded(scale), Reply(masses))
    assert finding.grade is not None
    assert 0 <= finding.grade <= scale
    assert finding.score == finding.grade / scale


@given(st.integers(1, 9), st.data(), st.floats(MIN_CHOICE_MASS, 1))
def test_all_mass_on_one_grade_is_exactly_that_grade(scale: int, data: st.DataObject, mass: float) -> None:
    grade = data.draw(st.integers(0, scale))
    finding = one_finding(graded(scale), Reply(only(grade, scale + 1, mass)))
    assert (finding.grade, finding.score, finding.choice_mass) == (grade, grade / scale, mass)


@given(GRADE_MASSES, st.data())
def test_moving_mass_to_a_higher_grade_never_lowers_the_score(masses: tuple[float, ...], data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(masses) - 1)] * 2)))
    share = data.draw(st.floats(0, 1))
    moved = list(masses)
    moved[low] -= share * masses[low]
    moved[high] += share * masses[low]
    before, after = (one_finding(graded(len(masses) - 1), Reply(tuple(of))) for of in (masses, moved))
    assert after.score >= before.score - 1e-9


def test_a_grade_needs_possible_masses_and_enough_of_them_or_a_number_on_the_scale() -> None:
    (rated,) = ask_criteria(prepared("likert"), (), (), None)
    for question, texts in ((graded(4), ("5",)), (graded(10), ("11",)), (rated, ("10", "8/10", "-1"))):
        for text in texts:
            (outcome,) = read(question, Reply(text=text))
            assert isinstance(outcome, CallFailure), text
            assert outcome.kind == "parse"
    for question, among in ((graded(4), 5), (rated, 10)):
        for masses, kind in (
            (only(0, among, 0.0), "parse"),
            (only(0, among, MIN_CHOICE_MASS / 2), "parse"),
            (only(0, among, float("nan")), "engine"),
            ((1.0,) * among, "engine"),
            (only(0, among + 1, 0.5), "engine"),
        ):
            (outcome,) = read(question, Reply(masses))
            assert isinstance(outcome, CallFailure)
            assert outcome.kind == kind


@pytest.mark.parametrize("rating", range(1, 11))
def test_a_rating_from_one_to_ten_is_a_digit_and_scored_from_zero_to_one(rating: int) -> None:
    (question,) = ask_criteria(prepared("likert"), (), (), None)
    assert question.criteria == ("overall",)
    for reply in (Reply(only(rating - 1, 10, 0.3)), Reply(text=f"{rating - 1}")):
        finding = one_finding(question, reply)
        assert (finding.score, finding.grade) == (pytest.approx((rating - 1) / 9), rating)


@given(st.lists(st.floats(0, 0.1), min_size=10, max_size=10).filter(lambda of: sum(of) >= 1.1 * MIN_CHOICE_MASS))
def test_a_rating_is_the_expectation_over_all_masses(masses: list[float]) -> None:
    (question,) = ask_criteria(prepared("likert"), (), (), None)
    finding = one_finding(question, Reply(tuple(masses)))
    assert finding.grade is not None
    assert 1 <= finding.grade <= 10
    assert finding.score == pytest.approx((finding.grade - 1) / 9)
    assert finding.grade == pytest.approx(1 + sum(n * mass for n, mass in enumerate(masses)) / sum(masses), rel=1e-6)
    assert finding.choice_mass == pytest.approx(sum(masses))


def test_a_checklist_awards_shares_of_each_criterions_points_whatever_its_sign() -> None:
    of = (
        Criterion(id="a", description="x", weight=4),
        Criterion(id="b", description="y", weight=-2),
        Criterion(id="c", description="z", weight=0),
    )
    (question,) = ask_criteria(prepared("checklist"), of, (), None)
    assert isinstance(question.call.answer, JsonOutput)
    assert "at most 4 points" in question.call.question
    text = '{"verdicts": [{"id": 1, "awarded": 3}, {"id": 2, "awarded": 2}, {"id": 3, "awarded": 0.5}]}'
    findings = read(question, Reply(text=text))
    assert [f.score for f in findings if isinstance(f, JudgeResult)] == [0.75, 1.0, 0.5]
    assert [f.grade for f in findings if isinstance(f, JudgeResult)] == [3.0, 2.0, 0.5]


def test_several_criteria_are_read_by_number_and_only_the_one_left_out_fails() -> None:
    (question,) = ask_criteria(prepared("stepwise", per_call="all"), tuple(criteria("a", "b", "c")), (1, 2), None)
    text = '{"verdicts": [{"id": 3, "satisfied": true, "step": 2}, {"id": 1, "satisfied": false, "step": -1}]}'
    first, second, third = read(question, Reply(text=text))
    assert (first, third) == (JudgeResult(0.0, step=-1), JudgeResult(1.0, step=2))
    assert isinstance(second, CallFailure)
    assert second.kind == "parse"


def test_a_criterion_left_out_is_asked_alone_in_the_single_criterion_form() -> None:
    (question,) = ask_criteria(prepared("binary", per_call="all"), tuple(criteria("a", "b")), (), None)
    assert question.alone is not None
    alone = question.alone(1)
    assert alone.criteria == ("c1",)
    assert isinstance(alone.call.answer, TokenChoice)
    (checklist,) = ask_criteria(prepared("checklist"), tuple(criteria("a", "b")), (), None)
    assert checklist.alone is not None
    assert isinstance(checklist.alone(0).call.answer, JsonOutput)
