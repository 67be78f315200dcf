"""Agreement of verdicts with labels, with intervals by a bootstrap over rows.

Every figure is computed from weighted items: weights of 1 give the figure itself, and the counts of a resample give the
figure in that resample. Rows are resampled, not items, since the items of a row are similar. A row that several tasks
share is drawn for all of them together, and every contender is measured on the same resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import Item

Floats: TypeAlias = NDArray[np.float64]

Figure: TypeAlias = Literal["balanced_accuracy", "auroc", "ece", "brier", "yes_rate"]

FIGURES: tuple[Figure, ...] = ("balanced_accuracy", "auroc", "ece", "brier", "yes_rate")

BINS = 10
"""Number of bins of equal width in the expected calibration error; the last one includes a probability of 1."""

RESAMPLES = 1000
SEED = 20250101
LEVEL = 0.95


class Estimate(NamedTuple):
    """A figure and its interval; nan if undefined."""

    value: float
    low: float
    high: float


class Tokens(NamedTuple):
    """Prompt tokens per judgement: computed ones, and all."""

    computed: float
    all: float


@dataclass(frozen=True, slots=True)
class VerdictArrays:
    """Verdicts and labels as arrays of shape (n,), from which the figures are computed."""

    labels: NDArray[np.bool_]
    satisfied: NDArray[np.bool_]
    probabilities: Floats

    def figures(self, weights: Floats | None = None) -> dict[Figure, Floats]:
        """Compute every figure for each row of weights, shape (R, n); by default, all weights are 1.

        - balanced_accuracy: the mean of the shares of met items judged met and of unmet items judged unmet.
        - auroc: the probability that a met item scores above an unmet one, with ties counted as half.
        - ece: the expected calibration error of the probability of yes in `BINS` bins of equal width.
        - brier: the mean squared distance of the probability from the label.
        - yes_rate: the share of items judged met.
        """
        w = np.ones((1, len(self.labels))) if weights is None else weights
        yes, no = self.labels, ~self.labels
        total = w.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            recall = w[:, yes] @ self.satisfied[yes] / w[:, yes].sum(axis=1)
            specificity = w[:, no] @ ~self.satisfied[no] / w[:, no].sum(axis=1)
            return {
                "balanced_accuracy": (recall + specificity) / 2,
                "auroc": self._auroc(w[:, yes], w[:, no]),
                "ece": self._calibration_gaps(w) / total,
                "brier": w @ (self.probabilities - self.labels) ** 2 / total,
                "yes_rate": w @ self.satisfied / total,
            }

    def _auroc(self, w_yes: Floats, w_no: Floats) -> Floats:
        above = self.probabilities[self.labels][:, None] - self.probabilities[~self.labels][None, :]
        wins = (np.sign(above) + 1) / 2
        shares: Floats = ((w_yes @ wins) * w_no).sum(axis=1) / (w_yes.sum(axis=1) * w_no.sum(axis=1))
        return shares

    def _calibration_gaps(self, w: Floats) -> Floats:
        """Compute |sum of labels - sum of probabilities| in each bin, summed over the bins."""
        bins = np.minimum((self.probabilities * BINS).astype(int), BINS - 1)
        in_bin = bins[:, None] == np.arange(BINS)
        gaps: Floats = np.abs(w @ ((self.labels - self.probabilities)[:, None] * in_bin)).sum(axis=1)
        return gaps


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of contenders on the same items.

    Attributes:
        n: number of items on which every contender has a verdict; only these are scored.
        failed: number of items without a verdict, per contender.
        tokens: tokens per scored item, per contender.
        values: the figures, per contender.
        resampled: the figures in each resample, per contender.
    """

    n: int
    failed: Mapping[str, int]
    tokens: Mapping[str, Tokens]
    values: Mapping[str, Mapping[Figure, float]]
    resampled: Mapping[str, Mapping[Figure, Floats]]

    @property
    def defined(self) -> bool:
        """Whether every figure is defined, which requires scored items with both labels."""
        return not any(np.isnan(value) for figures in self.values.values() for value in figures.values())

    def estimate(self, contender: str, figure: Figure) -> Estimate:
        """Return a contender's figure with its interval."""
        return _estimate(self.values[contender][figure], self.resampled[contender][figure])

    def difference(self, contender: str, baseline: str, figure: Figure) -> Estimate:
        """Return the difference of a contender's figure from the baseline's, paired by item."""
        return _estimate(
            self.values[contender][figure] - self.values[baseline][figure],
            self.resampled[contender][figure] - self.resampled[baseline][figure],
        )


class Agreement(NamedTuple):
    """The measurements of each task, their mean over tasks with all figures defined, and that of all items pooled.

    With few items per task, the calibration error within a task is mostly chance, unlike that of all items pooled.
    """

    tasks: dict[str, Measurement]
    mean: Measurement
    averaged: tuple[str, ...]
    pooled: Measurement


def measure(items: Sequence[Item], verdicts: Mapping[str, Mapping[str, ItemVerdict]]) -> Agreement:
    """Measure contenders on labelled items.

    Args:
        items: the items of one or more tasks.
        verdicts: the verdicts of each contender, by the item's key. An item without a verdict counts as failed.
    """
    if not items or not verdicts:
        raise ValueError("there is nothing to measure; give at least one item and one contender")
    rng = np.random.default_rng(SEED)
    place = {row: number for number, row in enumerate(dict.fromkeys(item.row for item in items))}
    counts = _draw(rng, len(place), RESAMPLES)

    def measured(some: Sequence[Item]) -> Measurement:
        scored = [item for item in some if all(item.key in found for found in verdicts.values())]
        labels = np.array([item.label for item in scored], dtype=bool)
        rows = np.array([place[item.row] for item in scored], dtype=int)
        return _measure(some, scored, labels, _weights(counts, rows, labels, rng), verdicts)

    names = dict.fromkeys(item.task for item in items)
    tasks = {task: measured([item for item in items if item.task == task]) for task in names}
    averaged = tuple([task for task, measured in tasks.items() if measured.defined])
    return Agreement(tasks, _mean([tasks[task] for task in averaged], list(verdicts)), averaged, measured(items))


def _measure(
    items: Sequence[Item],
    scored: Sequence[Item],
    labels: NDArray[np.bool_],
    weights: Floats,
    verdicts: Mapping[str, Mapping[str, ItemVerdict]],
) -> Measurement:
    failed, tokens, values, resampled = {}, {}, {}, {}
    for contender, own in verdicts.items():
        failed[contender] = sum(item.key not in own for item in items)
        scored_verdicts = [own[item.key] for item in scored]
        computed, reused = (
            np.array([getattr(v, name) for v in scored_verdicts], dtype=float)
            for name in ("tokens_computed", "tokens_reused")
        )
        tokens[contender] = Tokens(_average(computed), _average(computed + reused))
        sample = VerdictArrays(
            labels,
            np.array([v.satisfied for v in scored_verdicts], dtype=bool),
            np.array([v.probability for v in scored_verdicts], dtype=float),
        )
        values[contender] = {figure: float(value[0]) for figure, value in sample.figures().items()}
        resampled[contender] = sample.figures(weights)
    return Measurement(len(scored), failed, tokens, values, resampled)


def _draw(rng: np.random.Generator, rows: int, resamples: int) -> Floats:
    """Draw how often each row occurs in each resample; shape (resamples, rows)."""
    return rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples).astype(float)


def _weights(counts: Floats, rows: NDArray[np.int_], labels: NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Compute the weight of each item of a task in each resample; shape (R, n).

    A resample in which the task does not have both labels is drawn again for this task.
    """
    weights = counts[:, rows]
    if labels.all() or not labels.any():
        return weights
    own, rows_of_task = np.unique(rows, return_inverse=True)
    while True:
        lacking = ~((weights[:, labels].sum(axis=1) > 0) & (weights[:, ~labels].sum(axis=1) > 0))
        if not lacking.any():
            return weights
        weights[lacking] = _draw(rng, len(own), int(lacking.sum()))[:, rows_of_task]


def _mean(tasks: Sequence[Measurement], contenders: Sequence[str]) -> Measurement:
    """Average over tasks with equal weights; counts are summed."""
    undefined = np.full(RESAMPLES, np.nan)

    def mean(figures: list[Floats]) -> Floats:
        return np.mean(figures, axis=0) if figures else undefined

    return Measurement(
        sum(task.n for task in tasks),
        {c: sum(task.failed[c] for task in tasks) for c in contenders},
        {
            c: Tokens(_average([task.tokens[c].computed for task in tasks]), _average([t.tokens[c].all for t in tasks]))
            for c in contenders
        },
        {c: {f: _average([task.values[c][f] for task in tasks]) for f in FIGURES} for c in contenders},
        {c: {f: mean([task.resampled[c][f] for task in tasks]) for f in FIGURES} for c in contenders},
    )


def _estimate(value: float, resampled: Floats) -> Estimate:
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(resampled, [outside, 1 - outside])
    return Estimate(value, float(low), float(high))


def _average(figures: Sequence[float] | Floats) -> float:
    return float(np.mean(figures)) if len(figures) else float("nan")
