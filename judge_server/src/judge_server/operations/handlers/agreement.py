"""How far a judge's verdicts agree with labels, in figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import JsonValue

from trainer_client.measures import agreement_rate, cohen_kappa

SATISFIED_SCORE = 0.5
"""The least score of a verdict that says yes."""

MAX_SUMMARY_CRITERIA = 200
"""Criteria that a summary has figures of by themselves; above that it has those of all of them alone."""


def summary_of(verdicts: Sequence[dict[str, Any]]) -> dict[str, JsonValue]:
    """Figures over all labelled verdicts, and by criterion where those are not too many."""
    criteria = sorted({verdict["criterion"] for verdict in verdicts})
    by_criterion: dict[str, JsonValue] = {}
    if len(criteria) <= MAX_SUMMARY_CRITERIA:
        for criterion in criteria:
            by_criterion[criterion] = _figures([one for one in verdicts if one["criterion"] == criterion])
    return {**_figures(verdicts), "criteria": by_criterion}


def _figures(verdicts: Sequence[dict[str, Any]]) -> dict[str, JsonValue]:
    judged = [one for one in verdicts if one["score"] is not None]
    predicted = [one["score"] >= SATISFIED_SCORE for one in judged]
    labels = [one["label"] for one in judged]
    figures: dict[str, JsonValue] = {
        "verdicts": len(judged),
        "failed": len(verdicts) - len(judged),
        "accuracy": agreement_rate(predicted, labels),
        "kappa": cohen_kappa(predicted, labels),
        "auroc": auroc([one["score"] if one["probability"] is None else one["probability"] for one in judged], labels),
        "yes_labels": sum(labels),
        "yes_verdicts": sum(predicted),
    }
    return figures


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """The chance that a random yes scores above a random no, ties half; None where one of them is missing.

    By ranks (Mann and Whitney): the ranks of the yes, less the least that they could have, over all pairs.
    """
    yes = np.array(labels, dtype=bool)
    pairs = int(yes.sum()) * int((~yes).sum())
    if not pairs:
        return None
    _, places, counts = np.unique(np.array(scores, dtype=float), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    least = yes.sum() * (yes.sum() + 1) / 2
    return float((ranks[yes].sum() - least) / pairs)
