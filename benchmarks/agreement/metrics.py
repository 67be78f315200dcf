"""Agreement of verdicts with labels, with intervals by a bootstrap over rows.

The figures and the resampling are those of `judge_server.evaluation.metrics`. A row that several tasks share is drawn
for all of them together, and every contender is measured on the same resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import Item
from judge_server.evaluation.metrics import RESAMPLES, Estimate, Figure, Floats, RowBootstrap, VerdictArrays, estimate

FIGURES: tuple[Figure, ...] = ("balanced_accuracy", "auroc", "ece", "brier", "yes_rate")
"""The figures that the tables show."""


class Tokens(NamedTuple):
    """Prompt tokens per judgement: computed ones, and all."""

    computed: float
    all: float


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
        return estimate(self.values[contender][figure], self.resampled[contender][figure])

    def difference(self, contender: str, baseline: str, figure: Figure) -> Estimate:
        """Return the difference of a contender's figure from the baseline's, paired by item."""
        return estimate(
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
    bootstrap = RowBootstrap([item.row for item in items])

    def measured(some: Sequence[Item]) -> Measurement:
        scored = [item for item in some if all(item.key in found for found in verdicts.values())]
        labels = np.array([item.label for item in scored], dtype=bool)
        weights = bootstrap.weights([item.row for item in scored], labels) if scored else np.zeros((RESAMPLES, 0))
        return _measure(some, scored, labels, weights, verdicts)

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
        plain, drawn = sample.figures(), sample.figures(weights)
        values[contender] = {figure: float(plain[figure][0]) for figure in FIGURES}
        resampled[contender] = {figure: drawn[figure] for figure in FIGURES}
    return Measurement(len(scored), failed, tokens, values, resampled)


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


def _average(figures: Sequence[float] | Floats) -> float:
    return float(np.mean(figures)) if len(figures) else float("nan")
