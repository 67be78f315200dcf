"""Calibrations are fitted as in the papers, keep the order of verdicts, and lower the error where they should."""

import math
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from judge_server.evaluation.fitting.calibrations import (
    CONFIDENCE,
    FEWEST_LABELS,
    LABELS_FOR_BETA,
    LABELS_OF_A_PART,
    METHODS,
    SPREAD_OF_JUDGES,
    SPREAD_OF_PARTS,
    Method,
    NotEnoughLabelsError,
    OutOfFold,
    band_for_error,
    before_and_after,
    best_method,
    cross_validate,
    fit_calibration,
    shrunk_platt,
)
from judge_server.evaluation.metrics import VerdictArrays
from judge_server.evaluation.report import Measured
from judge_server.judging.calibration import ProbabilityMap, criterion_key


def drawn(n: int, seed: int = 0, slope: float = 0.4, shift: float = -0.8) -> tuple[list[float], list[bool]]:
    """Raw probabilities of an overconfident judge that says yes too often, and labels."""
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(0.5, 2.0, n)
    labels = rng.random(n) < 1 / (1 + np.exp(-(slope * log_odds + shift)))
    return (1 / (1 + np.exp(-log_odds))).tolist(), labels.tolist()


def fit_map(
    raw: list[float], labels: list[bool], method: Method, threshold: float | Literal["balanced"] = 0.5
) -> ProbabilityMap:
    """The map that is fitted where there is one criterion."""
    some = [
        Measured(f"r{n}", "c", float(y), 1.0, p, p, "point") for n, (p, y) in enumerate(zip(raw, labels, strict=True))
    ]
    descriptions = {(one.row, "c"): "A." for one in some}
    return fit_calibration(some, descriptions, name="n", method=method, threshold=threshold)[1].default


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
    """Separable labels have no finite logistic fit; shrinkage keeps the map near the neutral one."""
    raw, labels = [0.4] * 10 + [0.6] * 10, [False] * 10 + [True] * 10
    assert 1.0 < fit_map(raw, labels, "platt").slope < 20.0


def test_without_labels_a_map_is_neutral() -> None:
    nothing = np.zeros(0)
    assert shrunk_platt(nothing, nothing.astype(bool)) == pytest.approx(np.zeros((1, 2)))


@given(
    st.lists(st.tuples(st.floats(0.01, 0.99), st.booleans(), st.sampled_from(["a", "b"])), min_size=1, max_size=30),
    st.lists(st.floats(-1, 1), min_size=6, max_size=6),
)
def test_a_shrunk_map_is_the_mode_of_the_posterior(labelled: list[tuple[float, bool, str]], step: list[float]) -> None:
    p, y = np.array([one[0] for one in labelled]), np.array([one[1] for one in labelled])
    member = np.array([[one[2] == "a", one[2] == "b"] for one in labelled])

    def log_posterior(own: np.ndarray) -> float:
        spreads = (SPREAD_OF_JUDGES, SPREAD_OF_PARTS, SPREAD_OF_PARTS)
        prior = -float(((own / np.array(spreads)) ** 2).sum()) / 2
        for raw, label, of in zip(p, y, member, strict=True):
            u, a = own[0] + of @ own[1:]
            odds = math.exp(u) * math.log(raw / (1 - raw)) + a
            prior -= math.log1p(math.exp(-odds if label else odds))
        return float(prior)

    found = shrunk_platt(p, y, member)
    for size in (0.01, 0.1, 1.0):
        assert log_posterior(found) >= log_posterior(found + size * np.reshape(step, (3, 2))) - 1e-6


def test_a_balanced_threshold_is_the_best_one() -> None:
    raw, labels = drawn(400)
    fitted = fit_map(raw, labels, "platt", "balanced")
    truth = np.array(labels)
    calibrated = np.array([fitted.calibrate(p) for p in raw])

    def balanced(threshold: float) -> float:
        said = calibrated >= threshold
        return float((said[truth].mean() + (~said[~truth]).mean()) / 2)

    assert balanced(fitted.threshold) >= max(balanced(t) for t in np.linspace(0.01, 0.99, 99)) - 1e-12


@pytest.mark.parametrize("labels", [[True] * 50, [True, False] * 3])
def test_too_few_labels_are_refused(labels: list[bool]) -> None:
    with pytest.raises(NotEnoughLabelsError, match="are too few to fit on"):
        fit_map([0.5] * len(labels), labels, "platt")


def test_labels_that_decrease_with_the_probability_are_refused() -> None:
    with pytest.raises(ValueError, match="do not rise"):
        fit_map([0.1, 0.9] * 50, [True, False] * 50, "platt")


def test_the_method_depends_on_the_number_of_labels() -> None:
    assert (best_method(LABELS_FOR_BETA - 1), best_method(LABELS_FOR_BETA)) == ("platt", "beta")


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


@pytest.mark.parametrize("method", METHODS)
def test_kinds_and_criteria_with_enough_labels_get_their_own_maps(method: Method) -> None:
    points, texts = measured(2 * LABELS_OF_A_PART, "point", "A.", 0.5, 1)
    pitfalls, more = measured(2 * LABELS_OF_A_PART, "pitfall", "B.", -0.5, 2)
    few, others = measured(3, "bonus", "C.", 0.0, 3)
    descriptions = texts | more | others
    _, fitted = fit_calibration([*points, *pitfalls, *few], descriptions, name="n", method=method)
    assert set(fitted.by_kind) == {"point", "pitfall"}
    assert set(fitted.by_criterion) == {criterion_key("A."), criterion_key("B.")}
    assert fitted.items == 4 * LABELS_OF_A_PART + 3
    again = fit_calibration([*few, *pitfalls, *points], descriptions, name="n", method=method)[1]
    assert again.fitted_on == fitted.fitted_on


def test_a_criterion_with_few_labels_is_drawn_to_the_others() -> None:
    """The labels of A say that the judge says yes too readily; eight of B say the opposite."""
    many, texts = measured(200, "point", "A.", -2.0, 1)
    few, more = measured(8, "point", "B.", 2.0, 2)
    maps = fit_calibration([*many, *few], texts | more, name="n")[1].by_criterion
    _, alone = shrunk_platt(np.array([one.raw_probability for one in few]), np.array([one.label == 1 for one in few]))[
        0
    ]
    assert maps[criterion_key("A.")].intercept < maps[criterion_key("B.")].intercept < alone


def test_a_calibration_is_measured_on_rows_that_it_was_not_fitted_on() -> None:
    """Each row's labels are opposed to those of most others, which a map that had seen the row would use."""
    some = [Measured(f"r{n}", "c", float(n % 2), 1.0, 0.5, 0.5, "point") for n in range(20)]
    descriptions = {(one.row, "c"): "A." for one in some}
    found = cross_validate(some, descriptions, method="platt").calibrated
    seen = fit_calibration(some, descriptions, name="n")[1].default.calibrate(0.5)
    assert np.mean((found.probabilities - found.labels) ** 2) > np.mean((seen - found.labels) ** 2) + 1e-4
    with pytest.raises(NotEnoughLabelsError, match="of one row"):
        cross_validate([one._replace(row="r") for one in some], {("r", "c"): "A."}, method="platt")


def test_a_text_under_two_kinds_follows_its_kind_in_any_order() -> None:
    points, texts = measured(40, "point", "Same.", 1.5, 1)
    mistakes = [one._replace(row=f"m{one.row}", kind="pitfall") for one in measured(40, "pitfall", "Same.", -1.5, 2)[0]]
    others, more = measured(10, "point", "B.", 0.0, 3)
    texts |= more | {(one.row, "c"): "Same." for one in mistakes}
    maps = [
        fit_calibration(some, texts, name="n")[1]
        for some in ([*points, *mistakes, *others], [*mistakes, *points, *others])
    ]
    assert [set(one.by_criterion) for one in maps] == [{criterion_key("B.")}] * 2
    assert maps[0].by_kind["point"].intercept > maps[0].by_kind["pitfall"].intercept
    assert maps[0].by_kind["point"].intercept == pytest.approx(maps[1].by_kind["point"].intercept, abs=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_fold_whose_labels_are_all_the_same_is_measured_too(method: Method) -> None:
    some = [Measured(f"r{n}", "c", float(n == 0), 1.0, 0.1 + n / 20, 0.1 + n / 20, "point") for n in range(8)]
    found = cross_validate(some, {(one.row, "c"): "A." for one in some}, method=method, threshold="balanced")
    assert len(found.rows) == 8


@pytest.mark.parametrize("method", ["beta", "isotonic"])
def test_a_criterion_whose_labels_fall_follows_the_others(method: Method) -> None:
    rising, texts = measured(400, "point", "A.", 0.0, 1)
    falling, more = measured(150, "point", "B.", 0.0, 2)
    falling = [one._replace(label=1.0 - one.label) for one in falling]
    maps = fit_calibration([*rising, *falling], texts | more, name="n", method=method)[1]
    assert maps.by_criterion[criterion_key("B.")] == maps.default


def test_figures_are_compared_before_and_after() -> None:
    labelled, texts = measured(400, "pitfall", "B.", -0.5, 9)
    found = before_and_after(cross_validate(labelled, texts, method="platt"))
    assert found["difference"]["brier"].high < 0
    assert found["difference"]["brier"].value == pytest.approx(
        found["calibrated"]["brier"].value - found["raw"]["brier"].value
    )


def verdicts_with(labels: list[bool], p: list[float]) -> OutOfFold:
    """Verdicts of a row each."""
    y, probabilities = np.array(labels), np.array(p)
    arrays = VerdictArrays(y, probabilities >= 0.5, probabilities)
    return OutOfFold(tuple([f"r{n}" for n in range(len(y))]), arrays, arrays, np.ones(len(y), dtype=bool))


def test_a_band_keeps_its_promise_on_other_verdicts() -> None:
    """Of 300 draws, at most one in twenty has a band that lets through more errors than promised, but for chance."""
    rng = np.random.default_rng(5)

    def draw(n: int) -> OutOfFold:
        odds = rng.normal(0, 2.5, n)
        labels = rng.random(n) < 1 / (1 + np.exp(-odds))
        return verdicts_with(labels.tolist(), (1 / (1 + np.exp(-odds))).tolist())

    others, broken, found = draw(20_000), 0, 0
    for _ in range(300):
        try:
            band = band_for_error(draw(150), 0.1)
        except NotEnoughLabelsError:
            continue
        outside, found = others.with_band(band).certain, found + 1
        said = others.calibrated
        broken += bool((said.satisfied != said.labels)[outside].mean() > 0.1)
    assert found > 100
    assert broken <= found * (1 - CONFIDENCE) + 3 * math.sqrt(found * 0.05 * 0.95)


def test_a_judge_at_chance_gets_no_band_however_many_labels() -> None:
    rng = np.random.default_rng(7)
    chance = verdicts_with((rng.random(3000) < 0.5).tolist(), rng.random(3000).tolist())
    with pytest.raises(NotEnoughLabelsError, match="cannot show that at most 10% of the decided verdicts are wrong"):
        band_for_error(chance, 0.1)


def test_a_sure_part_is_decided_though_the_rest_is_not() -> None:
    """All of 120 sure verdicts are right, and half of 40 unsure ones: at most 5% of the sure ones are wrong."""
    labels = [False] * 120 + [True, False] * 20
    low, high = band_for_error(verdicts_with(labels, [0.02] * 120 + [0.55] * 40), 0.05)
    assert 0.02 < low <= 0.5
    assert high > 0.55


def test_few_labels_promise_nothing_however_right_the_judge_is() -> None:
    right = verdicts_with([True, False] * 8, [0.99, 0.01] * 8)
    with pytest.raises(NotEnoughLabelsError, match="Label more rows"):
        band_for_error(right, 0.05)
    many = verdicts_with([True, False] * 80, [0.99, 0.01] * 80)
    assert band_for_error(many, 0.05) == (0.5, 0.5)


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
