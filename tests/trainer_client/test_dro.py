import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trainer_client.dro import (
    SMALLEST_PROBABILITY,
    average_log_probability,
    average_probability,
    gate,
    reasoning_reflection_reward,
    variance_score,
)
from trainer_client.measures import rouge_l_f1

CASES = json.loads((Path(__file__).parent / "vectors" / "dro.json").read_text())["cases"]
PROBS = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=7), elements=st.floats(0, 1, allow_subnormal=False)
)


@pytest.mark.parametrize("case", CASES)
def test_the_worked_cases_hold(case):
    rewards, weights = reasoning_reflection_reward(case["probs"])
    assert rewards == pytest.approx(case["r3"], abs=1e-9)
    assert weights == pytest.approx(case["weights"], abs=1e-9)
    assert variance_score(case["probs"]) == pytest.approx(case["variance_score"], abs=1e-9)
    assert average_probability(case["probs"]) == pytest.approx(case["avg_prob"], abs=1e-9)
    assert average_log_probability(case["probs"], floor=1e-4) == pytest.approx(case["avg_logprob"], abs=1e-9)
    assert gate(case["satisfied"], case["r3"]) == (case["coverage"], case["consistency"])


@given(PROBS, st.floats(-1e3, 1e4))
def test_the_weights_sum_to_one_and_rewards_are_bounded_by_the_clip(probs, beta):
    rewards, weights = reasoning_reflection_reward(probs, beta=beta)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0)
    assert (rewards >= 0.05 - 1e-9).all()
    assert (rewards <= 0.95 + 1e-9).all()


@given(PROBS)
def test_without_emphasis_and_clipping_it_is_the_average_probability(probs):
    rewards, _ = reasoning_reflection_reward(probs, beta=0.0, p_min=0.0, p_max=1.0)
    assert rewards == pytest.approx(average_probability(probs), abs=1e-12)


@given(PROBS)
def test_tokens_that_vary_more_weigh_more(probs):
    _, weights = reasoning_reflection_reward(probs)
    deviations = probs.clip(0.05, 0.95).std(axis=0)
    assert (np.diff(weights[np.argsort(deviations)]) >= -1e-12).all()


@given(PROBS, st.randoms())
def test_the_order_of_rollouts_does_not_matter(probs, random):
    order = random.sample(range(len(probs)), len(probs))
    rewards, _ = reasoning_reflection_reward(probs)
    shuffled, _ = reasoning_reflection_reward(probs[order])
    assert shuffled == pytest.approx(rewards[order], abs=1e-12)


def test_a_group_of_one_weighs_all_tokens_equally():
    rewards, weights = reasoning_reflection_reward([[0.2, 0.4]])
    assert weights.tolist() == [0.5, 0.5]
    assert rewards == pytest.approx([0.3])


def test_fluctuations_outside_the_clip_have_no_weight():
    _, weights = reasoning_reflection_reward([[0.96, 0.01, 0.5], [1.0, 0.04, 0.5]])
    assert weights == pytest.approx([1 / 3] * 3)


@given(PROBS)
def test_the_variance_score_falls_as_more_tokens_count_and_stays_below_a_half(probs):
    scores = [variance_score(probs, top_fraction=fraction) for fraction in (0.0, 0.3, 1.0)]
    assert 0.45 + 1e-9 >= scores[0] >= scores[1] - 1e-12
    assert scores[1] >= scores[2] - 1e-12 >= -1e-12


def test_the_number_of_counted_tokens_is_rounded_up_without_rounding_errors():
    deviations = np.linspace(0.01, 0.30, 30)
    probs = np.array([0.5 - deviations, 0.5 + deviations])
    assert variance_score(probs, top_fraction=0.1) == pytest.approx(np.mean([0.30, 0.29, 0.28]))
    assert variance_score(probs, top_fraction=0.1 * 3 / 3) == pytest.approx(np.mean([0.30, 0.29, 0.28]))
    assert variance_score(probs, top_fraction=0.101) == pytest.approx(np.mean([0.30, 0.29, 0.28, 0.27]))


@given(st.floats(1e-44, 1.0))
def test_an_improbable_token_counts_with_its_logarithm(p):
    assert average_log_probability([[p, 1.0]]) == pytest.approx([math.log(p) / 2])


def test_a_token_of_probability_zero_counts_as_the_floor():
    assert average_log_probability([[0.0, 1.0]]) == pytest.approx([math.log(SMALLEST_PROBABILITY) / 2])
    assert average_log_probability([[0.0, 1.0]], floor=0.1) == pytest.approx([math.log(0.1) / 2])


@pytest.mark.parametrize(
    "probs",
    [
        [],
        [[]],
        [[0.1], [0.1, 0.2]],
        [[1.1]],
        [[-0.1]],
        [[float("nan")]],
        [[None]],
        [["0.5"]],
        [[-0.7, -2.3]],
    ],
)
@pytest.mark.parametrize("function", [reasoning_reflection_reward, variance_score, average_probability])
def test_invalid_probabilities_are_refused(function, probs):
    with pytest.raises(ValueError, match="probs"):
        function(probs)


def test_a_rounding_error_above_one_is_tolerated():
    assert average_probability(np.array([[1.0 + 1e-7]], dtype=np.float32)).tolist() == [1.0]


@pytest.mark.parametrize(
    "option", [{"beta": float("inf")}, {"p_min": 0.9, "p_max": 0.1}, {"p_max": 1.5}, {"p_min": float("nan")}]
)
def test_an_option_out_of_range_is_refused_by_name(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        reasoning_reflection_reward([[0.5]], **option)


@pytest.mark.parametrize("top_fraction", [-0.1, 1.1, float("nan")])
def test_a_token_share_out_of_range_is_refused(top_fraction):
    with pytest.raises(ValueError, match="top_fraction"):
        variance_score([[0.5]], top_fraction=top_fraction)


WORDS = st.lists(st.sampled_from("abc"), max_size=8)


def longest_common_subsequence(a, b):
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest_common_subsequence(a[1:], b[1:])
    return max(longest_common_subsequence(a[1:], b), longest_common_subsequence(a, b[1:]))


@given(WORDS.filter(bool), WORDS.filter(bool))
def test_rouge_l_is_based_on_the_longest_common_subsequence(a, b):
    common = longest_common_subsequence(a, b)
    expected = 2 * common / (len(a) + len(b))
    assert rouge_l_f1(a, b) == pytest.approx(expected)
    assert rouge_l_f1(" ".join(a), " ".join(b)) == pytest.approx(expected)


def test_rouge_l_ignores_case_and_punctuation_in_any_script():
    assert rouge_l_f1("The cat, Größe 3!", "the CAT größe 3") == 1.0
    assert rouge_l_f1("кошка спит", "Кошка не спит") == pytest.approx(0.8)
    assert rouge_l_f1("", "the cat") == 0.0
    assert rouge_l_f1("…", "the cat") == 0.0
    assert rouge_l_f1([7, 8, 9], [7, 9]) == pytest.approx(0.8)
