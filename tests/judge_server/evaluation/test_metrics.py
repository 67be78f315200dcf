"""Figures of agreement equal scikit-learn's, weighted or not, and intervals come from resampled rows."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from judge_server.evaluation.metrics import (
    RowBootstrap,
    VerdictArrays,
    reliability,
    roc,
    weighted_spearman,
)
from judge_server.evaluation.report import Measured, agreement
from judge_server.intervals import wilson
from tests.hypothesis_examples import examples

JUDGED = st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 4)), min_size=4, max_size=40)


def arrays(judged: list[tuple[bool, int, int]]) -> tuple[VerdictArrays, np.ndarray, np.ndarray, np.ndarray]:
    """The verdicts, labels, probabilities and weights."""
    labels = np.array([label for label, _, _ in judged])
    probabilities = np.array([tenth / 20 for _, tenth, _ in judged])
    return (
        VerdictArrays(labels, probabilities >= 0.5, probabilities),
        labels,
        probabilities,
        np.array([w for *_, w in judged]),
    )


@given(JUDGED)
def test_every_figure_equals_scikit_learns(judged: list[tuple[bool, int, int]]) -> None:
    sample, labels, probabilities, weights = arrays(judged)
    assume(labels.any() and not labels.all())
    said = probabilities >= 0.5
    for w in (np.ones(len(labels)), weights.astype(float)):
        figures = {name: float(value[0]) for name, value in sample.figures(w[None, :]).items()}
        assert figures["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(labels, said, sample_weight=w))
        assert figures["balanced_accuracy"] == pytest.approx(
            sklearn_metrics.balanced_accuracy_score(labels, said, sample_weight=w)
        )
        assert figures["kappa"] == pytest.approx(sklearn_metrics.cohen_kappa_score(labels, said, sample_weight=w))
        assert figures["f1"] == pytest.approx(
            sklearn_metrics.f1_score(labels, said, average="macro", labels=[0, 1], sample_weight=w, zero_division=0)
        )
        assert figures["auroc"] == pytest.approx(sklearn_metrics.roc_auc_score(labels, probabilities, sample_weight=w))
        assert figures["brier"] == pytest.approx(
            sklearn_metrics.brier_score_loss(labels, probabilities, sample_weight=w)
        )


@given(JUDGED)
def test_a_weight_counts_as_repetitions(judged: list[tuple[bool, int, int]]) -> None:
    sample, labels, probabilities, weights = arrays(judged)
    again = np.repeat(labels, weights), np.repeat(probabilities, weights)
    repeated = VerdictArrays(again[0], again[1] >= 0.5, again[1]).figures()
    for name, value in sample.figures(weights[None, :].astype(float)).items():
        assert value[0] == pytest.approx(repeated[name][0], nan_ok=True)


@given(JUDGED)
def test_the_area_under_the_roc_curve_is_the_auroc(judged: list[tuple[bool, int, int]]) -> None:
    sample, labels, probabilities, _ = arrays(judged)
    curve = roc(probabilities.tolist(), labels.tolist())
    (area,) = sample.figures()["auroc"]
    assert (not curve) == np.isnan(area)
    if curve:
        false, true = zip(*curve, strict=True)
        assert np.trapezoid(true, false) == pytest.approx(area)


@given(JUDGED)
def test_reliability_bins_hold_every_judgement_once(judged: list[tuple[bool, int, int]]) -> None:
    sample, labels, probabilities, _ = arrays(judged)
    bins = reliability(probabilities.tolist(), labels.tolist())
    assert sum(one.n for one in bins) == len(judged)
    gaps = sum(one.n * abs(one.share_met - one.mean_probability) for one in bins if one.n) / len(judged)
    assert sample.figures()["ece"][0] == pytest.approx(gaps)
    assert all(one.share_low <= one.share_met <= one.share_high for one in bins if one.n)


def test_a_figure_that_needs_both_labels_is_undefined_with_one() -> None:
    figures = VerdictArrays(np.ones(3, dtype=bool), np.ones(3, dtype=bool), np.full(3, 0.9)).figures()
    assert all(math.isnan(figures[name][0]) for name in ("balanced_accuracy", "kappa", "f1", "auroc"))
    assert figures["accuracy"][0] == 1.0


def test_without_probabilities_there_is_no_calibration() -> None:
    scores = np.array([1.0, 0.0])
    figures = VerdictArrays(scores > 0, scores > 0, scores, have_probabilities=False).figures()
    assert math.isnan(figures["ece"][0])
    assert math.isnan(figures["brier"][0])
    assert figures["auroc"][0] == 1.0


def test_rows_are_resampled_whole() -> None:
    """Ten equal judgements of one row add no information: the interval is that of the two rows."""
    rows = ["a"] * 10 + ["b"] * 10
    found = RowBootstrap(rows).mean(rows, [1.0] * 10 + [0.0] * 10)
    assert tuple(found) == (0.5, 0.0, 1.0)


def test_one_row_has_no_interval_however_many_judgements_it_has() -> None:
    rows, labels = ["a"] * 4, np.array([True, False, True, False])
    bootstrap = RowBootstrap([*rows, "b"])
    right, wrong = (VerdictArrays(labels, said, said.astype(float)) for said in (labels, ~labels))
    found = [bootstrap.mean(rows, [1.0, 0.0, 1.0, 1.0]), *bootstrap.differences(rows, wrong, right).values()]
    assert [one.value for one in found[:3]] == [0.75, 1.0, 1.0]
    assert all(math.isnan(one.low) and math.isnan(one.high) for one in found)


def test_every_resample_has_both_labels_if_the_judgements_have() -> None:
    labels = np.arange(20) == 0
    weights = RowBootstrap(range(20)).weights(range(20), labels)
    assert weights[:, labels].sum(axis=1).min() > 0
    assert weights[:, ~labels].sum(axis=1).min() > 0


@given(st.integers(0, 30), st.integers(1, 30))
def test_wilsons_interval_contains_the_proportion(successes: int, more: int) -> None:
    low, high = wilson(successes, successes + more)
    assert 0 <= low <= successes / (successes + more) <= high <= 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_spearmans_correlation_is_scipys(pairs: list[tuple[int, int]]) -> None:
    from scipy.stats import spearmanr

    x, y = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    assert weighted_spearman(x, y)(np.ones((1, len(x))))[0] == pytest.approx(spearmanr(x, y).statistic)


@pytest.mark.parametrize("rows", [30, 120])
def test_intervals_cover_the_truth_about_as_often_as_they_claim(rows: int) -> None:
    """With an accuracy of 0.7 and four equal judgements a row, the 95% interval contains 0.7 in 88% or more."""
    rng, covered, tries = np.random.default_rng(1), 0, examples(100)
    for _ in range(tries):
        right = np.repeat(rng.random(rows) < 0.7, 4).astype(float)
        ids = np.repeat(np.arange(rows), 4).tolist()
        found = RowBootstrap(ids, 300, seed=int(rng.integers(2**31))).mean(ids, right.tolist())
        covered += found.low <= 0.7 <= found.high
    assert covered >= 0.88 * tries - 2


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(0, 2)), min_size=1, max_size=40))
def test_the_calibration_error_within_parts_is_the_mean_of_theirs_by_size(
    given_: list[tuple[bool, float, int]],
) -> None:
    labels, p, part = (np.array(column) for column in zip(*given_, strict=True))
    arrays = VerdictArrays(labels.astype(bool), p >= 0.5, p)
    ones = np.ones((1, len(p)))
    each = [
        float(VerdictArrays(arrays.labels[of], arrays.satisfied[of], p[of]).figures()["ece"][0]) * of.sum()
        for one in np.unique(part)
        if (of := part == one).any()
    ]
    assert arrays.calibration_error(ones, part)[0] == pytest.approx(sum(each) / len(p))


def test_errors_within_tasks_show_where_those_over_all_cancel() -> None:
    """One task is met as often as the judge says no, and the other the other way round."""
    some = [
        Measured(f"{task}{n}", "c", float((n % 10 < 8) == high), 1.0, 0.5, 0.5, "point", task)
        for task, high in (("a", True), ("b", False))
        for n in range(40)
    ]
    (found,) = agreement(some, RowBootstrap([one.row for one in some]))["calibration_within"]
    assert (found.by, found.parts, found.n) == ("task", 2, 80)
    assert found.ece.value == pytest.approx(0.3)
    assert found.ece.low <= 0.3 <= found.ece.high
    assert 0.02 < found.by_chance < 0.12
    assert agreement(some, RowBootstrap([one.row for one in some]))["agreement"][0].figures["ece"].value < 1e-9
