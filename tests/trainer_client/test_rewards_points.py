"""The modes over points: negative rewards, lists of mistakes only, and shares of the total weight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.rewards import RewardOutcome, UnsuitableRubric, check_rubric, reward, reward_outcome
from trainer_client.wire import RubricContent

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


@pytest.mark.parametrize("mode", ["clipped_points", "absolute_points"])
def test_they_take_negative_weights_but_not_zero_alone_or_a_rewarded_mistake(mode):
    check_rubric(rubric(-1, -2), mode)
    with pytest.raises(UnsuitableRubric, match="other than 0"):
        check_rubric(rubric(0, 0), mode)
    with pytest.raises(UnsuitableRubric, match="reward the mistake"):
        check_rubric([{"kind": "pitfall", "weight": 1}], mode)


@pytest.mark.parametrize("mode", ["points", "weighted_mean"])
def test_other_modes_still_refuse_a_list_of_mistakes(mode):
    with pytest.raises(UnsuitableRubric):
        check_rubric(rubric(-1, -2), mode)


def test_a_rubric_of_pitfalls_is_valid_and_one_of_negative_points_is_not():
    def content(kind):
        return RubricContent.model_validate({"criteria": [{"id": "a", "kind": kind, "weight": -1, "description": "x"}]})

    assert content("pitfall").criteria[0].weight == -1
    with pytest.raises(ValueError, match="no criterion has a positive weight"):
        content("point")
