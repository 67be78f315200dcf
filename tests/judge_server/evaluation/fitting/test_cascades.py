"""Cascades keep the requested rate of changed verdicts; the model of Dawid and Skene finds which judges err."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import binom

from judge_server.evaluation.fitting.calibrations import NotEnoughLabelsError
from judge_server.evaluation.fitting.cascades import (
    FittedPanel,
    JudgementCost,
    VerdictPair,
    Votes,
    cascade_curve,
    digest_of_verdicts,
    fit_band,
    fit_dawid_skene,
    measure_panel,
)
from judge_server.evaluation.report import Measured
from judge_server.judging.combining import Band, DawidSkene

FREE = JudgementCost(1.0, 100.0, 1.0)
DEAR = JudgementCost(10.0, 300.0, 1.0)


def pair(row: int, p: float, large: bool, label: bool = True) -> VerdictPair:
    """A verdict of a small judge with this probability, and one of a large judge."""
    common = (f"r{row}", "c", float(label))
    return VerdictPair(Measured(*common, float(p >= 0.5), p, p), Measured(*common, float(large)))


def drawn(rng: np.random.Generator, rows: int) -> list[VerdictPair]:
    """Verdicts of a perfectly calibrated small judge, and of a large judge that is always right."""
    p = np.round(rng.beta(0.6, 0.4, rows), 3)
    return [pair(row, float(one), bool(rng.random() < one)) for row, one in enumerate(p)]


def changed(pairs: list[VerdictPair], band: Band) -> float:
    """The share of verdicts outside the band on which the large judge disagrees."""
    beyond = [one for one in pairs if not band.low <= (one.small.probability or 0) <= band.high and not one.agree]
    return len(beyond) / len(pairs)


def test_a_small_judge_that_always_agrees_decides_alone_and_one_that_never_does_decides_nothing() -> None:
    alike = [pair(n, 0.9 if n % 2 else 0.1, bool(n % 2)) for n in range(400)]
    assert fit_band(alike, 0.05) == Band(0.5, 0.5)
    never = [pair(n, 0.9 if n % 2 else 0.1, not n % 2) for n in range(400)]
    assert fit_band(never, 0.05) == Band(0.1, 0.9)  # nothing lies outside the band


def test_each_edge_of_the_band_is_fitted_separately() -> None:
    """The judge is right where it says no, and guesses where it says yes."""
    pairs = [pair(n, 0.8 if n % 2 else 0.2, n % 4 == 1) for n in range(800)]
    assert fit_band(pairs, 0.05) == Band(0.5, 0.8)


def test_the_rate_holds_on_new_verdicts_as_often_as_promised() -> None:
    rng = np.random.default_rng(1)
    unseen = drawn(rng, 40_000)
    bands = [fit_band(drawn(rng, 400), 0.1) for _ in range(120)]
    broken = sum(changed(unseen, band) > 0.1 for band in bands)
    assert broken <= binom.ppf(0.999, len(bands), 0.05)
    assert np.mean([band.high - band.low for band in bands]) < 0.9  # the band is useful


def test_too_few_verdicts_are_refused_with_the_number_needed() -> None:
    with pytest.raises(NotEnoughLabelsError, match="146 are needed at least"):
        fit_band([pair(n, 0.9, True) for n in range(100)], 0.05)
    of_one_row = [pair(0, 0.9, True) for _ in range(1000)]
    with pytest.raises(NotEnoughLabelsError, match="count as 1 independent"):
        fit_band(of_one_row, 0.05)


def test_the_curve_runs_from_the_small_judge_to_the_large_one() -> None:
    pairs = [pair(n, n / 99, n >= 30, label=n >= 30) for n in range(100)]
    points = cascade_curve(pairs, FREE, DEAR, [Band(0.25, 0.5)])
    *curve, chosen = points
    assert curve[0].escalated.value == 0
    assert curve[0].agreement.value == pytest.approx(0.8)
    assert (curve[0].seconds, curve[0].calls) == (1.0, 1.0)
    assert curve[-1].escalated.value == curve[-1].agreement.value == curve[-1].balanced_accuracy.value == 1.0
    assert (curve[-1].seconds, curve[-1].tokens_computed, curve[-1].calls) == (11.0, 400.0, 2.0)
    agreements = [one.agreement.value for one in curve]
    assert agreements == sorted(agreements)
    assert chosen.agreement.value == 1.0
    assert chosen.escalated.value == pytest.approx(0.25, abs=0.01)


def test_the_digest_does_not_depend_on_the_order_of_items() -> None:
    pairs = drawn(np.random.default_rng(2), 10)
    assert (
        digest_of_verdicts(pairs) == digest_of_verdicts(pairs[::-1]) != digest_of_verdicts(one[::-1] for one in pairs)
    )


def simulated(seed: int, items: int, se: list[float], sp: list[float], prevalence: float = 0.4) -> tuple[Votes, Votes]:
    """Verdicts of judges that err independently at these rates, and the true labels."""
    rng = np.random.default_rng(seed)
    truth = rng.random(items) < prevalence
    chance = np.where(truth[:, None], se, 1 - np.array(sp))
    return (rng.random((items, len(se))) < chance).astype(np.int8), truth.astype(np.int8)


def log_density(rates: np.ndarray, votes: Votes) -> float:
    """The logarithm of the posterior density, computed a second way, without vectors."""
    m = votes.shape[1]
    prevalence, se, sp = rates[0], rates[1 : m + 1], rates[m + 1 :]
    total = float((np.log(rates) + np.log(1 - rates)).sum())
    for row in votes:
        yes = prevalence * math.prod(s if v == 1 else 1 - s if v == 0 else 1.0 for s, v in zip(se, row, strict=True))
        no = (1 - prevalence) * math.prod(1 - s if v == 1 else s if v == 0 else 1 for s, v in zip(sp, row, strict=True))
        total += math.log(yes + no)
    return total


def rates_of(fitted: FittedPanel) -> np.ndarray:
    """All rates in one array."""
    return np.array([fitted.model.prevalence, *fitted.model.sensitivity, *fitted.model.specificity])


def test_error_rates_are_estimated_from_verdicts_alone() -> None:
    se, sp = [0.9, 0.8, 0.7, 0.6], [0.85, 0.9, 0.6, 0.7]
    votes, _ = simulated(3, 6000, se, sp)
    fitted = fit_dawid_skene(votes)
    assert rates_of(fitted) == pytest.approx(np.array([0.4, *se, *sp]), abs=0.05)


def test_the_fit_is_the_maximum_that_another_optimiser_finds() -> None:
    votes, _ = simulated(4, 120, [0.9, 0.8, 0.75], [0.8, 0.85, 0.7])
    votes[::7, 1] = -1
    fitted = fit_dawid_skene(votes)
    start = np.full(7, 0.7)
    best = minimize(lambda x: -log_density(1 / (1 + np.exp(-x)), votes), np.log(start / (1 - start)), tol=1e-10)
    assert fitted.objective[-1] == pytest.approx(-best.fun, abs=1e-4)
    assert fitted.objective[-1] == pytest.approx(log_density(rates_of(fitted), votes))


def test_with_labels_the_rates_are_counts() -> None:
    votes, truth = simulated(5, 200, [0.9, 0.6], [0.7, 0.8])
    fitted = fit_dawid_skene(votes, truth)
    met = truth == 1
    assert fitted.model.prevalence == pytest.approx((met.sum() + 1) / 202)
    assert fitted.model.sensitivity[0] == pytest.approx((votes[met, 0].sum() + 1) / (met.sum() + 2))
    assert fitted.model.specificity[1] == pytest.approx(((votes[~met, 1] == 0).sum() + 1) / ((~met).sum() + 2))
    assert (fitted.met == truth).all()


@given(st.integers(0, 2**32 - 1), st.integers(3, 5), st.integers(20, 60))
@settings(max_examples=25, deadline=None)
def test_no_step_lowers_the_objective_and_the_order_of_judges_does_not_matter(
    seed: int, judges: int, items: int
) -> None:
    rng = np.random.default_rng(seed)
    votes = rng.integers(-1, 2, (items, judges)).astype(np.int8)
    fitted = fit_dawid_skene(votes)
    assert all(after >= before - 1e-8 for before, after in zip(fitted.objective, fitted.objective[1:], strict=False))
    order = rng.permutation(judges)
    again = fit_dawid_skene(votes[:, order])
    assert [again.model.sensitivity[place] for place in np.argsort(order)] == pytest.approx(fitted.model.sensitivity)
    assert ((fitted.met >= 0) & (fitted.met <= 1)).all()


def test_two_judges_without_labels_are_refused() -> None:
    votes, truth = simulated(6, 50, [0.9, 0.8], [0.9, 0.8])
    with pytest.raises(ValueError, match="cannot be told from their verdicts alone"):
        fit_dawid_skene(votes)
    fit_dawid_skene(votes, truth)
    with pytest.raises(ValueError, match="10 items are too few"):
        fit_dawid_skene(votes[:10], truth[:10])


def test_a_fitted_panel_beats_equal_weights_where_two_judges_are_poor() -> None:
    votes, truth = simulated(7, 2000, [0.95, 0.6, 0.6], [0.95, 0.6, 0.6])
    items = [
        tuple([Measured(f"r{n}", "c", float(t), float(v)) for v in row])
        for n, (row, t) in enumerate(zip(votes, truth, strict=True))
    ]
    figures = measure_panel(items[1000:], ["a", "b", "c"], fit_dawid_skene(votes[:1000]).model)
    of = {name: one["balanced_accuracy"].value for name, one in figures.items()}
    assert of["Dawid-Skene"] > of["equal weights"] + 0.1
    assert figures["Dawid-Skene"]["brier"].value < figures["equal weights"]["brier"].value


def test_a_model_refuses_rates_of_0_and_1() -> None:
    with pytest.raises(ValueError, match="both excluded"):
        DawidSkene(0.5, (1.0,), (0.9,))
