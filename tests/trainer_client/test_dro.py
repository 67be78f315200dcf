import json
import math
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.hypothesis_examples import examples
from trainer_client.dro import (
    SMALLEST_PROBABILITY,
    RollingThreshold,
    average_log_probability,
    average_probability,
    gate,
    reasoning_reflection_reward,
    select_groups,
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


SCORE = st.floats(0, 0.45)
STEPS = st.lists(st.lists(SCORE, max_size=4), max_size=12)


def after(threshold, steps):
    for scores in steps:
        threshold = threshold.after_step(scores)
    return threshold


def test_there_is_no_threshold_during_the_first_period():
    rolling = after(RollingThreshold(every=3), [[0.1], [0.2]])
    assert rolling.threshold is None
    assert rolling.accepts(0.0)
    assert rolling.after_step([0.4]).threshold == 0.2


def test_a_score_below_the_threshold_is_rejected():
    rolling = RollingThreshold(threshold=0.2)
    assert not rolling.accepts(0.19)
    assert rolling.accepts(0.2)


@given(STEPS, st.integers(1, 4), st.floats(0, 100))
def test_the_threshold_is_the_percentile_of_the_last_complete_period_with_scores(steps, every, percentile):
    periods = [steps[start : start + every] for start in range(0, len(steps) - every + 1, every)]
    scored = [scores for period in periods if (scores := [score for step in period for score in step])]
    expected = float(np.percentile(scored[-1], percentile)) if scored else None
    assert after(RollingThreshold(every, percentile), steps).threshold == expected


@given(STEPS, st.integers(0, 12))
def test_training_resumed_from_a_checkpoint_continues_exactly(steps, stop):
    rolling = after(RollingThreshold(every=3), steps[:stop])
    resumed = RollingThreshold(**json.loads(json.dumps(asdict(rolling))))
    assert after(resumed, steps[stop:]).threshold == after(RollingThreshold(every=3), steps).threshold


def test_the_defaults_are_twenty_steps_and_the_median():
    rolling = after(RollingThreshold(), [[float(step)] for step in range(20)])
    assert rolling.threshold == 9.5
    assert (rolling.steps, rolling.recent) == (0, ())


@pytest.mark.parametrize("options", [{"every": 0}, {"percentile": -1.0}, {"percentile": float("nan")}])
def test_a_period_or_percentile_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RollingThreshold(**options)


@pytest.mark.parametrize("score", [float("nan"), None, "0.1"])
def test_a_score_that_is_not_a_number_is_refused(score):
    with pytest.raises(ValueError, match=r"scores\[1\]"):
        RollingThreshold().after_step([0.1, score])
    with pytest.raises(ValueError, match="score is"):
        RollingThreshold(threshold=0.1).accepts(score)


@given(st.lists(st.none() | SCORE, max_size=20), st.floats(0, 1), st.floats(0, 1), st.integers())
def test_the_selection_keeps_the_top_and_a_random_share_of_the_rest(scores, top, rest, seed):
    chosen = select_groups(scores, top_fraction=top, random_fraction=rest, seed=seed)
    known = sorted((index for index, s in enumerate(scores) if s is not None), key=lambda i: -scores[i])
    kept = int(np.ceil(top * len(known) - 1e-9))
    assert chosen == sorted(set(chosen))
    assert set(known[:kept]) <= set(chosen) <= set(known)
    assert len(chosen) == kept + int(np.ceil(rest * (len(known) - kept) - 1e-9))
    assert chosen == select_groups(scores, top_fraction=top, random_fraction=rest, seed=seed)


def test_another_seed_draws_a_different_rest_and_keeps_the_top():
    scores = [0.4, 0.3] + [0.1] * 98
    draws = [select_groups(scores, top_fraction=0.02, seed=seed) for seed in range(5)]
    assert all(len(draw) == 12 and draw[:2] == [0, 1] for draw in draws)
    assert len({tuple(draw) for draw in draws}) == 5
    assert max(index for draw in draws for index in draw) > 80


@pytest.mark.parametrize("name", ["top_fraction", "random_fraction"])
def test_a_share_out_of_range_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name):
        select_groups([0.1], **{"top_fraction": 0.5, name: 1.5}, seed=1)


OPTIONS = st.fixed_dictionaries(
    {
        "min_rollouts": st.integers(0, 4),
        "top_k": st.integers(0, 5),
        "min_fraction": st.sampled_from([0.0, 0.3, 1 / 3, 0.5, 2 / 3, 1.0]),
    }
)


@st.composite
def judged(draw, verdict=(True, False, None)):
    """(satisfied, rewards) of a group with at most 6 missing verdicts."""
    rollouts, rubrics = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    satisfied = [[draw(st.sampled_from(verdict)) for _ in range(rubrics)] for _ in range(rollouts)]
    missing = [(i, j) for i, row in enumerate(satisfied) for j, value in enumerate(row) if value is None]
    for i, j in missing[6:]:
        satisfied[i][j] = False
    return satisfied, [draw(st.sampled_from([None, 0.1, 0.5, 0.9])) for _ in range(rollouts)]


def fillings(satisfied):
    """Every possible completion of the missing verdicts."""
    missing = [(i, j) for i, row in enumerate(satisfied) for j, value in enumerate(row) if value is None]
    for values in product([True, False], repeat=len(missing)):
        filled = [list(row) for row in satisfied]
        for (i, j), value in zip(missing, values, strict=True):
            filled[i][j] = value
        yield filled


def agreed(outcomes):
    """The value that all outcomes agree on, or None."""
    return outcomes.pop() if len(outcomes := set(outcomes)) == 1 else None


@given(judged(verdict=(True, False)), OPTIONS)
def test_with_every_verdict_known_the_gates_match_the_paper(case, options):
    satisfied, rewards = case
    columns = list(zip(*satisfied, strict=True))
    ranked = sorted((i for i, r in enumerate(rewards) if r is not None), key=lambda i: -rewards[i])
    coverage = all(sum(column) >= options["min_rollouts"] for column in columns)
    consistency = all(
        sum(satisfied[i]) >= options["min_fraction"] * len(columns) - 1e-9 for i in ranked[: options["top_k"]]
    )
    assert gate(satisfied, rewards, **options) == (coverage, consistency)


@given(judged(), OPTIONS)
@settings(max_examples=examples(200))
def test_a_gate_is_decided_exactly_if_all_completions_of_missing_verdicts_agree(case, options):
    satisfied, rewards = case
    outcomes = [gate(filled, rewards, **options) for filled in fillings(satisfied)]
    expected = tuple(agreed(outcome[which] for outcome in outcomes) for which in (0, 1))
    assert gate(satisfied, rewards, **options) == expected


@given(judged(), OPTIONS)
def test_the_group_passes_if_both_gates_pass(case, options):
    satisfied, rewards = case
    gates = gate(satisfied, rewards, **options)
    together = False if False in gates else None if None in gates else True
    assert together is agreed(all(gate(filled, rewards, **options)) for filled in fillings(satisfied))


def test_without_rubrics_both_gates_pass():
    assert gate([[], []], [0.1, 0.2]) == (True, True)


def test_a_quarter_of_the_rollouts_rounded_up_must_be_consistent():
    rows = [[True], [True], [False], [True], [True]]
    assert gate(rows, [0.9, 0.8, 0.7, 0.2, 0.1]).consistency is True
    assert gate(rows, [0.9, 0.2, 0.8, 0.3, 0.1]).consistency is False
    assert gate(rows[:4], [0.9, 0.2, 0.8, 0.3]).consistency is True


def test_of_equal_rewards_the_first_ranks_higher():
    assert gate([[True], [False]], [0.5, 0.5], top_k=1).consistency is True
    assert gate([[False], [True]], [0.5, 0.5], top_k=1).consistency is False


def test_a_rollout_without_a_reward_has_no_rank_but_counts_for_coverage():
    assert gate([[True], [False]], [None, 0.5], top_k=1) == (True, False)
    assert gate([[False], [True]], [None, 0.5], top_k=1) == (True, True)


def test_a_rounding_error_in_the_share_is_tolerated():
    row = [True] * 3 + [False] * 7
    assert gate([row], [0.5], min_fraction=0.1 * 3).consistency is True


def test_a_fractional_yes_does_not_count():
    assert gate([[1.0], [0.99]], [0.1, 0.9], top_k=1) == (True, False)
    assert gate(np.array([[1, 0], [1, 1]]), np.array([0.9, 0.1])) == (True, True)


@pytest.mark.parametrize(
    ("satisfied", "rewards", "options", "message"),
    [
        ([], [], {}, "0 rows"),
        ([[True]], [0.1, 0.2], {}, "1 rows of verdicts and 2 rewards"),
        ([[True], [True, False]], [0.1, 0.2], {}, "2 scores for 1"),
        ([[2]], [0.1], {}, r"scores\[0\]"),
        ([[True], [True]], [0.1, float("nan")], {}, r"rewards\[1\]"),
        ([[True]], [0.1], {"min_rollouts": -1}, "min_rollouts"),
        ([[True]], [0.1], {"top_k": -1}, "top_k"),
        ([[True]], [0.1], {"min_fraction": 1.2}, "min_fraction"),
    ],
)
def test_an_invalid_group_is_refused(satisfied, rewards, options, message):
    with pytest.raises(ValueError, match=message):
        gate(satisfied, rewards, **options)
