"""Votes on one criterion: the majority decides, and a failure is never counted as a no."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.replies import combine_votes
from judge_server.ports import CallFailure, JudgeResult

YES, NO = JudgeResult(1.0), JudgeResult(0.0)
FAILED = CallFailure("parse", "unread")


def score(*votes: JudgeResult | CallFailure) -> float | str:
    """The score of the combined verdict, or the kind of its failure."""
    outcome = combine_votes(votes)
    return outcome.kind if isinstance(outcome, CallFailure) else outcome.score


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ((YES,), 1.0),
        ((FAILED,), "parse"),
        ((YES, YES, NO), 1.0),
        ((YES, NO, NO), 0.0),
        ((YES, NO), 0.0),
        ((YES, YES, FAILED), 1.0),
        ((NO, NO, FAILED), 0.0),
        ((NO, FAILED), 0.0),
        ((YES, FAILED), "parse"),
        ((YES, NO, FAILED), "parse"),
        ((FAILED, FAILED), "parse"),
    ],
)
def test_the_majority_decides_a_tie_is_a_no_and_failures_never_decide(
    votes: tuple[JudgeResult, ...], expected: object
) -> None:
    assert score(*votes) == expected


@given(st.lists(st.sampled_from([YES, NO, FAILED]), min_size=2, max_size=9))
def test_a_verdict_stands_only_if_every_way_of_filling_in_the_failed_votes_agrees(votes: list[JudgeResult]) -> None:
    filled = {score(*[fill if vote is FAILED else vote for vote in votes]) for fill in (YES, NO)}
    if all(vote is FAILED for vote in votes) or len(filled) > 1:
        assert score(*votes) == "parse"
    else:
        assert {score(*votes)} == filled


def test_votes_are_a_parse_failure_only_if_all_failed_votes_are() -> None:
    late = CallFailure("timeout", "late")
    assert [score(FAILED, late), score(late, FAILED), score(FAILED, YES, late)] == ["timeout"] * 3


def test_grades_are_averaged_and_one_failure_fails_them_all() -> None:
    grades = [JudgeResult(0.25, grade=1.0), JudgeResult(0.75, grade=3.0)]
    combined = combine_votes(grades)
    assert isinstance(combined, JudgeResult)
    assert (combined.score, combined.grade) == (0.5, 2.0)
    assert score(*grades, FAILED) == "parse"


def test_probabilities_are_averaged_and_step_and_rationale_are_the_winning_sides() -> None:
    combined = combine_votes(
        [
            JudgeResult(0.0, 0.2, 0.8, 3, rationale="No.", raw_probability=0.3),
            JudgeResult(1.0, 0.9, 0.6, 1, rationale="First yes.", raw_probability=0.8),
            JudgeResult(1.0, 0.7, 0.7, 2, rationale="Second yes.", raw_probability=0.7),
            JudgeResult(1.0, None, None, 2),
            FAILED,
        ]
    )
    assert isinstance(combined, JudgeResult)
    assert combined.probability == pytest.approx(0.6)
    assert combined.raw_probability == pytest.approx(0.6)
    assert combined.choice_mass == pytest.approx(0.7)
    assert (combined.score, combined.step, combined.rationale) == (1.0, 2, "First yes.")
