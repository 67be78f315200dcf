"""Measures of agreement between a judge's verdicts and labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import JsonValue

from trainer_client.measures import agreement_rate, cohen_kappa

SATISFIED_SCORE = 0.5
"""The lowest score of a verdict that counts as satisfied."""

MAX_SUMMARY_CRITERIA = 200
"""The maximum number of criteria with figures of their own; with more, a summary has only the totals."""


def summary_of(verdicts: Sequence[dict[str, Any]]) -> dict[str, JsonValue]:
    """The figures over all labelled verdicts, and by criterion unless there are too many criteria."""
    criteria = sorted({verdict["criterion"] for verdict in verdicts})
    by_criterion: dict[str, JsonValue] = {}
    if len(criteria) <= MAX_SUMMARY_CRITERIA:
        for criterion in criteria:
            by_criterion[criterion] = _figures([v for v in verdicts if v["criterion"] == criterion])
    return {**_figures(verdicts), "criteria": by_criterion}


def _figures(verdicts: Sequence[dict[str, Any]]) -> dict[str, JsonValue]:
    judged = [v for v in verdicts if v["score"] is not None]
    predicted = [v["score"] >= SATISFIED_SCORE for v in judged]
    labels = [v["label"] for v in judged]
    figures: dict[str, JsonValue] = {
        "verdicts": len(judged),
        "failed": len(verdicts) - len(judged),
        "accuracy": agreement_rate(predicted, labels),
        "kappa": cohen_kappa(predicted, labels),
        "auroc": auroc([v["score"] if v["probability"] is None else v["probability"] for v in judged], labels),
        "yes_labels": sum(labels),
        "yes_verdicts": sum(predicted),
    }
    return figures


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """The probability that a random positive scores above a random negative, with ties counted half.

    It is None if there are no positives or no negatives. It is computed from ranks (Mann and Whitney): the sum of the
    positives' ranks, minus its minimum, divided by the number of pairs.
    """
    positive = np.array(labels, dtype=bool)
    pairs = int(positive.sum()) * int((~positive).sum())
    if not pairs:
        return None
    _, places, counts = np.unique(np.array(scores, dtype=float), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    minimum = positive.sum() * (positive.sum() + 1) / 2
    return float((ranks[positive].sum() - minimum) / pairs)
