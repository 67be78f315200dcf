"""Rubrics that a mode refuses before anything is judged."""

import pytest

from trainer_client.rewards import UnsuitableRubric, check_rubric, reward


def criteria(*kinds_and_weights):
    return [{"id": f"c{i}", "kind": k, "weight": w} for i, (k, w) in enumerate(kinds_and_weights)]


@pytest.mark.parametrize("mode", ["weighted_mean", "factual_override", "partial_credit", "gate"])
def test_means_refuse_a_negative_weight_and_name_the_criterion(mode):
    with pytest.raises(UnsuitableRubric, match=r"'c1'.*-2.*points"):
        check_rubric(criteria(("factual", 1), ("process", -2)), mode)


@pytest.mark.parametrize("mode", ["weighted_mean", "factual_override", "partial_credit", "points"])
@pytest.mark.parametrize("rubric", [[], criteria(("point", 0), ("point", 0))], ids=["empty", "all zero"])
def test_a_rubric_without_a_positive_weight_is_refused_by_modes_that_divide_by_it(rubric, mode):
    with pytest.raises(UnsuitableRubric, match="above 0"):
        check_rubric(rubric, mode)


@pytest.mark.parametrize("kind", ["point", "pitfall"])
def test_points_accept_negative_weights_beside_a_positive_one(kind):
    check_rubric(criteria(("point", 1), (kind, -9)), "points")


def test_stepwise_needs_an_answer_criterion():
    with pytest.raises(UnsuitableRubric, match="'answer'"):
        check_rubric(criteria(("suggest", 1)), "stepwise")
    check_rubric(criteria(("answer", 1)), "stepwise")


@pytest.mark.parametrize("mode", ["weighted_mean", "factual_override", "partial_credit", "points", "gate"])
def test_a_pitfall_of_positive_weight_is_refused_because_it_rewards_the_mistake(mode):
    with pytest.raises(UnsuitableRubric, match=r"'c1' is a pitfall of weight 2.*reward the mistake.*graded_mean"):
        check_rubric(criteria(("answer", 1), ("pitfall", 2)), mode)


@pytest.mark.parametrize("weight", [0, -2])
def test_a_gate_refuses_any_pitfall_because_it_would_count_in_favour(weight):
    with pytest.raises(UnsuitableRubric, match=r"'c1' is a pitfall.*reward the mistake"):
        check_rubric(criteria(("point", 1), ("pitfall", weight)), "gate")


@pytest.mark.parametrize("mode", ["stepwise", "graded_mean", "likert", "outcome"])
def test_modes_without_weighted_sums_accept_a_pitfall_of_positive_weight(mode):
    check_rubric(criteria(("answer", 1), ("pitfall", 2)), mode)


def test_a_graded_mean_needs_a_criterion_but_no_positive_one():
    with pytest.raises(UnsuitableRubric, match="no criteria"):
        check_rubric([], "graded_mean")
    check_rubric(criteria(("point", -1)), "graded_mean")


@pytest.mark.parametrize("mode", ["likert", "outcome"])
def test_modes_of_one_score_accept_any_criteria_or_none(mode):
    check_rubric([], mode)
    check_rubric(criteria(("pitfall", 1), ("point", -9), ("point", 1e308), ("point", 1e308)), mode)


def test_the_reward_refuses_the_same_rubrics_as_the_check():
    with pytest.raises(UnsuitableRubric):
        reward(criteria(("point", -1)), [1], "points")


def test_weights_that_overflow_are_refused():
    with pytest.raises(UnsuitableRubric, match="too large"):
        check_rubric(criteria(("point", 1e308), ("point", 1e308)), "points")
