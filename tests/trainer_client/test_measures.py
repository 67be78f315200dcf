import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.measures import (
    agreement_rate,
    average_at_k,
    best_of_n,
    cohen_kappa,
    faithfulness,
    novelty,
    pass_at_k,
    point_biserial,
    self_internalization_gap,
    step_agreement,
)

CASES = json.loads((Path(__file__).parent / "vectors" / "measures.json").read_text())["cases"]
LABELS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=12)


@pytest.mark.parametrize("case", CASES)
def test_the_worked_cases_hold(case):
    assert cohen_kappa(case["a"], case["b"]) == pytest.approx(case["kappa"], abs=1e-9)
    assert point_biserial(case["a"], case["x"]) == pytest.approx(case["point_biserial"], abs=1e-9)
    assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["pass_at_k"], abs=1e-9)
    rates = faithfulness(case["answer_correct"], case["steps_correct"])
    assert rates == pytest.approx(case["faithfulness"], abs=1e-9)


@given(LABELS)
def test_kappa_is_symmetric_bounded_and_one_exactly_for_full_agreement(pairs):
    a, b = zip(*pairs, strict=True)
    kappa = cohen_kappa(a, b)
    assert kappa == cohen_kappa(b, a)
    assert (kappa is None) == (len(set(a) | set(b)) == 1)
    if kappa is not None:
        assert -1.0 <= kappa <= 1.0
        assert (kappa == 1.0) == (a == b)
        assert kappa <= agreement_rate(a, b)


def test_kappa_of_independent_labels_is_zero():
    assert cohen_kappa([1, 1, 0, 0], [1, 0, 1, 0]) == 0.0


def test_items_that_one_judge_failed_on_are_ignored():
    assert cohen_kappa([1, 0, None, 1], [1, 0, 1, None]) == 1.0
    assert agreement_rate([1, 0, None], [1, 1, 1]) == 0.5
    assert agreement_rate([None], [1]) is None
    assert cohen_kappa([], []) is None


def test_steps_agree_where_both_judges_name_one():
    assert step_agreement([1, 2, 0, -1, 3, None], [1, 3, 0, 2, 0, 1]) == 0.5
    assert step_agreement([0, -1], [0, -1]) is None


@given(st.lists(st.tuples(st.booleans(), st.floats(-1e3, 1e3).map(lambda x: round(x, 3))), max_size=10))
def test_the_point_biserial_is_the_difference_of_means_over_the_deviation(pairs):
    binary, x = [b for b, _ in pairs], [v for _, v in pairs]
    found = point_biserial(binary, x)
    if len(set(binary)) < 2 or len(set(x)) < 2:
        assert found is None
        return
    yes, no = ([v for b, v in pairs if b is which] for which in (True, False))
    share = len(yes) / len(pairs)
    expected = (np.mean(yes) - np.mean(no)) / np.std(x) * math.sqrt(share * (1 - share))
    assert found == pytest.approx(expected, abs=1e-6)
    assert -1.0 <= found <= 1.0


def test_the_point_biserial_of_tiny_or_offset_numbers_is_exact():
    assert point_biserial([0, 1], [0.0, 5e-324]) == pytest.approx(1.0)
    assert point_biserial([1, 0, None, 1], [1e6, 1e6 + 1, 5, None]) == pytest.approx(-1.0)


@pytest.mark.parametrize(("binary", "x"), [([0, 2], [1, 2]), ([0, 1], [1, math.nan]), ([0, 0.5], [1, 2])])
def test_invalid_values_are_refused(binary, x):
    with pytest.raises(ValueError, match="binary must hold"):
        point_biserial(binary, x)


@pytest.mark.parametrize("function", [agreement_rate, cohen_kappa, step_agreement, point_biserial])
def test_two_sides_of_different_length_are_refused(function):
    with pytest.raises(ValueError, match="2 and 1 entries"):
        function([1, 0], [1])


@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), rel=1e-9, abs=1e-12)


def test_pass_at_k_stays_exact_for_large_numbers():
    assert pass_at_k(10**6, 1, 10) == pytest.approx(1e-5, rel=1e-12)
    assert pass_at_k(10**6, 10**6 - 10, 11) == 1.0
    assert pass_at_k(10**6, 400_000, 500_000) == pytest.approx(1.0, abs=1e-15)
    assert pass_at_k(2048, 1, 2048) == 1.0
    assert pass_at_k(5, 0, 3) == 0.0


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4), (0, 0, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="use c from 0 to n"):
        pass_at_k(n, c, k)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.data())
def test_best_of_n_is_the_mean_maximum_over_all_sets_of_n(scores, data):
    n = data.draw(st.integers(1, len(scores)))
    expected = np.mean([max(chosen) for chosen in combinations(scores, n)])
    assert best_of_n([*scores, None], n) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.data())
def test_best_of_n_of_binary_scores_is_pass_at_n(scores, data):
    n = data.draw(st.integers(1, len(scores)))
    assert best_of_n(scores, n) == pytest.approx(pass_at_k(len(scores), sum(scores), n), abs=1e-9)


def test_best_of_more_than_the_number_of_scores_is_none():
    assert best_of_n([1.0, None], 2) is None
    with pytest.raises(ValueError, match="n is 0"):
        best_of_n([1.0], 0)
    with pytest.raises(ValueError, match="not finite"):
        best_of_n([math.nan], 1)


def test_avg_at_k_weighs_problems_equally_and_ignores_unknown_values():
    assert average_at_k([[1, 0, None, None], [1, 1, 1, 1], [None]]) == 0.75
    assert average_at_k([]) is None


def test_a_trajectory_without_steps_counts_in_the_total_but_is_neither_faithful_nor_misaligned():
    rates = faithfulness([1, 1, 0, 0, 1], [[], [1, 1], [1], [], [1, 0]])
    assert rates == {
        "faithful_reasoning_rate": 0.2,
        "misaligned_trajectory_rate": 0.4,
        "answer_accuracy": 0.6,
        "step_accuracy": 0.8,
    }


def test_an_unknown_trajectory_is_left_out_unless_a_wrong_step_decides_it():
    rates = faithfulness([1, 1, None, 0], [[1, None], [None, 0], [1], [0, None]])
    assert rates["faithful_reasoning_rate"] == 0.0
    assert rates["misaligned_trajectory_rate"] == 0.5
    assert rates["answer_accuracy"] == pytest.approx(2 / 3)
    assert rates["step_accuracy"] == 0.5


def test_rates_of_no_trajectories_are_none():
    assert set(faithfulness([], []).values()) == {None}


@given(st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 1), max_size=4)), min_size=1))
def test_faithful_and_misaligned_are_mutually_exclusive(trajectories):
    answers, steps = zip(*trajectories, strict=True)
    rates = faithfulness(answers, steps)
    both = rates["faithful_reasoning_rate"] + rates["misaligned_trajectory_rate"]
    right_with_steps = sum(a == 1 and bool(s) for a, s in trajectories) / len(trajectories)
    assert right_with_steps - 1e-9 <= both <= 1.0 + 1e-9


@pytest.mark.parametrize(("answers", "steps"), [([0.5], [[1]]), ([1], [[0.5]]), ([1], []), ([2], [[]])])
def test_non_binary_trajectories_are_refused(answers, steps):
    with pytest.raises(ValueError):  # noqa: PT011
        faithfulness(answers, steps)


def test_novelty_is_the_share_of_responses_that_became_more_probable():
    found = novelty([-1.0, -1.0, -1.0, -1.0], [-1.0, -2.0, -4.0, -7.0])
    assert found.median == pytest.approx((math.e + math.e**3) / 2)
    assert found.mean == pytest.approx(np.mean(np.exp([0, 1, 3, 6])))
    assert found.counts == {2: 3, 10: 2, 100: 1}


@pytest.mark.parametrize(("new", "old"), [([], []), ([-1.0], []), ([-1.0], [-math.inf])])
def test_novelty_needs_finite_log_likelihoods_of_both_policies(new, old):
    with pytest.raises(ValueError, match="log-likelihood"):
        novelty(new, old)


LOGPS = st.floats(-20, 0)


@given(st.lists(st.lists(st.tuples(LOGPS, LOGPS), max_size=5), max_size=5))
def test_the_self_internalization_gap_is_the_mean_over_responses_of_means_over_tokens(rows):
    prompted, conditioned = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    found = self_internalization_gap(prompted, conditioned)
    gaps = [np.mean([own - other for own, other in row]) for row in rows if row]
    assert found == (pytest.approx(np.mean(gaps), abs=1e-9) if gaps else None)


def test_log_probabilities_of_other_tokens_have_no_gap():
    with pytest.raises(ValueError, match="one for each of its tokens"):
        self_internalization_gap([[-1.0, -2.0]], [[-1.0]])
    with pytest.raises(ValueError, match="zip"):
        self_internalization_gap([[-1.0]], [])
