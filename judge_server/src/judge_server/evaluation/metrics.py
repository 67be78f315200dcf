"""Figures of agreement between verdicts and labels, with intervals by a bootstrap over rows.

Every figure is computed from weighted judgements: weights of 1 give the figure itself, and the counts of a resample
give the figure in that resample. Rows of the data set are resampled, not judgements, since the judgements of a row are
similar (a cluster bootstrap; Field and Welsh 2007).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from judge_server.intervals import wilson

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

Figure: TypeAlias = Literal[
    "accuracy", "balanced_accuracy", "kappa", "f1", "auroc", "ece", "brier", "yes_rate", "label_rate"
]
FIGURES: tuple[Figure, ...] = get_args(Figure)

BINS = 10
"""Number of bins of equal width in the expected calibration error; the last one includes a probability of 1."""

RESAMPLES = 1000
SEED = 20250101
LEVEL = 0.95

_CELLS = 4_000_000
"""Weights in memory at a time; more resamples are computed in parts."""


class Estimate(NamedTuple):
    """A figure and its interval; nan if undefined, as is the interval of a figure of one row."""

    value: float
    low: float
    high: float


UNDEFINED = Estimate(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True, slots=True)
class VerdictArrays:
    """Verdicts and labels as arrays of shape (n,), from which the figures are computed.

    `probabilities` is the probability of yes; for a verdict without one, its score, and `have_probabilities` is false.
    """

    labels: Bools
    satisfied: Bools
    probabilities: Floats
    have_probabilities: bool = True

    def figures(self, weights: Floats | None = None) -> dict[Figure, Floats]:
        """Compute every figure for each row of weights, shape (R, n); by default, all weights are 1.

        - accuracy: the share of verdicts equal to the label.
        - balanced_accuracy: the mean of the shares of met items judged met and of unmet items judged unmet.
        - kappa: Cohen's kappa, (accuracy - chance) / (1 - chance), with chance from the rates of yes.
        - f1: the mean of the F1 scores of met and of unmet items (macro F1).
        - auroc: the probability that a met item scores above an unmet one, with ties counted as half.
        - ece: the expected calibration error of the probability of yes in `BINS` bins of equal width.
        - brier: the mean squared distance of the probability from the label.
        - yes_rate, label_rate: the shares of items judged met, and labelled met.

        A figure that needs both labels is nan where only one occurs. `ece` and `brier` are nan without probabilities.
        """
        w = np.ones((1, len(self.labels))) if weights is None else weights
        yes, no, said = self.labels, ~self.labels, self.satisfied
        total, w_yes, w_no = w.sum(axis=1), w[:, yes].sum(axis=1), w[:, no].sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            true_yes, true_no = w[:, yes] @ said[yes], w[:, no] @ ~said[no]
            recall, specificity = true_yes / w_yes, true_no / w_no
            accuracy, yes_rate, label_rate = (true_yes + true_no) / total, (w @ said) / total, w_yes / total
            chance = yes_rate * label_rate + (1 - yes_rate) * (1 - label_rate)
            f1 = (2 * true_yes / (w_yes + w @ said) + 2 * true_no / (w_no + w @ ~said)) / 2
            unknown = np.full(len(w), np.nan)
            both = (w_yes > 0) & (w_no > 0)
            return {
                "accuracy": accuracy,
                "balanced_accuracy": (recall + specificity) / 2,
                "kappa": np.where(both, (accuracy - chance) / (1 - chance), np.nan),
                "f1": np.where(both, f1, np.nan),
                "auroc": weighted_auroc(self.probabilities, self.labels, w),
                "ece": self.calibration_error(w) if self.have_probabilities else unknown,
                "brier": w @ (self.probabilities - self.labels) ** 2 / total if self.have_probabilities else unknown,
                "yes_rate": yes_rate,
                "label_rate": label_rate,
            }

    def calibration_error(self, w: Floats, part: NDArray[np.int_] | None = None) -> Floats:
        """Compute the sum over bins of |sum of labels - sum of probabilities|, by the total weight; shape (R,).

        With the number of the part that each verdict belongs to, from 0 on, every part has bins of its own: this is the
        mean of the parts' errors, each weighted by its verdicts.
        """
        if not len(self.labels):
            return np.full(len(w), np.nan)
        bins = bin_of(self.probabilities) + (0 if part is None else BINS * part)
        order = np.argsort(bins, kind="stable")
        starts = np.flatnonzero(np.diff(bins[order], prepend=-1))
        gaps = np.add.reduceat((w * (self.labels - self.probabilities))[:, order], starts, axis=1)
        error: Floats = np.abs(gaps).sum(axis=1) / w.sum(axis=1)
        return error


def bin_of(probabilities: Floats) -> NDArray[np.int_]:
    """Return the bin of each probability, from 0 to `BINS` - 1."""
    bins: NDArray[np.int_] = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    return bins


def weighted_auroc(scores: Floats, labels: Bools, weights: Floats) -> Floats:
    """Compute the area under the ROC curve for each row of weights, with ties counted as half; nan if undefined.

    From ranks: for each distinct score, the weight of negatives below it plus half of those equal to it.
    """
    if not len(scores):
        return np.full(len(weights), np.nan)
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    ordered, positive = weights[:, order], labels[order]
    yes = np.add.reduceat(ordered * positive, starts, axis=1)
    no = np.add.reduceat(ordered * ~positive, starts, axis=1)
    below = np.cumsum(no, axis=1) - no
    with np.errstate(invalid="ignore", divide="ignore"):
        area: Floats = (yes * (below + no / 2)).sum(axis=1) / (yes.sum(axis=1) * no.sum(axis=1))
    return area


class RowBootstrap:
    """Resamples of the rows of a data set; parts of it that share rows are resampled together.

    `rows` has the row of every judgement of the data set, in any order.
    """

    def __init__(self, rows: Sequence[Hashable], resamples: int = RESAMPLES, seed: int = SEED) -> None:
        self._place = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        self._rng = np.random.default_rng(seed)
        self.resamples = resamples
        self._counts = _draw(self._rng, max(1, len(self._place)), resamples)

    def weights(self, rows: Sequence[Hashable], labels: Bools | None = None) -> Floats:
        """Return the weight of each judgement in each resample; shape (resamples, n).

        A resample in which these judgements have no weight, or not both labels, is drawn again for them alone. Weights
        are nan if all judgements are of one row, which shows nothing about how much rows differ.
        """
        places = np.array([self._place[row] for row in rows], dtype=int)
        own, rows_of_part = np.unique(places, return_inverse=True)
        if len(own) == 1:
            return np.full((self.resamples, len(places)), np.nan)
        weights = self._counts[:, places]
        both = labels is not None and bool(labels.any()) and not bool(labels.all())
        while True:
            lacking = weights.sum(axis=1) == 0
            if both and labels is not None:
                lacking |= (weights[:, labels].sum(axis=1) == 0) | (weights[:, ~labels].sum(axis=1) == 0)
            if not lacking.any():
                return weights
            weights[lacking] = _draw(self._rng, len(own), int(lacking.sum()))[:, rows_of_part]

    def figures(self, rows: Sequence[Hashable], arrays: VerdictArrays) -> dict[Figure, Estimate]:
        """Return every figure of some judgements with its interval."""
        if not len(rows):
            return dict.fromkeys(FIGURES, UNDEFINED)
        values, resampled = arrays.figures(), _in_parts(arrays, self.weights(rows, arrays.labels))
        return {name: estimate(float(values[name][0]), resampled[name]) for name in FIGURES}

    def differences(
        self, rows: Sequence[Hashable], first: VerdictArrays, second: VerdictArrays
    ) -> dict[Figure, Estimate]:
        """Return every figure of `second` minus that of `first`: two judges' verdicts on the same labelled items.

        Both are resampled together, so that what is hard for both does not widen the interval.
        """
        if not len(rows):
            return dict.fromkeys(FIGURES, UNDEFINED)
        weights = self.weights(rows, first.labels)
        before, after = first.figures(), second.figures()
        resampled_before, resampled_after = _in_parts(first, weights), _in_parts(second, weights)
        return {
            name: estimate(float(after[name][0] - before[name][0]), resampled_after[name] - resampled_before[name])
            for name in FIGURES
        }

    def mean(self, rows: Sequence[Hashable], values: Sequence[float]) -> Estimate:
        """Return the mean of one value per judgement, with its interval."""
        return self.statistic(rows, lambda w: w @ np.asarray(values, dtype=float) / w.sum(axis=1))

    def means(self, samples: Sequence[tuple[Any, ...]], columns: int) -> list[Estimate]:
        """Return the means of so many columns of values, with intervals; each sample is a row and its values."""
        rows, *values = zip(*samples, strict=True) if samples else [()] * (columns + 1)
        return [self.mean(rows, column) for column in values]

    def statistic(self, rows: Sequence[Hashable], of: Callable[[Floats], Floats]) -> Estimate:
        """Return any figure with its interval; `of` takes weights of shape (R, n) and returns shape (R,)."""
        if not len(rows):
            return UNDEFINED
        with np.errstate(invalid="ignore", divide="ignore"):
            resampled = np.concatenate([of(some) for some in _in_blocks(self.weights(rows))])
            return estimate(float(of(np.ones((1, len(rows))))[0]), resampled)


def _in_blocks(weights: Floats) -> Iterator[Floats]:
    """Yield all rows of weights, of shape (R, n), with at most `_CELLS` weights at a time."""
    size = max(1, _CELLS // weights.shape[1])
    for start in range(0, len(weights), size):
        yield weights[start : start + size]


def _in_parts(arrays: VerdictArrays, weights: Floats) -> dict[Figure, Floats]:
    """Return every figure for each row of weights."""
    parts = [arrays.figures(some) for some in _in_blocks(weights)]
    return {name: np.concatenate([part[name] for part in parts]) for name in FIGURES}


def _draw(rng: np.random.Generator, rows: int, resamples: int) -> Floats:
    """Draw how often each row occurs in each resample; shape (resamples, rows)."""
    return rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples).astype(float)


def estimate(value: float, resampled: Floats) -> Estimate:
    """Return a figure with the `LEVEL` percentile interval of its resamples; undefined resamples are left out."""
    known = resampled[~np.isnan(resampled)]
    if np.isnan(value) or not len(known):
        return Estimate(value, float("nan"), float("nan"))
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(known, [outside, 1 - outside])
    return Estimate(value, float(low), float(high))


def weighted_spearman(x: Sequence[float], y: Sequence[float]) -> Callable[[Floats], Floats]:
    """Return Spearman's rank correlation of x and y as a function of weights; ranks are those of the whole sample."""
    rank_x, rank_y = (_ranks(np.asarray(values, dtype=float)) for values in (x, y))

    def correlation(w: Floats) -> Floats:
        share = w / w.sum(axis=1, keepdims=True)
        mean_x, mean_y = share @ rank_x, share @ rank_y
        covariance = share @ (rank_x * rank_y) - mean_x * mean_y
        spread = (share @ rank_x**2 - mean_x**2) * (share @ rank_y**2 - mean_y**2)
        return np.where(spread > 1e-12, covariance / np.sqrt(np.maximum(spread, 1e-12)), np.nan)

    return correlation


def _ranks(values: Floats) -> Floats:
    """Return ranks from 1, with ties at their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


class ReliabilityBin(NamedTuple):
    """Judgements whose probability lies in [low, high).

    Attributes:
        n: their number.
        mean_probability: their mean probability; nan if there are none.
        share_met: the share that is labelled met; nan if there are none.
        share_low, share_high: Wilson's 95% interval of that share.
    """

    low: float
    high: float
    n: int
    mean_probability: float
    share_met: float
    share_low: float
    share_high: float


def reliability(probabilities: Sequence[float], labels: Sequence[bool]) -> tuple[ReliabilityBin, ...]:
    """Compare the probability of yes with the share labelled met, in `BINS` bins of equal width."""
    p, y = np.array(probabilities, dtype=float), np.array(labels, dtype=float)
    found = []
    for place in range(BINS):
        inside = bin_of(p) == place
        n = int(inside.sum())
        met = int(y[inside].sum())
        share = Estimate(*UNDEFINED) if not n else Estimate(met / n, *wilson(met, n))
        mean = float(p[inside].mean()) if n else float("nan")
        found.append(ReliabilityBin(place / BINS, (place + 1) / BINS, n, mean, *share))
    return tuple(found)


def roc(scores: Sequence[float], labels: Sequence[bool]) -> tuple[tuple[float, float], ...]:
    """Return the ROC curve as (false positive rate, true positive rate) from (0, 0) to (1, 1); empty if undefined."""
    p, y = np.array(scores, dtype=float), np.array(labels, dtype=bool)
    if y.all() or not y.any():
        return ()
    order = np.argsort(-p, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(p[order])), len(p) - 1)
    true, false = np.cumsum(y[order])[ends] / y.sum(), np.cumsum(~y[order])[ends] / (~y).sum()
    return ((0.0, 0.0), *((float(f), float(t)) for f, t in zip(false, true, strict=True)))


def as_json(figures: Any) -> Any:
    """Return figures as JSON, with an object for each named tuple such as an `Estimate`; undefined numbers are null."""
    if isinstance(figures, BaseModel):
        return figures.model_dump(mode="json")
    if isinstance(figures, float):
        return none_if_nan(figures)
    if hasattr(figures, "_asdict"):
        figures = figures._asdict()
    if isinstance(figures, Mapping):
        return {name: as_json(one) for name, one in figures.items()}
    if isinstance(figures, tuple | list):
        return [as_json(one) for one in figures]
    return figures


def none_if_nan(value: float) -> float | None:
    """Return a number, or None for nan."""
    return None if np.isnan(value) else value
