"""Rubric dropout: judge a random subset of a group's criteria, and estimate the whole rubric's reward without bias.

In a mode that is linear in the scores, the reward is R = a + sum_j b_j s_j, where a and all b_j are known beforehand.
With m of N droppable criteria drawn without replacement, each is judged with probability pi = m / N, and the
Horvitz-Thompson estimator (Horvitz and Thompson, 1952)

    R_hat = a + sum over always judged b_j s_j + sum over judged b_j s_j / pi

has the mean R over all subsets. Dividing by the weight of the judged criteria instead would be unbiased only if all
weights are equal. R_hat may leave the range of R and is not clipped, since clipping would bias it.

All responses of a group are judged by the same subset, so that differences within the group compare like with like.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer_client.wire import Criterion, Verdict

__all__ = ["REQUIRED_TAG", "CriteriaSample", "can_be_left_out", "draw_sample", "read_sample"]

REQUIRED_TAG = "required"
"""The tag by which a rubric's author marks a criterion that is always judged."""

_ROUNDING = 1e-9


class CriteriaSample(NamedTuple):
    """Which criteria of a rubric are judged.

    Attributes:
        droppable: M flags: whether the criterion could have been left out.
        left_out: M flags: whether it was.
    """

    droppable: tuple[bool, ...]
    left_out: tuple[bool, ...]

    @property
    def inclusion(self) -> float:
        """pi = m / N, the probability with which a droppable criterion is judged; 1 if there is none."""
        return self.inclusion_without(0)

    def inclusion_without(self, removed: int) -> float:
        """(m - removed) / (N - removed): pi in the rubric without `removed` of the judged droppable criteria."""
        droppable = sum(self.droppable) - removed
        return (droppable - sum(self.left_out)) / droppable if droppable else 1.0

    def inclusions(self) -> list[float]:
        """The probability with which each criterion is judged: pi, or 1 if it always is."""
        return [self.inclusion if droppable else 1.0 for droppable in self.droppable]


def can_be_left_out(criterion: Criterion, *, by_program: bool) -> bool:
    """Whether dropout may leave a criterion out.

    It never leaves out an `answer`, a `pitfall`, a criterion of negative weight, one that its author tagged `required`,
    or one that a program decides: these guard the reward, or cost no call.
    """
    guards = criterion.kind in ("answer", "pitfall") or criterion.weight < 0
    return not (by_program or guards or REQUIRED_TAG in criterion.tags)


def read_sample(criteria: Sequence[Criterion], verdicts: Sequence[Verdict | None]) -> CriteriaSample | None:
    """Return the sample behind the M verdicts on M criteria; None if none of them was left out.

    A verdict of None is not known, and counts as one of the judge.
    """
    left_out = tuple([verdict is not None and verdict.status == "left_out" for verdict in verdicts])
    if not any(left_out):
        return None
    droppable = [
        can_be_left_out(criterion, by_program=verdict is not None and verdict.method != "judge")
        for criterion, verdict in zip(criteria, verdicts, strict=True)
    ]
    return CriteriaSample(tuple(droppable), left_out)


def draw_sample(
    criteria: Sequence[Criterion],
    keep: float,
    *,
    by_program: Sequence[bool],
    seed: int,
    run: str | None,
    step: int | None,
    group: str,
) -> CriteriaSample:
    """Draw the criteria that judge a group: m = ceil(keep * N) of the N droppable ones, at least one, and all others.

    The draw takes those with the lowest hashes, so equal arguments give the same subset on every machine, and a retry
    judges what the first attempt did.

    Args:
        criteria: the M criteria of the rubric.
        keep: the share to keep, in (0, 1].
        by_program: M flags: whether a program decides the criterion.
        seed: the request's seed.
        run, step, group: the names of the run and group, and the step.
    """
    droppable = [can_be_left_out(c, by_program=program) for c, program in zip(criteria, by_program, strict=True)]
    places = [place for place, may_go in enumerate(droppable) if may_go]
    kept = max(1, math.ceil(keep * len(places) - _ROUNDING))

    def drawn(place: int) -> bytes:
        return hashlib.sha256(json.dumps([seed, run, step, group, criteria[place].id]).encode()).digest()

    left_out = set(sorted(places, key=drawn)[kept:])
    return CriteriaSample(tuple(droppable), tuple([place in left_out for place in range(len(criteria))]))
