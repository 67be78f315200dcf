from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_examples import examples
from trainer_client.dro import gate

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
