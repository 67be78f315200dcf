"""Calibrations are fitted as in the papers, keep the order of verdicts, and lower the error where they should."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from judge_server.evaluation.fitting.calibrations import (
    FEWEST_LABELS,
    LABELS_FOR,
    LABELS_OF_A_PART,
    METHODS,
    Method,
    NotEnoughLabelsError,
    before_and_after,
    best_method,
    fit_calibration,
    fit_map,
)
from judge_server.evaluation.report import Measured
from judge_server.judging.calibration import ProbabilityMap, criterion_key


def drawn(n: int, seed: int = 0, slope: float = 0.4, shift: float = -0.8) -> tuple[list[float], list[bool]]:
    """Raw probabilities of an overconfident judge that says yes too often, and labels."""
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(0.5, 2.0, n)
    labels = rng.random(n) < 1 / (1 + np.exp(-(slope * log_odds + shift)))
    return (1 / (1 + np.exp(-log_odds))).tolist(), labels.tolist()


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=FEWEST_LABELS, max_size=60),
    st.sampled_from(METHODS),
    st.lists(st.floats(0, 1), min_size=2, max_size=6),
)
def test_every_map_keeps_the_order_of_probabilities(
    labelled: list[tuple[float, bool]], method: Method, asked: list[float]
) -> None:
    raw, labels = [p for p, _ in labelled], [label for _, label in labelled]
    assume(0 < sum(labels) < len(labels))
    try:
        fitted = fit_map(raw, labels, method)
    except ValueError:
        assume(False)
    mapped = [fitted.calibrate(p) for p in sorted(asked)]
    assert all(0 <= p <= 1 for p in mapped)
    assert all(low <= high + 1e-12 for low, high in pairwise(mapped))


def test_platt_scaling_is_scikit_learns_logistic_regression_where_labels_are_many() -> None:
    raw, labels = drawn(4000)
    fitted = fit_map(raw, labels, "platt")
    log_odds = np.log(raw) - np.log1p(-np.array(raw))
    theirs = LogisticRegression(C=1e9).fit(log_odds[:, None], labels)
    assert fitted.slope == pytest.approx(float(theirs.coef_[0][0]), abs=0.01)
    assert fitted.intercept == pytest.approx(float(theirs.intercept_[0]), abs=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_lowers_the_brier_score_of_an_overconfident_judge(method: Method) -> None:
    fitted = fit_map(*drawn(1000), method)
    raw, labels = drawn(5000, seed=1)
    brier = np.mean((np.array(raw) - labels) ** 2)
    assert np.mean((np.array([fitted.calibrate(p) for p in raw]) - labels) ** 2) < brier - 0.02


def test_beta_calibration_drops_a_coefficient_that_would_reverse_the_order() -> None:
    rng = np.random.default_rng(3)
    raw = rng.random(400)
    labels = rng.random(400) < np.where(raw < 0.5, 0.2 - 0.1 * raw, raw)
    fitted = fit_map(raw.tolist(), labels.tolist(), "beta")
    assert fitted.slope >= 0
    assert fitted.slope_of_no is not None
    assert fitted.slope_of_no >= 0


def test_a_few_extreme_labels_do_not_bend_a_map_far() -> None:
    """Separable labels have no finite logistic fit; the ridge keeps the map near the neutral one."""
    raw, labels = [0.4] * 10 + [0.6] * 10, [False] * 10 + [True] * 10
    assert 1.0 < fit_map(raw, labels, "platt").slope < 20.0


def test_a_balanced_threshold_is_the_best_one() -> None:
    raw, labels = drawn(400)
    fitted = fit_map(raw, labels, "platt", "balanced")
    truth = np.array(labels)
    calibrated = np.array([fitted.calibrate(p) for p in raw])

    def balanced(threshold: float) -> float:
        said = calibrated >= threshold
        return float((said[truth].mean() + (~said[~truth]).mean()) / 2)

    assert balanced(fitted.threshold) >= max(balanced(t) for t in np.linspace(0.01, 0.99, 99)) - 1e-12


@pytest.mark.parametrize("labels", [[True] * 50, [True, False] * 9])
def test_too_few_labels_are_refused(labels: list[bool]) -> None:
    with pytest.raises(NotEnoughLabelsError, match="are too few to fit on"):
        fit_map([0.5] * len(labels), labels, "platt")


def test_labels_that_decrease_with_the_probability_are_refused() -> None:
    with pytest.raises(ValueError, match="do not rise"):
        fit_map([0.1, 0.9] * 50, [True, False] * 50, "platt")


def test_the_method_depends_on_the_number_of_labels() -> None:
    assert [best_method(least) for least in LABELS_FOR.values()] == list(LABELS_FOR)
    assert best_method(LABELS_FOR["platt"] - 1) == "temperature"


def measured(
    n: int, kind: str, text: str, shift: float, seed: int
) -> tuple[list[Measured], dict[tuple[str, str], str]]:
    """Verdicts on one criterion."""
    raw, labels = drawn(n, seed, shift=shift)
    rows = [f"{text}-{place}" for place in range(n)]
    verdicts = [
        Measured(row, "c", float(label), float(p >= 0.5), p, p, kind)
        for row, p, label in zip(rows, raw, labels, strict=True)
    ]
    return verdicts, {(row, "c"): text for row in rows}


def test_kinds_and_criteria_with_enough_labels_get_their_own_maps() -> None:
    points, texts = measured(2 * LABELS_OF_A_PART, "point", "A.", 0.5, 1)
    pitfalls, more = measured(2 * LABELS_OF_A_PART, "pitfall", "B.", -0.5, 2)
    few, others = measured(10, "bonus", "C.", 0.0, 3)
    _, fitted = fit_calibration([*points, *pitfalls, *few], texts | more | others, name="n", method="platt")
    assert set(fitted.by_kind) == {"point", "pitfall"}
    assert set(fitted.by_criterion) == {criterion_key("A."), criterion_key("B.")}
    assert fitted.items == 4 * LABELS_OF_A_PART + 10
    again = fit_calibration([*few, *pitfalls, *points], texts | more | others, name="n", method="platt")[1]
    assert again.fitted_on == fitted.fitted_on
    held, held_texts = measured(400, "pitfall", "B.", -0.5, 9)
    found = before_and_after(held, held_texts, fitted)
    assert found["difference"]["brier"].high < 0
    assert found["difference"]["brier"].value == pytest.approx(
        found["calibrated"]["brier"].value - found["raw"]["brier"].value
    )


@given(st.floats(0, 1), st.floats(0.1, 5), st.floats(0.1, 5), st.floats(-3, 3))
def test_beta_calibration_is_the_papers_formula(raw: float, a: float, b: float, c: float) -> None:
    assume(1e-6 < raw < 1 - 1e-6)
    expected = 1 / (1 + 1 / (math.exp(c) * raw**a / (1 - raw) ** b))
    assert ProbabilityMap(a, c, b).calibrate(raw) == pytest.approx(expected)


@given(st.floats(0, 1))
def test_an_isotonic_map_is_linear_between_its_points(raw: float) -> None:
    points = ((0.1, 0.2), (0.5, 0.2), (0.9, 0.8))
    expected = float(np.interp(raw, [x for x, _ in points], [y for _, y in points]))
    assert ProbabilityMap(points=points).calibrate(raw) == pytest.approx(expected)


@pytest.mark.parametrize("points", [((0.5, 0.2), (0.4, 0.3)), ((0.1, 0.5), (0.2, 0.4)), ((0.1, 1.5),)])
def test_points_that_do_not_rise_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="points of an isotonic map"):
        ProbabilityMap(points=points)
