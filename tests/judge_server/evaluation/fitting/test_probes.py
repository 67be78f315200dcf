"""Fitting probes: what the states know is found, noise is not, and too few labels are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.evaluation.fitting.calibrations import NotEnoughLabelsError
from judge_server.evaluation.fitting.probes import (
    calls_about,
    cross_validate_probe,
    fit_probe,
    normalised,
)
from judge_server.evaluation.labelled import FEWEST_LABELS_OF_A_PROBE, LabelledResponse
from judge_server.evaluation.metrics import Bools, Floats
from judge_server.ports import TokenChoice
from tests.judge_server import support
from trainer_client.wire import RubricContent

HIDDEN = 64


def drawn(n: int, knows: float, seed: int, share: float = 0.5) -> tuple[Floats, Bools]:
    """States like those of a model: large in the same few dimensions, with the label along one direction."""
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < share
    labels[:4] = [True, False, True, False]
    states = rng.normal(0, 1, (n, HIDDEN))
    states[:, 5] += np.where(labels, knows, -knows)
    states[:, :2] += [[30, -20]]
    return normalised(states), labels


def rows(n: int) -> list[str]:
    """Two verdicts to a row."""
    return [f"row {place // 2}" for place in range(n)]


@given(st.integers(16, 60), st.integers(0, 2**16))
@settings(max_examples=25)
def test_labels_turned_around_turn_the_probabilities_around(n: int, seed: int) -> None:
    states, labels = drawn(n, 1.0, seed)
    p = fit_probe(rows(len(labels)), states, labels).probabilities(states)
    assert np.allclose(fit_probe(rows(n), states, ~labels).probabilities(states), 1 - p, atol=1e-2)


@given(st.integers(16, 60), st.integers(0, 2**16))
@settings(max_examples=25)
def test_a_dimension_that_never_varies_changes_nothing_and_breaks_nothing(n: int, seed: int) -> None:
    states, labels = drawn(n, 1.0, seed)
    states[:, 9] = 0.0
    probe = fit_probe(rows(len(labels)), states, labels)
    assert np.isfinite(probe.direction).all()
    assert probe.direction[9] == pytest.approx(0.0)


def test_the_intercept_is_part_of_the_direction() -> None:
    states, labels = drawn(400, 0.0, 3, share=0.9)
    p = fit_probe(rows(len(labels)), states, labels).probabilities(drawn(400, 0.0, 4, share=0.9)[0])
    assert p.mean() == pytest.approx(0.9, abs=0.08)


def test_what_the_states_know_is_found_on_rows_that_were_not_fitted_on() -> None:
    states, labels = drawn(120, 2.0, 1)
    found = cross_validate_probe(rows(120), states, labels)
    assert (found.satisfied == labels).mean() > 0.85
    nothing = cross_validate_probe(rows(120), *drawn(120, 0.0, 2))
    assert (nothing.satisfied == nothing.labels).mean() < 0.65


def test_a_probe_that_knows_nothing_is_not_sure_of_itself() -> None:
    states, labels = drawn(24, 0.0, 7)
    unseen, others = drawn(200, 0.0, 8)
    p = fit_probe(rows(24), states, labels).probabilities(unseen)
    assert ((p - others) ** 2).mean() < 0.3
    assert np.abs(p - 0.5).mean() < 0.2


def test_a_row_is_not_judged_by_a_probe_that_has_seen_it() -> None:
    states, labels = drawn(60, 0.0, 5)
    names = [f"row {place // 6}" for place in range(60)]
    memorised = states.copy()
    memorised[:, 10] += 20 * np.array([place // 6 for place in range(60)])  # tells the row, and nothing else
    labels = np.array([place // 6 % 2 == 0 for place in range(60)])
    assert (cross_validate_probe(names, normalised(memorised), labels).satisfied == labels).mean() < 0.75


@pytest.mark.parametrize(
    "labels",
    [np.array([True, False] * 7), np.array([True] * 40), np.array([True] * 39 + [False])],
    ids=["too few", "one kind", "one of a kind"],
)
def test_too_few_labels_are_refused(labels: Bools) -> None:
    with pytest.raises(NotEnoughLabelsError, match=f"at least {FEWEST_LABELS_OF_A_PROBE}"):
        cross_validate_probe(rows(len(labels)), np.ones((len(labels), HIDDEN)), labels)


def test_labels_of_one_row_are_refused() -> None:
    states, labels = drawn(20, 1.0, 6)
    with pytest.raises(NotEnoughLabelsError, match="one row"):
        cross_validate_probe(["row"] * 20, states, labels)


async def test_the_calls_are_those_of_the_judge_without_what_programs_verify() -> None:
    asked = [
        {"id": "reason", "description": "Gives a reason."},
        {"id": "seven", "description": "Says 7.", "verification": {"method": "contains", "any_of": ["7"]}},
    ]
    rubric = RubricContent.model_validate({"criteria": asked})
    example = LabelledResponse("r", "Is 7 prime?", "Yes, 7 is.", rubric.criteria, {"reason": 1.0, "seven": 1.0})
    calls = await calls_about(await support.judge(), example, {})
    assert list(calls) == ["reason"]
    batch, call = calls["reason"]
    assert isinstance(call.answer, TokenChoice)
    assert "Gives a reason." in call.question
    assert "Yes, 7 is." in batch.shared
