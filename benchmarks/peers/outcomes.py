"""What became of each judgement: told right, told as failed, made up, or lost with the run."""

from collections.abc import Set
from dataclasses import dataclass

from benchmarks.peers.driving import PassResult
from benchmarks.peers.worksheets import pair, truth


@dataclass(frozen=True)
class JudgementCounts:
    """Judgements of a pass.

    `made_up` are scores of pairs on which the server never gave a verdict, or that are not its verdict. `lost` came
    back neither as a score nor as a failure, since the whole pass broke.
    """

    right: int
    failed: int
    made_up: int
    lost: int


def tally(took: PassResult, set_number: int, judgements: int, answered: Set[str]) -> JudgementCounts:
    """Compare what a contender gave with what the scripted server answered."""
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
