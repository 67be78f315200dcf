import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.steps import step_deltas

CASES = json.loads((Path(__file__).parent / "vectors" / "stepwise.json").read_text())["cases"]
ROLLOUTS = [
    pytest.param(case["criteria"], rollout, deltas, id=f"case{i}-rollout{j}")
    for i, case in enumerate(CASES)
    for j, (rollout, deltas) in enumerate(zip(case["rollouts"], case["step_deltas"], strict=True))
]
KINDS = ["suggest", "pitfall", "bonus", "answer", "factual", "point"]


def criteria(*kinds):
    return [{"id": f"c{i}", "kind": kind} for i, kind in enumerate(kinds)]


@st.composite
def judged(draw):
    """(criteria, scores, steps, n_steps) of a response."""
    n_steps = draw(st.integers(0, 4))
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=10))
    scores = [draw(st.sampled_from([None, 0, 1])) for _ in kinds]
    return criteria(*kinds), scores, [draw(st.integers(-1, n_steps)) for _ in kinds], n_steps


@pytest.mark.parametrize(("rubric", "rollout", "expected"), ROLLOUTS)
def test_the_worked_cases_hold(rubric, rollout, expected):
    n_steps = max(map(int, rollout["spans"]))
    deltas = step_deltas(rubric, rollout["scores"], rollout["steps"], n_steps)
    assert deltas == pytest.approx({int(step): delta for step, delta in expected.items()}, abs=1e-9)


@given(judged())
def test_the_total_stays_within_the_budgets(case):
    assert -1.0 - 1e-9 <= sum(step_deltas(*case).values()) <= 1.8 + 1e-9


@given(judged())
def test_satisfying_all_criteria_of_a_kind_spends_its_whole_budget(case):
    rubric, _, _, n_steps = case
    deltas = step_deltas(rubric, [1] * len(rubric), [0] * len(rubric), n_steps)
    kinds = {c["kind"] for c in rubric}
    spent = 0.8 * ("suggest" in kinds) - 1.0 * ("pitfall" in kinds) + 1.0 * ("bonus" in kinds)
    assert sum(deltas.values()) == pytest.approx(spent)


@given(judged())
def test_a_step_has_a_delta_exactly_if_a_scored_criterion_of_a_step_kind_names_it(case):
    rubric, scores, steps, _ = case
    attributed = {
        step
        for c, score, step in zip(rubric, scores, steps, strict=True)
        if c["kind"] in ("suggest", "pitfall", "bonus") and score is not None and step != -1
    }
    assert set(step_deltas(*case)) == attributed


@given(judged())
def test_counting_satisfied_criteria_only_removes_steps_and_changes_no_delta(case):
    every, satisfied = step_deltas(*case), step_deltas(*case, count_satisfied_only=True)
    assert satisfied == {step: delta for step, delta in every.items() if step in satisfied}
    assert all(every[step] == 0.0 for step in set(every) - set(satisfied))


def test_an_unscored_criterion_is_left_out_but_counts_in_the_size_of_its_kind():
    assert step_deltas(criteria("suggest", "suggest"), [1, None], [1, 1], 1) == {1: 0.4}


def test_a_step_with_only_unsatisfied_criteria_has_a_zero_unless_only_satisfied_ones_count():
    assert step_deltas(criteria("suggest"), [0], [1], 2) == {1: 0.0}
    assert step_deltas(criteria("suggest"), [0], [1], 2, count_satisfied_only=True) == {}


def test_budgets_are_parameters_and_a_pitfall_always_subtracts():
    rubric = criteria("suggest", "pitfall", "bonus")
    spent = step_deltas(rubric, [1, 1, 1], [1, 2, 3], 3, suggest=2, pitfall=0.5, bonus=4)
    assert spent == {1: 2.0, 2: -0.5, 3: 4.0}


def test_a_response_without_headers_accepts_only_no_step_and_the_whole_response():
    assert step_deltas(criteria("bonus", "bonus"), [1, 1], [-1, 0], 0) == {0: 0.5}
    with pytest.raises(ValueError, match=r"steps\[0\]"):
        step_deltas(criteria("bonus"), [1], [1], 0)


def test_deltas_outside_any_step_are_kept_on_request():
    criteria = [{"id": str(n), "kind": "suggest", "description": "d"} for n in range(4)]
    given = (criteria, [1.0, 1.0, 0.0, None], [-1, 1, -1, -1], 1)
    assert step_deltas(*given) == pytest.approx({1: 0.2})
    assert step_deltas(*given, keep_no_step=True) == pytest.approx({-1: 0.2, 1: 0.2})


def test_numpy_arrays_work_like_lists():
    assert step_deltas(criteria("bonus", "suggest"), np.array([1.0, 0.0]), np.array([1, 2]), 2) == {1: 1.0, 2: 0.0}


@pytest.mark.parametrize("step", [-2, 4, None, 1.0, "1"])
def test_a_step_outside_the_response_is_refused_by_its_index(step):
    with pytest.raises(ValueError, match=r"steps\[1\]"):
        step_deltas(criteria("bonus", "bonus"), [1, 1], [1, step], 3)


def test_the_step_of_a_failed_verdict_is_ignored():
    assert step_deltas(criteria("bonus", "bonus"), [1, None], [1, None], 3) == {1: 0.5}


def test_an_answer_needs_no_step():
    assert step_deltas(criteria("answer", "bonus"), [1, 1], [None, 1], 3) == {1: 1.0}


def test_a_different_number_of_steps_than_criteria_is_refused():
    with pytest.raises(ValueError, match="1 steps for 2 criteria"):
        step_deltas(criteria("bonus", "bonus"), [1, 1], [1], 3)
