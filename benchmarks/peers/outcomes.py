"""Classify judgements: right, reported as failed, made up, or lost with the pass."""

from collections.abc import Set
from dataclasses import dataclass

from benchmarks.peers.driving import PassResult
from benchmarks.peers.worksheets import pair, truth


@dataclass(frozen=True)
class JudgementCounts:
    """Counts of a pass's judgements.

    `made_up` counts scores without a verdict of the server, or that differ from its verdict. `lost` counts judgements
    that came back neither as a score nor as a failure, since the whole pass failed.
    """

    right: int
    failed: int
    made_up: int
    lost: int


def tally(took: PassResult, set_number: int, judgements: int, answered: Set[str]) -> JudgementCounts:
    """Compare a contender's scores with the scripted server's verdicts."""
    right = failed = made_up = 0
    for number, scores in enumerate(took.scores):
        for criterion, score in enumerate(scores):
            judged = pair(f"{set_number}-{number}", criterion)
            if isinstance(score, str):
                failed += 1
            elif judged in answered and (score >= 0.5) is truth(judged):
                right += 1
            else:
                made_up += 1
    return JudgementCounts(right, failed, made_up, judgements - right - failed - made_up)
