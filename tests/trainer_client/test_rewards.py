import json
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.dropout import CriteriaSample
from trainer_client.rewards import (
    RewardOutcome,
    UnscoredCriteria,
    UnsuitableRubric,
    check_rubric,
    reward,
    reward_outcome,
)
from trainer_client.wire import Criterion, RewardMode, RubricContent

CASES = json.loads((Path(__file__).parent / "vectors" / "rewards.json").read_text())["cases"]


def criteria(*kinds_and_weights):
    return [{"id": f"c{i}", "kind": k, "weight": w} for i, (k, w) in enumerate(kinds_and_weights)]


@pytest.mark.parametrize("policy", ["reward", "zero", "skip"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["mode"])
def test_the_worked_cases_hold(case, policy):
    on_failure = "null" if policy == "reward" else policy
    given = reward(case["criteria"], case["scores"], case["mode"], on_failure)
    if case[policy] is None:
        assert given is None
    else:
        assert given == pytest.approx(case[policy], abs=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["mode"])
def test_policy_error_raises_exactly_where_a_missing_score_matters(case):
    if case["reward"] is not None:
        assert reward(case["criteria"], case["scores"], case["mode"], "error") == pytest.approx(case["reward"])
        return
    with pytest.raises(UnscoredCriteria) as raised:
        reward(case["criteria"], case["scores"], case["mode"], "error")
    missing = [c["id"] for c, s in zip(case["criteria"], case["scores"], strict=True) if s is None]
    assert list(raised.value.criteria) == missing


def test_models_and_mappings_give_the_same_reward():
    mappings = criteria(("factual", 3), ("process", 2))
    models = [Criterion(description="d", **c) for c in mappings]
    assert reward(models, [0, 1], "weighted_mean") == reward(mappings, [0, 1], "weighted_mean") == 0.4


def test_kind_and_weight_default_to_a_point_of_weight_one():
    assert reward([{"id": "a"}, {"id": "b"}], [True, False], "points") == 0.5


@pytest.mark.parametrize(
    "scores", [[True, False], np.array([1.0, 0.0]), np.array([True, False]), [np.float32(1), np.int64(0)]]
)
def test_scores_may_have_any_numeric_type(scores):
    given = reward(criteria(("point", 1), ("point", 1)), scores, "points")
    assert given == 0.5
    assert type(given) is float


def test_a_nearly_satisfied_factual_criterion_does_not_override():
    rubric = criteria(("factual", 1), ("process", 1))
    assert reward(rubric, [0.999, 0], "factual_override") == pytest.approx(0.4995)


class TestOutcome:
    rubric = criteria(("point", 1), ("point", 3))

    @pytest.mark.parametrize("on_failure", ["null", "zero", "zero_unparseable", "skip", "error"])
    def test_a_failed_process_verdict_does_not_matter_where_all_facts_are_satisfied(self, on_failure):
        rubric = criteria(("factual", 2), ("process", 3))
        assert reward_outcome(rubric, [1, None], "factual_override", on_failure) == RewardOutcome(1.0, "partial")

    @pytest.mark.parametrize(
        ("failures", "outcome"),
        [
            (["parse", "parse", None], RewardOutcome(0.0, "unscored", "zero_unparseable")),
            (["parse", "timeout", None], RewardOutcome(None, "unscored")),
            (["overloaded", "engine", None], RewardOutcome(None, "unscored")),
            (["truncated_input", "truncated_input", None], RewardOutcome(None, "unscored")),
            ([None, None, None], RewardOutcome(None, "unscored")),
        ],
    )
    def test_only_invalid_output_is_zeroed_as_unparseable(self, failures, outcome):
        rubric = criteria(("point", 1), ("point", 3), ("point", 2))
        assert (
            reward_outcome(rubric, [None, None, 1], "partial_credit", "zero_unparseable", failures=failures) == outcome
        )

    def test_zeroing_the_unparseable_needs_the_kinds_of_failure(self):
        with pytest.raises(ValueError, match="needs failures"):
            reward_outcome(self.rubric, [1, None], "points", "zero_unparseable")
        with pytest.raises(ValueError, match="1 failures for 2 scores"):
            reward_outcome(self.rubric, [1, None], "points", "zero_unparseable", failures=["parse"])


class TestKinds:
    rubric = criteria(("factual", 2), ("process", 3), ("factual", 2))

    @pytest.mark.parametrize(("mode", "expected"), [("weighted_mean", 0.5), ("factual_override", 0.5)])
    def test_criteria_of_other_kinds_do_not_count(self, mode, expected):
        assert reward(self.rubric, [1, 1, 0], mode, kinds=["factual"]) == expected
        assert reward_outcome(self.rubric, [1, None, 0], mode, "error", kinds=["factual"]) == RewardOutcome(
            expected, "partial"
        )

    def test_a_rubric_without_a_criterion_of_the_kinds_is_refused(self):
        with pytest.raises(UnsuitableRubric, match="no criterion is of kind 'factual'"):
            check_rubric(criteria(("process", 3)), "factual_override", ["factual"])

    def test_kinds_are_refused_in_modes_without_criteria(self):
        with pytest.raises(ValueError, match="leave out kinds"):
            reward([], [1], "outcome", kinds=["factual"])
        with pytest.raises(ValueError, match="'facts'"):
            reward(self.rubric, [1, 1, 1], "points", kinds=["facts"])


class TestStepwise:
    rubric = criteria(("suggest", 1), ("answer", 1), ("pitfall", 1))

    @pytest.mark.parametrize(
        ("correct", "format_ok", "base"), [(1, True, 1.0), (1, False, 0.9), (0, True, 0.1), (0, False, 0.0)]
    )
    def test_the_base_reward_weighs_accuracy_and_format(self, correct, format_ok, base):
        given = reward(self.rubric, [0, correct, 1], "stepwise", format_ok=format_ok)
        assert given == pytest.approx(base, abs=1e-12)

    def test_format_weight_is_a_parameter(self):
        assert reward(self.rubric, [0, 1, 1], "stepwise", format_ok=False, format_weight=0.25) == 0.75

    def test_accuracy_is_the_unweighted_mean_over_answer_criteria(self):
        rubric = criteria(("answer", 5), ("answer", 1))
        assert reward(rubric, [1, 0], "stepwise", format_weight=0) == 0.5

    @pytest.mark.parametrize("on_failure", ["null", "zero", "skip", "error"])
    def test_a_failed_step_verdict_leaves_the_base_reward_and_makes_it_partial(self, on_failure):
        given = reward_outcome(self.rubric, [None, 1, 1], "stepwise", on_failure, format_ok=True)
        assert given == RewardOutcome(1.0, "partial")

    def test_a_failed_answer_verdict_leaves_no_base_reward(self):
        assert reward_outcome(self.rubric, [1, None, 0], "stepwise", format_ok=True) == RewardOutcome(None, "unscored")
        assert reward_outcome(self.rubric, [1, None, 0], "stepwise", "zero", format_ok=True).reward == 0.0
        assert reward_outcome(self.rubric, [1, None, 0], "stepwise", "skip", format_ok=True).reward is None
        with pytest.raises(UnscoredCriteria, match="c1"):
            reward_outcome(self.rubric, [1, None, 0], "stepwise", "error", format_ok=True)

    def test_format_ok_is_required(self):
        with pytest.raises(ValueError, match="format_ok"):
            reward(self.rubric, [1, 1, 1], "stepwise")


@pytest.mark.parametrize("mode", get_args(RewardMode))
def test_every_mode_of_the_contract_rewards_a_satisfied_answer_with_one(mode):
    if mode == "ranking":
        with pytest.raises(ValueError, match="rewards a group and not one response"):
            reward(criteria(("answer", 2)), [1], mode)
        return
    assert reward(criteria(("answer", 2)), [1], mode, format_ok=True) == 1.0


class TestMisuse:
    rubric = criteria(("point", 1), ("point", 1))

    @pytest.mark.parametrize("score", [-0.1, 1.1, math.nan, math.inf, "1", b"1", [1], object()])
    def test_a_score_outside_zero_to_one_is_refused_by_its_index(self, score):
        with pytest.raises(ValueError, match=r"scores\[1\]"):
            reward(self.rubric, [0, score], "points")

    @pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, "3", None])
    def test_a_weight_that_is_not_a_finite_number_is_refused_by_its_index(self, weight):
        with pytest.raises(ValueError, match=r"criteria\[1\]\.weight"):
            reward([{"weight": 1}, {"weight": weight}], [1, 1], "points")

    def test_an_unknown_kind_is_refused_by_its_index(self):
        with pytest.raises(ValueError, match=r"criteria\[0\]\.kind is 'factaul'"):
            reward(criteria(("factaul", 1)), [1], "factual_override")

    @pytest.mark.parametrize("scores", [[], [1], [1, 1, 1]])
    def test_a_different_number_of_scores_than_criteria_is_refused(self, scores):
        with pytest.raises(ValueError, match=f"{len(scores)} scores for 2 criteria"):
            reward(self.rubric, scores, "points")

    @pytest.mark.parametrize(
        ("beside", "says"),
        [
            ({"uncertain": [True]}, "1 uncertain for 2 scores"),
            ({"uncertain": [False, True]}, r"scores\[1\] is 1.0 and uncertain\[1\] true"),
            ({"sample": CriteriaSample((True,), (True,))}, "1 droppable for 2 scores"),
            ({"sample": CriteriaSample((True, True), (False, True))}, "the sample leaves out criterion 1"),
            ({"sample": CriteriaSample((False, True), (True, False))}, "the sample leaves out criterion 0"),
        ],
    )
    def test_what_is_said_beside_the_scores_must_agree_with_them(self, beside, says):
        with pytest.raises(ValueError, match=says):
            reward(self.rubric, [None, 1], "points", **beside)

    def test_unknown_modes_and_policies_are_refused(self):
        with pytest.raises(ValueError, match="mode"):
            reward(self.rubric, [1, 1], "median")
        with pytest.raises(ValueError, match="on_failure"):
            reward(self.rubric, [1, 1], "points", "ignore")
        with pytest.raises(TypeError, match="no argument 'on_uncertian'; use failures, on_uncertain"):
            reward(self.rubric, [1, 1], "points", on_uncertian="zero")

    @pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
    def test_a_format_weight_outside_zero_to_one_is_refused(self, weight):
        with pytest.raises(ValueError, match="format_weight"):
            reward(criteria(("answer", 1)), [1], "stepwise", format_ok=True, format_weight=weight)


def test_partial_credit_is_the_share_of_the_points_awarded():
    awarded, weights = [2, 0, 3], [4, 1, 5]
    rubric = criteria(*(("point", w) for w in weights))
    scores = [a / w for a, w in zip(awarded, weights, strict=True)]
    assert reward(rubric, scores, "partial_credit") == pytest.approx(5 / 10)


class TestGradedMean:
    rubric = criteria(("point", 5), ("pitfall", 5), ("point", -1), ("pitfall", -3))

    def test_grades_of_negative_criteria_are_inverted_once_each(self):
        assert reward(self.rubric, [0.75, 0.5, 0.25, 0], "graded_mean") == pytest.approx((0.75 + 0.5 + 0.75 + 1) / 4)

    @pytest.mark.parametrize("weight", [0, 0.1, 7, 1e308])
    def test_the_size_of_a_weight_does_not_matter(self, weight):
        rubric = criteria(("point", weight), ("point", -weight - 1), ("point", 1e308))
        assert reward(rubric, [1, 0.5, 0], "graded_mean") == pytest.approx(0.5)


@pytest.mark.parametrize("mode", ["likert", "outcome"])
class TestHolisticModes:
    @pytest.mark.parametrize(
        "rubric", [[], criteria(("pitfall", 1), ("point", -2))], ids=["no criteria", "any criteria"]
    )
    def test_the_one_score_is_the_reward_whatever_the_criteria(self, mode, rubric):
        assert reward_outcome(rubric, [0.25], mode) == RewardOutcome(0.25, "scored")

    @pytest.mark.parametrize("scores", [[], [1, 1]])
    def test_any_other_number_of_scores_is_refused(self, mode, scores):
        with pytest.raises(ValueError, match=f"{len(scores)} scores in mode '{mode}'; give one"):
            reward(criteria(("point", 1), ("point", 1)), scores, mode)

    def test_a_failed_score_follows_the_policy(self, mode):
        assert reward_outcome([], [None], mode) == RewardOutcome(None, "unscored")
        assert reward_outcome([], [None], mode, "zero") == RewardOutcome(0.0, "unscored", "zero")
        assert reward_outcome([], [None], mode, "skip") == RewardOutcome(None, "unscored")
        with pytest.raises(UnscoredCriteria) as raised:
            reward_outcome([], [None], mode, "error")
        assert raised.value.criteria == ("(response)",)

    def test_invalid_criteria_are_still_refused(self, mode):
        with pytest.raises(ValueError, match=r"criteria\[0\]\.kind"):
            reward(criteria(("factaul", 1)), [1], mode)


class TestGate:
    rubric = criteria(("point", 1), ("factual", 0), ("process", 9), ("point", 2))

    @pytest.mark.parametrize(
        ("scores", "passed"), [([1, 1, 0, 0], 1.0), ([0, 0, 1, 0], 0.0), ([1, 0.999, 0.5, 0], 0.0), ([1, 1, 1, 1], 1.0)]
    )
    def test_a_response_passes_if_it_satisfies_half_of_the_criteria_regardless_of_weight(self, scores, passed):
        assert reward_outcome(self.rubric, scores, "gate") == RewardOutcome(passed, "scored")

    @pytest.mark.parametrize("fraction", [0.1 * 3, 0.3, 1 - 0.7])
    def test_a_rounding_error_in_the_fraction_does_not_change_the_required_number(self, fraction):
        rubric = criteria(*[("point", 1)] * 10)
        assert reward(rubric, [1] * 3 + [0] * 7, "gate", gate_fraction=fraction) == 1.0
        assert reward(rubric, [1] * 2 + [0] * 8, "gate", gate_fraction=fraction) == 0.0

    def test_an_empty_rubric_lets_every_response_pass(self):
        check_rubric([], "gate")
        assert reward_outcome([], [], "gate", gate_fraction=1) == RewardOutcome(1.0, "scored")

    @pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
    def test_a_fraction_outside_zero_to_one_is_refused(self, fraction):
        with pytest.raises(ValueError, match="gate_fraction"):
            reward(self.rubric, [1, 1, 1, 1], "gate", gate_fraction=fraction)


WEIGHTS = st.floats(-10, 10, allow_subnormal=False).filter(lambda weight: abs(weight) > 1e-3)
PAIRS = st.lists(st.tuples(WEIGHTS, st.floats(0, 1, allow_subnormal=False)), min_size=1, max_size=6)


def rubric(*weights):
    return [{"id": f"c{n}", "weight": w, "kind": "pitfall" if w < 0 else "point"} for n, w in enumerate(weights)]


@pytest.mark.parametrize(
    ("weights", "scores", "clipped", "absolute"),
    [
        ((-1, -1, -1), (0, 0, 0), 1.0, 0.0),
        ((-1, -1, -1), (1, 1, 1), 0.0, -1.0),
        ((-1, -2), (1, 0), 2 / 3, -1 / 3),
        ((2, -1), (1, 1), 0.5, 1 / 3),
        ((2, -1), (0, 1), 0.0, -1 / 3),
        ((2, -1), (1, 0), 1.0, 2 / 3),
        ((3, 1), (0.5, 1), 0.625, 0.625),
    ],
)
def test_mistakes_cost_their_weight(weights, scores, clipped, absolute):
    assert reward(rubric(*weights), scores, "clipped_points") == pytest.approx(clipped)
    assert reward(rubric(*weights), scores, "absolute_points") == pytest.approx(absolute)


@given(PAIRS)
def test_clipped_points_equal_points_between_zero_and_one(pairs):
    criteria, scores = rubric(*(w for w, _ in pairs)), [s for _, s in pairs]
    value = reward(criteria, scores, "clipped_points")
    assert 0 <= value <= 1
    if any(w > 0 for w, _ in pairs):
        assert value == pytest.approx(min(1.0, max(0.0, reward(criteria, scores, "points"))))


@given(PAIRS)
def test_absolute_points_stay_within_one_and_flip_with_the_signs(pairs):
    scores = [s for _, s in pairs]
    value = reward(rubric(*(w for w, _ in pairs)), scores, "absolute_points")
    assert -1 - 1e-12 <= value <= 1 + 1e-12
    turned = [{"weight": -w} for w, _ in pairs]
    assert reward(turned, scores, "absolute_points") == pytest.approx(-value)


def test_a_failed_verdict_never_turns_a_rubric_into_a_list_of_mistakes():
    criteria = rubric(2, -1)
    assert reward_outcome(criteria, [None, 0], "clipped_points", "skip") == RewardOutcome(None, "unscored")
    assert reward_outcome(criteria, [None, 0], "clipped_points") == RewardOutcome(None, "unscored")
    assert reward_outcome(criteria, [1, None], "clipped_points", "skip") == RewardOutcome(1.0, "partial", "skip", 1)
    assert reward_outcome(rubric(-1, -1), [None, 1], "clipped_points", "skip") == RewardOutcome(
        0.0, "partial", "skip", 1
    )


def test_a_rubric_of_pitfalls_is_valid_and_one_of_negative_points_is_not():
    def content(kind):
        return RubricContent.model_validate({"criteria": [{"id": "a", "kind": kind, "weight": -1, "description": "x"}]})

    assert content("pitfall").criteria[0].weight == -1
    with pytest.raises(ValueError, match="no criterion has a positive weight"):
        content("point")


MEANS = ["weighted_mean", "factual_override", "partial_credit"]
POINTS_OF_ANY_SIGN = ["clipped_points", "absolute_points"]
HUGE = [("point", 1e308), ("point", 1e308)]
REWARDED_MISTAKE = r"'c1' is a pitfall of weight 2.*reward the mistake.*graded_mean"


@pytest.mark.parametrize(
    ("kinds_and_weights", "modes", "says"),
    [
        ([("factual", 1), ("process", -2)], [*MEANS, "gate"], r"'c1'.*-2.*points"),
        ([], [*MEANS, "points"], "above 0"),
        ([("point", 0), ("point", 0)], [*MEANS, "points"], "above 0"),
        ([("pitfall", -1), ("pitfall", -2)], ["weighted_mean", "points"], "weight"),
        ([("point", 0), ("point", 0)], POINTS_OF_ANY_SIGN, "other than 0"),
        ([("answer", 1), ("pitfall", 2)], [*MEANS, "points", "gate", *POINTS_OF_ANY_SIGN], REWARDED_MISTAKE),
        ([("point", 1), ("pitfall", 0)], ["gate"], r"'c1' is a pitfall.*reward the mistake"),
        ([("point", 1), ("pitfall", -2)], ["gate"], r"'c1' is a pitfall.*reward the mistake"),
        ([("suggest", 1)], ["stepwise"], "'answer'"),
        ([], ["graded_mean"], "no criteria"),
        (HUGE, ["points"], "too large"),
    ],
)
def test_a_rubric_that_does_not_suit_a_mode_is_refused_with_the_reason(kinds_and_weights, modes, says):
    for mode in modes:
        with pytest.raises(UnsuitableRubric, match=says):
            check_rubric(criteria(*kinds_and_weights), mode)


@pytest.mark.parametrize(
    ("kinds_and_weights", "modes"),
    [
        ([("pitfall", -1), ("pitfall", -2)], POINTS_OF_ANY_SIGN),
        ([("point", 1), ("point", -9)], ["points"]),
        ([("point", 1), ("pitfall", -9)], ["points"]),
        ([("answer", 1), ("pitfall", 2)], ["stepwise", "graded_mean", "likert", "outcome"]),
        ([("point", -1)], ["graded_mean"]),
        ([], ["likert", "outcome", "gate"]),
        ([("pitfall", 1), ("point", -9), *HUGE], ["likert", "outcome"]),
    ],
)
def test_any_other_rubric_is_accepted(kinds_and_weights, modes):
    for mode in modes:
        check_rubric(criteria(*kinds_and_weights), mode)


def test_the_reward_refuses_the_same_rubrics_as_the_check():
    with pytest.raises(UnsuitableRubric):
        reward(criteria(("point", -1)), [1], "points")
