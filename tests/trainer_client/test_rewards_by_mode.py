"""The modes other than weighted sums (graded_mean, likert, outcome, gate), and partial_credit."""

import math

import pytest

from trainer_client.rewards import RewardOutcome, UnscoredCriteria, check_rubric, reward, reward_outcome


def criteria(*kinds_and_weights):
    return [{"id": f"c{i}", "kind": k, "weight": w} for i, (k, w) in enumerate(kinds_and_weights)]


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
