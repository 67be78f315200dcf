"""Rubric dropout: judge a random subset of a group's criteria, and estimate the whole rubric's reward without bias.

In a mode that is linear in the scores, the reward is R = a + sum_j b_j s_j, where a and all b_j are known beforehand.
With m of N droppable criteria drawn without replacement, each is judged with probability pi = m / N, and the
Horvitz-Thompson estimator (Horvitz and Thompson, 1952)

    R_hat = a + sum over always judged b_j s_j + sum over judged b_j s_j / pi

has the mean R over all subsets. Dividing by the weight of the judged criteria instead would be unbiased only if all
weights are equal. R_hat may leave the range of R and is not clipped, since clipping would bias it.

A saturated criterion, which nearly every response meets, is instead judged in a share pi of the groups, whatever
becomes of other criteria. Where it is left out it counts as met, s_j = 1, and where it is judged as

    1 + (s_j - 1) / pi

whose mean over all draws is s_j as well: the difference estimator with the value 1 (Cochran, Sampling Techniques,
1977, section 7.2). It adds the variance (1 / pi - 1) (1 - s_j)**2, which is 0 for a response that meets the criterion.

All responses of a group are judged by the same subset, so that differences within the group compare like with like.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer_client.wire import Criterion, RubricDropout, Verdict

__all__ = ["REQUIRED_TAG", "CriteriaSample", "can_be_left_out", "draw_sample", "read_sample"]

REQUIRED_TAG = "required"
"""The tag by which a rubric's author marks a criterion that is always judged."""

_ROUNDING = 1e-9


class CriteriaSample(NamedTuple):
    """Which criteria of a rubric are judged.

    Attributes:
        droppable: M flags: whether the criterion could have been left out.
        left_out: M flags: whether it was.
        share: pi, if the droppable criteria are saturated ones; None if a fixed number m of N was drawn.
    """

    droppable: tuple[bool, ...]
    left_out: tuple[bool, ...]
    share: float | None = None

    @property
    def inclusion(self) -> float:
        """pi, the probability with which a droppable criterion is judged: `share`, or m / N, or 1 if there is none."""
        return self.inclusion_without(0)

    def inclusion_without(self, removed: int) -> float:
        """pi in the rubric without `removed` of the judged droppable criteria: (m - removed) / (N - removed)."""
        droppable = sum(self.droppable) - removed
        if self.share is not None:
            return self.share
        return (droppable - sum(self.left_out)) / droppable if droppable else 1.0

    @property
    def left_out_value(self) -> float:
        """What a criterion that was left out counts as: 1 if it is saturated, else 0."""
        return 0.0 if self.share is None else 1.0

    def estimate(self, score: float, removed: int = 0) -> float:
        """The number in the place of the score of a droppable criterion, judged or not, whose mean is the score."""
        return self.left_out_value + (score - self.left_out_value) / self.inclusion_without(removed)

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


def read_sample(
    criteria: Sequence[Criterion], verdicts: Sequence[Verdict | None], dropout: RubricDropout | None = None
) -> CriteriaSample | None:
    """Return the sample behind the M verdicts on M criteria; None if none of them could be, or none was, left out.

    A verdict of None is not known, and counts as one of the judge. So does one on a response that says nothing: the
    criteria were drawn for the whole group. `dropout` is the request's, if it is known; only that of saturated criteria
    is needed.
    """
    left_out = tuple([verdict is not None and verdict.status == "left_out" for verdict in verdicts])
    by_program = [verdict is not None and verdict.method not in ("judge", "no_content") for verdict in verdicts]
    if dropout is not None and dropout.saturated is not False:
        return CriteriaSample(_droppable(criteria, by_program, dropout), left_out, dropout.keep)
    if not any(left_out):
        return None
    return CriteriaSample(_droppable(criteria, by_program, dropout), left_out)


def draw_sample(
    criteria: Sequence[Criterion],
    dropout: RubricDropout,
    *,
    by_program: Sequence[bool],
    run: str | None,
    step: int | None,
    group: str,
) -> CriteriaSample:
    """Draw the criteria that judge a group: m = ceil(keep * N) of the N droppable ones, at least one, and all others.

    The draw takes those with the lowest hashes, so equal arguments give the same subset on every machine, and a retry
    judges what the first attempt did. Of saturated criteria, it takes each whose hash is in the lowest share `keep`.

    Args:
        criteria: the M criteria of the rubric.
        dropout: the share to keep, the seed, and the ids of the saturated criteria, if only these may be left out.
        by_program: M flags: whether a program decides the criterion.
        run, step, group: the names of the run and group, and the step.
    """
    droppable = _droppable(criteria, by_program, dropout)
    places = [place for place, may_go in enumerate(droppable) if may_go]

    def drawn(place: int) -> bytes:
        return hashlib.sha256(json.dumps([dropout.seed, run, step, group, criteria[place].id]).encode()).digest()

    if dropout.saturated is False:
        share = None
        gone = set(sorted(places, key=drawn)[max(1, math.ceil(dropout.keep * len(places) - _ROUNDING)) :])
    else:
        share = dropout.keep
        gone = {place for place in places if int.from_bytes(drawn(place)[:8], "big") >= share * 2**64}
    return CriteriaSample(droppable, tuple([place in gone for place in range(len(criteria))]), share)


def _droppable(
    criteria: Sequence[Criterion], by_program: Sequence[bool], dropout: RubricDropout | None
) -> tuple[bool, ...]:
    """Whether each criterion may be left out."""
    saturated = dropout.saturated if dropout is not None else False
    named = None if isinstance(saturated, bool) else {*saturated}
    return tuple(
        [
            (named is None or criterion.id in named) and can_be_left_out(criterion, by_program=program)
            for criterion, program in zip(criteria, by_program, strict=True)
        ]
    )
