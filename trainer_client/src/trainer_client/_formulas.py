"""The formula of each reward mode, over criteria that all have a score.

What each means and where it is from stands in `trainer_client.rewards`. Knows no missing scores.
"""

import math
from collections.abc import Callable

from trainer_client._criteria import Term
from trainer_client.wire.rewards import RewardMode

ScoredTerms = list[tuple[Term, float]]
"""Criteria and their scores in [0, 1]."""

_ROUNDING = 1e-9


def _weighted_mean(scored: ScoredTerms) -> float | None:
    total = sum(term.weight for term, _ in scored)
    if total <= 0:
        return None
    return min(1.0, max(0.0, sum(term.weight * score for term, score in scored) / total))


def _factual_override(scored: ScoredTerms) -> float | None:
    mean = _weighted_mean(scored)
    factual = [score for term, score in scored if term.kind == "factual"]
    return 1.0 if mean is not None and factual and min(factual) == 1.0 else mean


def _points(scored: ScoredTerms) -> float | None:
    positive = sum(term.weight for term, _ in scored if term.weight > 0)
    return sum(term.weight * score for term, score in scored) / positive if positive > 0 else None


def clipped_points(scored: ScoredTerms, *, only_mistakes: bool) -> float | None:
    """Points clipped to [0, 1]; of a rubric of nothing but mistakes, 1 less the share of their weight that was made."""
    if not only_mistakes:
        points = _points(scored)
        return None if points is None else min(1.0, max(0.0, points))
    made = absolute_points(scored)
    return None if made is None else min(1.0, max(0.0, 1.0 + made))


def absolute_points(scored: ScoredTerms) -> float | None:
    """Sum w s / sum |w|."""
    total = sum(abs(term.weight) for term, _ in scored)
    return sum(term.weight * score for term, score in scored) / total if total > 0 else None


def _mean(scored: ScoredTerms) -> float | None:
    return sum(score for _, score in scored) / len(scored) if scored else None


def _graded_mean(scored: ScoredTerms) -> float | None:
    return _mean([(t, 1.0 - score if t.weight < 0 or t.kind == "pitfall" else score) for t, score in scored])


def is_nondecreasing(term: Term, mode: RewardMode) -> bool:
    """Whether the reward never falls as the term's score rises; else it never rises."""
    if mode in ("stepwise", "gate", "likert", "outcome"):
        return True
    return term.weight >= 0 and not (mode == "graded_mean" and term.kind == "pitfall")


def gate_reward(scored: ScoredTerms, fraction: float) -> float:
    """1 if at least the fraction of the scored criteria is satisfied, else 0; 1 where there are none."""
    satisfied = sum(score == 1.0 for _, score in scored)
    return float(satisfied >= math.ceil(fraction * len(scored) - _ROUNDING))


FORMULAS: dict[RewardMode, Callable[[ScoredTerms], float | None]] = {
    "weighted_mean": _weighted_mean,
    "factual_override": _factual_override,
    "points": _points,
    "absolute_points": absolute_points,
    "partial_credit": _weighted_mean,
    "stepwise": _mean,
    "graded_mean": _graded_mean,
    "likert": _mean,
    "outcome": _mean,
}
"""The formula of each mode but `gate` and `clipped_points` over the criteria it needs.

None where there is nothing to divide by.
"""
