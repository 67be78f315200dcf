"""Choose the band of a cascade, and measure its agreement against its cost, from the verdicts of both judges.

The band is chosen for a wanted rate of *changed verdicts*: those that the small judge decides, and on which the large
one would have decided otherwise. Each half of the band gets half of that rate. As its edge moves towards one half, the
rate of changed verdicts beyond it can only rise, so the edge is moved as long as an upper confidence bound of that rate
stays within its half: the rate of the cascade is then at most the wanted one with a confidence of `CONFIDENCE`
(risk-controlling prediction sets; Bates et al. 2021, J. ACM 68:43). Whatever the labels are, a cascade errs at most by
that rate more often than the large judge.

Verdicts of one row are similar: they count as fewer independent ones, by the effective size of the disagreements of
both judges (Kish; Korn and Graubard 1998, Surv. Methodol. 24:193-201). Fitting needs scipy, of the extra `evaluate`.

For a panel, Dawid and Skene's model estimates how often each judge errs, with labels or without.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from judge_server.evaluation.corrected_rates import clusters_of, effective_size
from judge_server.evaluation.fitting.calibrations import CONFIDENCE, NotEnoughLabelsError, upper_bound
from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.metrics import Bools, Estimate, Figure, Floats, RowBootstrap, VerdictArrays
from judge_server.evaluation.report import Measured, common_verdicts, verdict_arrays
from judge_server.judging.calibration import SATISFIED_THRESHOLD
from judge_server.judging.combining import Band, DawidSkene, WeightedMean
from judge_server.ports import JudgeResult

FEWEST_JUDGES = 3
"""The fewest judges whose error rates verdicts alone can tell."""

FEWEST_ITEMS = 20
"""The fewest items that anything is fitted on."""

_STEPS = 2000
_TOLERANCE = 1e-8

Votes = NDArray[np.int8]
"""Verdicts of shape (items, judges): 1 for a yes, 0 for a no, -1 for none."""

_NONE = -1


class FittedPanel(NamedTuple):
    """The model, the probability of a yes of each item, and the logarithm of the posterior density at every step."""

    model: DawidSkene
    met: Floats
    objective: tuple[float, ...]


def fit_dawid_skene(votes: Votes, labels: Votes | None = None) -> FittedPanel:
    """Fit the model.

    Args:
        votes: what each judge said of each item; shape (items, judges).
        labels: the truth of each item where it is known, -1 elsewhere; shape (items,). None for no labels.

    Raises:
        ValueError: there are too few items, or too few judges for items without labels.
    """
    known = np.full(len(votes), _NONE, dtype=np.int8) if labels is None else labels
    given, yes = votes != _NONE, votes == 1
    if len(votes) < FEWEST_ITEMS:
        raise ValueError(f"{len(votes)} items are too few to fit error rates on; give at least {FEWEST_ITEMS}")
    if votes.shape[1] < FEWEST_JUDGES and (known == _NONE).any():
        raise ValueError(
            f"the errors of {votes.shape[1]} judges cannot be told from their verdicts alone; give a panel of at least "
            f"{FEWEST_JUDGES}, or labels"
        )
    counts = given.sum(axis=1)
    met = np.where(known == _NONE, np.where(counts > 0, yes.sum(axis=1) / np.maximum(counts, 1), 0.5), known)
    objective: list[float] = []
    while True:
        prevalence, sensitivity, specificity = _maximise(met, given, yes)
        log_yes = np.log(prevalence) + np.where(yes, np.log(sensitivity), given * np.log1p(-sensitivity)).sum(axis=1)
        log_no = np.log1p(-prevalence) + np.where(yes, np.log1p(-specificity), given * np.log(specificity)).sum(axis=1)
        likelihood = np.where(known == 1, log_yes, np.where(known == 0, log_no, np.logaddexp(log_yes, log_no)))
        rates = np.concatenate([[prevalence], sensitivity, specificity])
        objective.append(float(likelihood.sum() + (np.log(rates) + np.log1p(-rates)).sum()))
        before = met
        met = np.where(known == _NONE, 1 / (1 + np.exp(np.clip(log_no - log_yes, -700, 700))), known)
        if np.abs(met - before).max() < _TOLERANCE or len(objective) >= _STEPS:
            break
    model = DawidSkene(float(prevalence), tuple(map(float, sensitivity)), tuple(map(float, specificity)))
    return FittedPanel(model, met, tuple(objective))


def _maximise(met: Floats, given: NDArray[np.bool_], yes: NDArray[np.bool_]) -> tuple[float, Floats, Floats]:
    """Return prevalence, sensitivities and specificities with the greatest posterior density, given each item's."""
    prevalence = float((met.sum() + 1) / (len(met) + 2))
    sensitivity = (met @ yes + 1) / (met @ given + 2)
    specificity = ((1 - met) @ (given & ~yes) + 1) / ((1 - met) @ given + 2)
    return prevalence, sensitivity, specificity


def measure_panel(
    items: Sequence[Sequence[Measured]], judges: Sequence[str], model: DawidSkene
) -> dict[str, dict[Figure, Estimate]]:
    """Return the figures of each judge alone, of equal weights, and of the model.

    `items` has the verdict of each judge on each labelled criterion, as `common_verdicts` returns them.
    """
    rows = [verdicts[0].row for verdicts in items]
    bootstrap = RowBootstrap(rows)
    outcomes = [[JudgeResult(one.score or 0.0, one.probability) for one in verdicts] for verdicts in items]
    said = {
        name: ([verdicts[place].met for verdicts in items], [verdicts[place].likelihood for verdicts in items])
        for place, name in enumerate(judges)
    }
    for name, combination in (("equal weights", WeightedMean((1.0,) * len(judges))), ("Dawid-Skene", model)):
        probabilities = [combination.posterior(own).value for own in outcomes]
        said[name] = ([one >= SATISFIED_THRESHOLD for one in probabilities], probabilities)
    labels = np.array([verdicts[0].is_labelled_met for verdicts in items], dtype=bool)
    return {
        name: bootstrap.figures(rows, VerdictArrays(labels, np.array(met, dtype=bool), np.array(p, dtype=float)))
        for name, (met, p) in said.items()
    }


EDGES = tuple([round(0.01 * step, 2) for step in range(51)])
"""The edges that the lower half of the band may have; those of the upper half are 1 minus these."""

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""The shares of verdicts at which the curve asks the large judge."""


class VerdictPair(NamedTuple):
    """What both judges said about a labelled criterion. `small` has a probability; neither failed."""

    small: Measured
    large: Measured

    @property
    def agree(self) -> bool:
        """Whether both say the same."""
        return self.small.met == self.large.met


class JudgementCost(NamedTuple):
    """The mean cost of one judgement of a judge, over the examples that were not answered from a cache."""

    seconds: float
    tokens_computed: float
    calls: float


def pair_verdicts(small: Sequence[Judgement], large: Sequence[Judgement]) -> list[VerdictPair]:
    """Pair the verdicts of two judges on the same examples, in the same order; failed ones are left out.

    A verdict of the small judge without a probability is left out too.
    """
    return [VerdictPair(*said) for said in common_verdicts([small, large]) if said[0].probability is not None]


def fit_band(pairs: Sequence[VerdictPair], error: float) -> Band:
    """Return the narrowest band for a rate of changed verdicts of at most `error`, in (0, 1), with `CONFIDENCE`.

    Raises:
        NotEnoughLabelsError: only the whole range can be shown to keep the rate; the message says what is needed.
        MissingExtraError: scipy is not installed.
    """
    p = np.array([one.small.probability for one in pairs], dtype=float)
    changed = np.array([not one.agree for one in pairs], dtype=bool)
    rows = [one.small.row for one in pairs]
    level, budget = 1 - (1 - CONFIDENCE) / 2, error / 2
    effective = effective_size(clusters_of(zip(rows, changed.tolist(), strict=True)))
    least = float(np.log(1 - level) / np.log1p(-budget))
    if effective < least:
        raise NotEnoughLabelsError(
            f"{len(pairs)} verdicts of {len(set(rows))} rows, which count as {effective:.0f} independent ones, cannot "
            f"show that a cascade changes at most {error:.1%} of the verdicts; {least:.0f} are needed at least. Label "
            "more rows, or raise --error"
        )

    def farthest(edges: Sequence[float], beyond: Callable[[float], Bools]) -> float:
        """Return the last edge, from the outermost inwards, up to which the rate beyond the edge is shown."""
        kept = edges[0]
        for edge in edges:
            if upper_bound(float((changed & beyond(edge)).mean()), effective, level) > budget:
                break
            kept = edge
        return kept

    low = farthest(EDGES, lambda edge: p < edge)
    high = farthest([1 - edge for edge in EDGES], lambda edge: p > edge)
    return Band(round(low, 2), round(high, 2))


class CascadePoint(NamedTuple):
    """A cascade with one band, measured on verdicts that both judges gave.

    Attributes:
        band: the band.
        escalated: the share of verdicts for which the large judge is asked.
        agreement: the share of verdicts that are the large judge's.
        balanced_accuracy: the cascade's, by the labels.
        accuracy: the share of verdicts equal to the label.
        seconds, tokens_computed, calls: the cost of a judgement: the small judge's, and the escalated share of the
            large one's. Criteria of a response that are escalated share a prefix, so few of them cost more than this.
    """

    band: Band
    escalated: Estimate
    agreement: Estimate
    balanced_accuracy: Estimate
    accuracy: Estimate
    seconds: float
    tokens_computed: float
    calls: float


def mean_cost(judgements: Sequence[Judgement]) -> JudgementCost:
    """Return the mean cost of a judgement; nan if every answer came from a cache."""
    asked = [one for one in judgements if one.usage.judge_calls and one.verdicts]
    verdicts = sum(len(one.verdicts) for one in asked) or float("nan")
    return JudgementCost(
        sum(one.usage.seconds_judging for one in asked) / verdicts,
        sum(one.usage.prompt_tokens_computed for one in asked) / verdicts,
        sum(one.usage.judge_calls for one in asked) / verdicts,
    )


def cascade_curve(
    pairs: Sequence[VerdictPair], small: JudgementCost, large: JudgementCost, bands: Sequence[Band] = ()
) -> list[CascadePoint]:
    """Measure cascades that escalate each of `SHARES`, those nearest to one half first, and those with these bands."""
    p = np.array([one.small.probability for one in pairs], dtype=float)
    distances = np.sort(np.abs(p - 0.5))
    widths = [0.0 if share == 0 else float(distances[max(0, round(share * len(p)) - 1)]) for share in SHARES]
    nested = [Band(max(0.0, 0.5 - width), min(1.0, 0.5 + width)) for width in widths]
    bootstrap = RowBootstrap([one.small.row for one in pairs])
    return [_measure(pairs, band, bootstrap, small, large) for band in (*nested, *bands)]


def _measure(
    pairs: Sequence[VerdictPair],
    band: Band,
    bootstrap: RowBootstrap,
    small: JudgementCost,
    large: JudgementCost,
) -> CascadePoint:
    rows = [one.small.row for one in pairs]
    asked = [band.low <= (one.small.probability or 0.0) <= band.high for one in pairs]
    decided = [one.large if escalate else one.small for one, escalate in zip(pairs, asked, strict=True)]
    figures = bootstrap.figures(rows, replace(verdict_arrays(decided), have_probabilities=True))
    share = bootstrap.mean(rows, [float(one) for one in asked])
    return CascadePoint(
        band,
        share,
        bootstrap.mean(rows, [float(one.agree or escalate) for one, escalate in zip(pairs, asked, strict=True)]),
        figures["balanced_accuracy"],
        figures["accuracy"],
        *[float(a + share.value * b) for a, b in zip(small, large, strict=True)],
    )


def digest_of_verdicts(items: Iterable[Sequence[Measured]]) -> str:
    """Return the digest of what several judges said about each criterion, in any order of the criteria."""
    lines = sorted(repr([(one.row, one.criterion, one.score, one.probability) for one in said]) for said in items)
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()
