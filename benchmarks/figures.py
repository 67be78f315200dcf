"""How far verdicts agree with labels, in figures."""

from collections.abc import Sequence

import numpy as np


def agreement(verdicts: Sequence[int], labels: Sequence[int]) -> tuple[float, float]:
    """The share of equal verdicts, and Cohen's kappa, which is undefined (nan) where chance alone agrees always."""
    x, y = np.array(verdicts), np.array(labels)
    observed = float(np.mean(x == y))
    chance = float(np.mean(x) * np.mean(y) + (1 - np.mean(x)) * (1 - np.mean(y)))
    return observed, (observed - chance) / (1 - chance) if chance < 1 else float("nan")


def auroc(scores: Sequence[float], labels: Sequence[int]) -> float:
    """The chance that a random yes scores above a random no, ties half; nan where one of them is missing."""
    x, y = np.array(scores), np.array(labels)
    yes, no = x[y == 1][:, None], x[y == 0][None, :]
    return float(np.mean((yes > no) + 0.5 * (yes == no))) if yes.size and no.size else float("nan")
