"""What the agreement benchmark prints is computed right, on figures small enough to check by hand."""

import json
import math
from pathlib import Path

import pytest
from benchmarks.agreement.__main__ import compare
from benchmarks.agreement.tasks import Task, gsm8k, processbench
from benchmarks.figures import agreement, auroc


def test_agreement_is_the_share_of_equal_verdicts_and_kappa_leaves_chance_out() -> None:
    observed, kappa = agreement([1, 1, 1, 0], [1, 1, 0, 0])
    assert observed == 0.75
    assert kappa == pytest.approx((0.75 - 0.5) / (1 - 0.5))


def test_a_judge_that_always_says_yes_has_no_kappa_to_speak_of() -> None:
    assert agreement([1, 1, 1, 1], [1, 0, 1, 0]) == (0.5, 0.0)


def test_auroc_counts_ties_half_and_knows_when_it_is_undefined() -> None:
    assert auroc([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0]) == 0.875
    assert math.isnan(auroc([0.9, 0.1], [1, 1]))


def test_failed_verdicts_are_counted_apart_and_compared_with_nothing() -> None:
    task = Task("weighted_mean", labels={"g": [{"a": 1, "b": 0}]})
    ok = {"criterion": "a", "status": "ok", "score": 1.0, "probability": 0.9, "step": None}
    lost = {"criterion": "b", "status": "failed", "score": None, "probability": None, "step": None}
    row = compare("t", task, "m", [{"id": "g", "responses": [{"reward": 1.0, "verdicts": [ok, lost]}]}])
    assert (row["verdicts"], row["failed"], row["agreement"]) == (1, 1, "1.00")


def test_rows_become_groups_with_a_label_for_each_verdict(tmp_path: Path) -> None:
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    row = {"question": "2 + 2?", "ground_truth": "2 + 2 = 4\nA: 4"}
    row |= {model: {"is_correct": model.startswith("175b"), "solution": "A: 4"} for model in models}
    (tmp_path / "gsm8k_model_rollouts.jsonl").write_text(json.dumps(row))
    steps = {
        "id": "p",
        "split": "gsm8k",
        "problem": "?",
        "steps": ["a", "b"],
        "label": 1,
        "final_answer_correct": False,
    }
    (tmp_path / "processbench.jsonl").write_text(json.dumps(steps))

    rollouts, solutions = gsm8k(tmp_path, 5), processbench(tmp_path, 5)
    assert rollouts.groups[0]["ground_truth"] == "4"
    assert rollouts.labels["gsm8k-0"] == [{"answer": 0}, {"answer": 0}, {"answer": 1}, {"answer": 1}]
    assert solutions.groups[0]["responses"] == ["### Step 1:\na\n### Step 2:\nb", "### Step 1:\na"]
    assert solutions.steps == {"p": 2}
    criteria = [c for task in (rollouts, solutions) for group in task.groups for c in group["rubric"]["criteria"]]
    assert all(criterion["verification"] == {"method": "judge"} for criterion in criteria)
