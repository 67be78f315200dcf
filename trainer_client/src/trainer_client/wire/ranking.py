"""The mode `ranking` in messages: which pairs of a group are compared, what that needs, and how it went."""

from collections.abc import Sequence
from typing import Literal

from trainer_client.wire.base import AnswerModel
from trainer_client.wire.judging import JudgingOptions

RankingSchedule = Literal["all_pairs", "swiss", "pivot"]
"""Which pairs of a group are compared; `RewardOptions.schedule` says what each one means."""

MAX_RANKED = 512
"""The most responses of a group in the mode `ranking`."""


class RankingReport(AnswerModel):
    """How a group was compared in the mode `ranking`, and how much the order of showing decided.

    Attributes:
        schedule: the schedule in force.
        pairs: the pairs that were to be compared, each in both orders.
        failed: the pairs without an answer in both orders. They count neither as a win nor as a loss.
        inconsistent: the answered pairs on which the judge's verdicts in the two orders differ.
        first_preferred: over the answered pairs, how often the judge preferred the response that was shown first. A
            judge without position bias has 0.5; one that always takes the first has 1. Null without an answered pair.
    """

    schedule: RankingSchedule
    pairs: int
    failed: int
    inconsistent: int
    first_preferred: float | None = None


def ranking_problem(responses: Sequence[int], judging: JudgingOptions) -> str | None:
    """Return what to change about a request for a ranking; None if it can be answered.

    Args:
        responses: the number of responses of each group.
        judging: how the judge is to be asked.
    """
    for index, count in enumerate(responses):
        if not 2 <= count <= MAX_RANKED:
            return f"groups.{index} has {count} responses: send 2 to {MAX_RANKED} in one group, or use another mode"
    unused = {
        "votes": judging.votes > 1,
        "temperature": bool(judging.temperature),
        "criteria_per_call": judging.criteria_per_call not in (None, 1),
        "truncate": judging.truncate,
    }
    return next((f"leave out judging.{name}" for name, given in unused.items() if given), None)
