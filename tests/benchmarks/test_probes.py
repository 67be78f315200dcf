"""The benchmark of hidden states: nothing is fitted on what is measured, and knowledge in the states is found."""

import numpy as np
import pytest
from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import Item
from benchmarks.agreement.probes import (
    Sample,
    curve_rows,
    data_set,
    other_tasks,
    states_of,
    with_labels,
    without_labels,
)

HIDDEN = 12


def drawn(task: str, n: int, knows: float, seed: int) -> list[Sample]:
    """Samples of a judge whose words say nothing, and whose states hold the label along one direction."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        met = bool(rng.random() < 0.5)
        state = rng.normal(0, 1, HIDDEN)
        state[0] += knows * (1 if met else -1)
        p = float(rng.uniform(0.3, 0.7))
        verdict = ItemVerdict(p >= 0.5, p, p, p, None, 1.0, 1.0, 0.0, 0.0)
        item = Item(task, f"{task}{number // 2}", "?", f"r{number}", "Is right.", met)
        found.append(Sample(item, verdict, np.stack([rng.normal(0, 1, HIDDEN), state])))
    return found


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Three data sets whose states know the label in the same way."""
    return [one for seed, task in enumerate(("llmbar", "wice", "biggen")) for one in drawn(task, 160, 1.5, seed)]


def test_tasks_that_share_rows_are_one_data_set() -> None:
    assert {data_set(task) for task in ("gsm8k-answer", "gsm8k-steps")} == {"gsm8k"}
    assert {data_set(task) for task in ("faithful", "grounded", "contractnli")} == {"contractnli"}
    assert {data_set(task) for task in ("wice", "wice-prompt")} == {"wice"}


def test_nothing_is_fitted_on_the_data_set_that_is_left_out(samples: list[Sample]) -> None:
    left_out = np.array([one.item.task == "wice" for one in samples])
    states = states_of(samples, 1)
    (_, before), (_, after) = [
        other_tasks(samples, seen, "wice") for seen in (states, np.where(left_out[:, None], 50 * states, states))
    ]
    assert np.allclose(before[~left_out], after[~left_out])
    assert not np.allclose(before[left_out], after[left_out])


def test_a_probe_of_other_tasks_finds_what_the_words_lack(samples: list[Sample]) -> None:
    found = without_labels(samples, 1)
    right = {
        name: np.mean([own[one.item.key].satisfied == one.item.label for one in samples]) for name, own in found.items()
    }
    assert right["words"] < 0.6
    assert right["probe"] > 0.85
    assert right["both"] > right["words"] + 0.05
    mute = without_labels(samples, 0)["probe"]
    assert np.mean([mute[one.item.key].satisfied == one.item.label for one in samples]) < 0.6


def test_labels_of_the_task_use_what_the_states_know_and_are_measured_on_other_rows(samples: list[Sample]) -> None:
    curves = with_labels(samples, 1, "held", draws=3)
    assert curves["probe"]["wice"][32]["auroc"] > curves["words"]["wice"][32]["auroc"] + 0.2
    nothing = with_labels(samples, 0, "held", draws=6)
    assert nothing["probe"]["wice"][32]["auroc"] < 0.65
    rows = curve_rows(curves)
    assert {row["labels"] for row in rows} == {8, 16, 32, 64}
    assert all(row["balanced accuracy"].count(" / ") == 2 for row in rows)
