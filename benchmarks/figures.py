"""Measures of agreement for tables: nan if undefined."""

import math
from collections.abc import Sequence

from judge_server.evaluation import metrics
from trainer_client.measures import agreement_rate, cohen_kappa


def agreement(verdicts: Sequence[int], labels: Sequence[int]) -> tuple[float, float]:
    """Return the share of equal verdicts, and Cohen's kappa."""
    return _or_nan(agreement_rate(verdicts, labels)), _or_nan(cohen_kappa(verdicts, labels))


def auroc(scores: Sequence[float], labels: Sequence[int]) -> float:
    """Return the probability that a random yes scores above a random no, with ties counted as half."""
    return _or_nan(metrics.auroc(scores, [bool(label) for label in labels]))


def _or_nan(figure: float | None) -> float:
    return math.nan if figure is None else figure
