"""The benchmark of few labels: what is measured was not labelled, and labels help where they can."""

import numpy as np
import pytest
from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import Item
from benchmarks.agreement.labels import LABELS, JudgedTask, check_bands, measure_labels, table, task_of


def drawn(name: str, n: int, slope: float, shift: float, seed: int = 0) -> JudgedTask:
    """Verdicts of a judge whose log-odds are those of the truth times a slope and shifted; two of each row."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(0, 2, n)
    labels = rng.random(n) < 1 / (1 + np.exp(-odds))
    raw = 1 / (1 + np.exp(-(slope * odds + shift)))
    items = [Item(name, f"{name}{i // 2}", "?", f"r{i}", "Is right.", bool(met)) for i, met in enumerate(labels)]
    verdicts = {
        item.key: ItemVerdict(bool(p >= 0.5), float(p), float(p), float(p), None, 1.0, 1.0, 0.0, 0.0)
        for item, p in zip(items, raw, strict=True)
    }
    return task_of(name, items, verdicts)


def test_no_row_is_both_labelled_and_measured() -> None:
    task = drawn("a", 150, 1.0, 0.0)
    given, rest = task.split(np.random.default_rng(1))
    assert len(given) == LABELS[-1]
    assert {task.verdicts[place].row for place in given}.isdisjoint(task.verdicts[place].row for place in rest)


def test_labels_mend_a_judge_that_says_yes_too_readily_and_leave_a_good_one_alone() -> None:
    biased, good = drawn("biased", 300, 1.0, 3.0), drawn("good", 300, 1.0, 0.0, seed=1)
    curves = measure_labels([biased, good], draws=12)
    accuracy, ece = curves["balanced_accuracy"], curves["ece"]
    assert accuracy["biased"][32] > accuracy["biased"][0] + 0.08
    assert ece["biased"][32] < ece["biased"][0] - 0.15
    assert accuracy["good"][32] > accuracy["good"][0] - 0.03
    rows = table(curves)
    assert rows[0]["figure"] == "balanced accuracy"
    assert {row["task"] for row in rows} == {"biased", "good", "mean of 2"}


def test_a_small_task_is_measured_with_the_labels_that_it_can_spare() -> None:
    curves = measure_labels([drawn("small", 44, 1.0, 0.0)], draws=2)
    assert set(curves["brier"]["small"]) == {0, 8, 16}


def test_there_is_no_mean_over_tasks_where_no_task_has_enough_labels() -> None:
    few = table(measure_labels([drawn("few", 40, 1.0, 0.0)], draws=1))
    assert few
    assert [row["task"] for row in few if row["task"] != "few"] == []


def test_a_band_promises_nothing_for_a_judge_at_chance() -> None:
    at_chance = drawn("chance", 200, 0.0, 0.0)
    noise = np.random.default_rng(3).random(200)
    shuffled = at_chance._replace(
        verdicts=tuple(
            [one._replace(raw_probability=float(p)) for one, p in zip(at_chance.verdicts, noise, strict=True)]
        )
    )
    sure, chance = check_bands([drawn("sure", 400, 3.0, 0.0), shuffled], 0.2, draws=5)
    assert float(sure["wrong"].rstrip("%")) == pytest.approx(15, abs=8)
    assert sure["no band"] == "0%"
    assert chance["no band"] == "100%"
