"""A reply means a verdict or a failure: nothing else, and no guess."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.protocols import ask_alone, ask_criteria
from judge_server.judging.replies import read_yes_no
from judge_server.ports import CallFailed, Choice, Finding, Menu, Reply, Written
from tests.judge_server.support import criteria, setup
from trainer_client.wire import Criterion

(ONE,) = criteria("Is it?")


def menu(protocol: Any) -> Menu:
    """The menu a criterion is asked with, of a response with two steps."""
    answer = ask_alone(setup(protocol), ONE, (1, 2), None).call.answer
    assert isinstance(answer, Menu)
    return answer


BINARY = menu("binary")
STEPWISE = menu("stepwise")

masses = st.tuples(st.floats(1e-6, 0.5), st.floats(1e-6, 0.5))


def test_binary_offers_yes_and_no_and_asks_for_no_step() -> None:
    assert [option.label for option in BINARY.options] == ["yes", "no"]
    assert BINARY.then is None


def test_stepwise_offers_the_steps_the_response_has_the_whole_and_none() -> None:
    assert STEPWISE.then is not None
    assert STEPWISE.then.labels == ("1", "2", "0", "-1")


def test_no_spelling_means_both_yes_and_no() -> None:
    yes, no = BINARY.options
    assert set(yes.spellings) == {"yes", "Yes", "YES", " yes", " Yes", " YES"}
    assert not set(yes.spellings) & set(no.spellings)


@given(masses)
def test_the_probability_is_the_share_of_yes_in_the_mass_of_both(pair: tuple[float, float]) -> None:
    finding = read_yes_no(BINARY, Reply(pair))
    assert isinstance(finding, Finding)
    assert finding.probability == pytest.approx(pair[0] / sum(pair))
    assert finding.menu_mass == pytest.approx(sum(pair))
    assert finding.score == (1.0 if finding.probability >= 0.5 else 0.0)
    assert finding.raw_probability == finding.probability
    assert finding.step is None


def test_an_even_split_is_a_yes() -> None:
    assert read_yes_no(BINARY, Reply((0.25, 0.25))) == Finding(1.0, 0.5, 0.5, raw_probability=0.5)


def test_the_mass_reported_is_never_above_one() -> None:
    finding = read_yes_no(BINARY, Reply((0.6000000001, 0.4000000001)))
    assert isinstance(finding, Finding)
    assert finding.menu_mass == 1.0


@pytest.mark.parametrize("label", ["1", "2", "0", "-1"])
def test_a_step_on_offer_is_the_verdicts_step(label: str) -> None:
    assert read_yes_no(STEPWISE, Reply((0.1, 0.8), label)) == Finding(
        0.0, pytest.approx(1 / 9), pytest.approx(0.9), int(label), raw_probability=pytest.approx(1 / 9)
    )


@pytest.mark.parametrize("chosen", [None, "", "3", "01", "1 ", "whole"])
def test_a_step_that_was_not_on_offer_is_a_parse_failure(chosen: str | None) -> None:
    outcome = read_yes_no(STEPWISE, Reply((0.9, 0.1), chosen))
    assert isinstance(outcome, CallFailed)
    assert outcome.kind == "parse"


@pytest.mark.parametrize("of", [BINARY, STEPWISE])
def test_a_reply_without_mass_on_the_menu_is_a_parse_failure_and_no_verdict(of: Menu) -> None:
    for nothing in ((0.0, 0.0), (float("nan"), 0.5)):
        outcome = read_yes_no(of, Reply(nothing, "1"))
        assert isinstance(outcome, CallFailed)
        assert outcome.kind == "parse"


def read(question: Any, reply: Reply) -> list[Finding | CallFailed]:
    """What a reply to a question says of its criteria."""
    outcomes: list[Finding | CallFailed] = question.read(reply)
    assert len(outcomes) == len(question.criteria)
    return outcomes


def test_where_no_probabilities_are_read_what_was_said_decides_and_there_is_no_probability() -> None:
    assert read_yes_no(BINARY, Reply(text="Yes.")) == Finding(1.0)
    assert read_yes_no(STEPWISE, Reply(text="no, step 2")) == Finding(0.0, step=2)
    for text in ("", "maybe", "yes, step 7", "yes"):
        outcome = read_yes_no(STEPWISE, Reply(text=text))
        assert isinstance(outcome, CallFailed), text
        assert outcome.kind == "parse"


def test_a_step_that_was_said_counts_only_beside_the_verdict_the_probabilities_give() -> None:
    assert read_yes_no(STEPWISE, Reply((0.6, 0.3), text="yes, step 1")) == Finding(
        1.0, pytest.approx(2 / 3), pytest.approx(0.9), 1, raw_probability=pytest.approx(2 / 3)
    )
    contrary = read_yes_no(STEPWISE, Reply((0.6, 0.3), text="no, step 1"))
    assert isinstance(contrary, CallFailed)
    assert contrary.kind == "parse"


def test_reasons_given_first_are_the_verdicts_rationale() -> None:
    outcome = read_yes_no(BINARY, Reply((0.6, 0.3), reasoning="Because."))
    assert isinstance(outcome, Finding)
    assert outcome.rationale == "Because."


def test_reasons_are_asked_for_before_the_verdict() -> None:
    plain, reasoned = (ask_alone(setup(rationale=r), ONE, (), None).call for r in (False, True))
    assert plain.reasoning is None
    assert reasoned.reasoning is not None
    assert "why or why not" in reasoned.question
    assert "yes or no" in reasoned.reasoning.ask


@pytest.mark.parametrize(("scale", "grade"), [(4, 0), (4, 3), (4, 4), (10, 0), (10, 7), (10, 10)])
def test_a_grade_is_scored_as_its_share_of_the_scale(scale: int, grade: int) -> None:
    question = ask_alone(setup("graded"), Criterion(id="a", description="x", scale=scale), (), None)
    if isinstance(question.call.answer, Choice):
        reply = Reply(chosen=str(grade))
    else:
        reply = Reply(tuple(0.5 if n == grade else 0.01 for n in range(scale + 1)))
    (finding,) = read(question, reply)
    assert isinstance(finding, Finding)
    assert (finding.score, finding.grade, finding.probability) == (grade / scale, grade, None)
    (said,) = read(question, Reply(text=f"{grade}"))
    assert isinstance(said, Finding)
    assert said.grade == grade


def test_a_grade_off_the_scale_is_a_parse_failure() -> None:
    for scale in (4, 10):
        question = ask_alone(setup("graded"), Criterion(id="a", description="x", scale=scale), (), None)
        (outcome,) = read(question, Reply(text=str(scale + 1)))
        assert isinstance(outcome, CallFailed)
        assert outcome.kind == "parse"


@pytest.mark.parametrize("rating", range(1, 11))
def test_a_rating_from_one_to_ten_is_scored_from_zero_to_one(rating: int) -> None:
    (question,) = ask_criteria(setup("likert"), (), (), None)
    (finding,) = read(question, Reply(chosen=str(rating)))
    assert isinstance(finding, Finding)
    assert finding.score == pytest.approx((rating - 1) / 9)
    assert finding.grade == rating
    assert question.criteria == ("overall",)


def test_a_checklist_awards_shares_of_each_criterions_points_whatever_its_sign() -> None:
    of = (
        Criterion(id="a", description="x", weight=4),
        Criterion(id="b", description="y", weight=-2),
        Criterion(id="c", description="z", weight=0),
    )
    (question,) = ask_criteria(setup("checklist"), of, (), None)
    assert isinstance(question.call.answer, Written)
    assert "at most 4 points" in question.call.question
    text = '{"verdicts": [{"id": 1, "awarded": 3}, {"id": 2, "awarded": 2}, {"id": 3, "awarded": 0.5}]}'
    findings = read(question, Reply(text=text))
    assert [f.score for f in findings if isinstance(f, Finding)] == [0.75, 1.0, 0.5]
    assert [f.grade for f in findings if isinstance(f, Finding)] == [3.0, 2.0, 0.5]


def test_several_criteria_are_read_each_by_its_number_and_one_left_out_costs_only_itself() -> None:
    (question,) = ask_criteria(setup("stepwise", per_call="all"), tuple(criteria("a", "b", "c")), (1, 2), None)
    text = '{"verdicts": [{"id": 3, "satisfied": true, "step": 2}, {"id": 1, "satisfied": false, "step": -1}]}'
    first, second, third = read(question, Reply(text=text))
    assert (first, third) == (Finding(0.0, step=-1), Finding(1.0, step=2))
    assert isinstance(second, CallFailed)
    assert second.kind == "parse"


def test_one_that_was_left_out_is_asked_alone_in_the_form_of_one_criterion() -> None:
    (question,) = ask_criteria(setup("binary", per_call="all"), tuple(criteria("a", "b")), (), None)
    assert question.alone is not None
    alone = question.alone(1)
    assert alone.criteria == ("c1",)
    assert isinstance(alone.call.answer, Menu)
    (checklist,) = ask_criteria(setup("checklist"), tuple(criteria("a", "b")), (), None)
    assert checklist.alone is not None
    assert isinstance(checklist.alone(0).call.answer, Written)
