"""Criteria and verdicts for tests of rewards."""

from typing import Any

from trainer_client.wire import Criterion, Failure, Verdict


def criterion(name: str, weight: float = 1.0, **fields: Any) -> Criterion:
    """A criterion of this id."""
    return Criterion(id=name, description="?", weight=weight, **fields)


def verdict(name: str, score: float | None, probability: float | None = None) -> Verdict:
    """A verdict on the criterion of this id, which failed if there is no score."""
    if score is None:
        return Verdict(criterion=name, status="failed", failure=Failure(kind="parse", detail=""))
    return Verdict(criterion=name, status="ok", score=score, probability=probability)
