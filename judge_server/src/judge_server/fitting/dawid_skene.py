"""Fit Dawid and Skene's model to the verdicts of a panel: how often each judge errs, with labels or without.

Expectation maximisation (Dawid and Skene 1979, Appl. Statist. 28:20-28), for yes and no. Every rate has a prior of
Beta(2, 2), so that no judge is taken to be never wrong. Items with a label keep it; the others get the probability that
the model gives them. The judges' errors are taken to be independent given the truth: judges that err together, such as
two sizes of one model, are trusted too much, which labels show and verdicts alone do not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.labelled import MET_FROM
from judge_server.evaluation.metrics import Estimate, Figure, Floats, RowBootstrap, VerdictArrays
from judge_server.evaluation.report import Measured, measured_verdicts
from judge_server.judging.calibration import SATISFIED_THRESHOLD
from judge_server.judging.combining import DawidSkene, WeightedMean
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


class PanelItem(NamedTuple):
    """A labelled criterion of a row with the verdict of each judge, none of which failed."""

    row: str
    met: bool
    verdicts: tuple[Measured, ...]


def panel_items(answered: Sequence[Sequence[Judgement]]) -> list[PanelItem]:
    """Return the criteria on which every judge gave a verdict, from their judgements of the same examples in order."""
    found = []
    for judgements in zip(*answered, strict=True):
        by_judge = [
            {one.criterion: one for one in measured_verdicts(each) if one.score is not None} for each in judgements
        ]
        for name, first in by_judge[0].items():
            if all(name in own for own in by_judge):
                found.append(PanelItem(first.row, first.label >= MET_FROM, tuple([own[name] for own in by_judge])))
    return found


def measure_panel(
    items: Sequence[PanelItem], judges: Sequence[str], model: DawidSkene
) -> dict[str, dict[Figure, Estimate]]:
    """Return the figures of each judge alone, of equal weights, and of the model, on labelled items."""
    rows = [one.row for one in items]
    bootstrap = RowBootstrap(rows)
    outcomes = [[JudgeResult(one.score or 0.0, one.probability) for one in item.verdicts] for item in items]
    said = {
        name: ([own[place].score >= MET_FROM for own in outcomes], [item.verdicts[place].likelihood for item in items])
        for place, name in enumerate(judges)
    }
    for name, combination in (("equal weights", WeightedMean((1.0,) * len(judges))), ("Dawid-Skene", model)):
        probabilities = [combination.posterior(own).value for own in outcomes]
        said[name] = ([one >= SATISFIED_THRESHOLD for one in probabilities], probabilities)
    labels = np.array([item.met for item in items], dtype=bool)
    return {
        name: bootstrap.figures(rows, VerdictArrays(labels, np.array(met, dtype=bool), np.array(p, dtype=float)))
        for name, (met, p) in said.items()
    }
