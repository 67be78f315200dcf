"""Which groups DRO trains on by their variance score: while training, and before it.

Knows scores only; `trainer_client.dro.variance_score` makes them.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainer_client._criteria import as_number


@dataclass(frozen=True, slots=True)
class RollingThreshold:
    """The threshold of DRO's variance filter (section 4.2), estimated anew every K steps.

    A value and not a process: `after_step` gives the next one, and all of it is numbers, so that a checkpoint can
    hold it and training go on from exactly there.

    Attributes:
        every: K, in steps, at least 1 (ours: 20).
        percentile: q, in [0, 100]: the share of groups to reject, in percent (ours: 50).
        threshold: scores below it are rejected; None during the first K steps.
        steps: steps since the last estimate, 0 to K - 1.
        recent: the scores of these steps, of accepted and rejected groups alike.
    """

    every: int = 20
    percentile: float = 50.0
    threshold: float | None = None
    steps: int = 0
    recent: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every is {self.every}; estimate the threshold anew every 1 step or more")
        if not 0.0 <= self.percentile <= 100.0:
            raise ValueError(f"percentile is {self.percentile!r}; it is a number in [0, 100]")

    def accepts(self, score: float) -> bool:
        """Whether a group of this score is trained on."""
        return self.threshold is None or _score("score", score) >= self.threshold

    def after_step(self, scores: Sequence[float]) -> "RollingThreshold":
        """Give the threshold for the next step.

        The K-th step's estimate is the q-th percentile of the scores of the last K steps, linear between ranks. A
        period without any score leaves the threshold as it was.

        Args:
            scores: of every scored group of the step, accepted or not; there may be none.

        Raises:
            ValueError: a score is not a finite number.
        """
        recent = (*self.recent, *(_score(f"scores[{index}]", given) for index, given in enumerate(scores)))
        if self.steps + 1 < self.every:
            return replace(self, steps=self.steps + 1, recent=recent)
        threshold = float(np.percentile(recent, self.percentile)) if recent else self.threshold
        return replace(self, threshold=threshold, steps=0, recent=())


def select_groups(
    scores: Sequence[float | None], *, top_fraction: float, random_fraction: float = 0.1, seed: int
) -> list[int]:
    """Choose the groups to train on before training: the top by score, and some of the rest (DRO, section 5.5).

    Args:
        scores: one variance score for each of N groups; None where there is none, and such a group is not chosen.
        top_fraction: the share of the scored groups to keep for their score, in [0, 1]. The paper's value is lost.
        random_fraction: the share of the remaining ones to keep at random, in [0, 1] (paper: 0.1).
        seed: of the random share; the same seed and scores choose the same groups.

    Returns:
        The chosen groups' indices, ascending. Shares of a group are rounded up; of equal scores the first are kept.

    Raises:
        ValueError: a share is out of range or a score no finite number.
    """
    scored = [(_score(f"scores[{index}]", given), index) for index, given in enumerate(scores) if given is not None]
    ranked = [index for _, index in sorted(scored, key=lambda pair: (-pair[0], pair[1]))]
    kept = rounded_up_share("top_fraction", top_fraction, len(ranked))
    rest = ranked[kept:]
    drawn = random.Random(seed).sample(rest, rounded_up_share("random_fraction", random_fraction, len(rest)))  # noqa: S311
    return sorted(ranked[:kept] + drawn)


def rounded_up_share(name: str, fraction: float, count: int) -> int:
    """How many a share of `count` is, rounded up; a rounding error of 1e-9 is forgiven.

    Raises:
        ValueError: the fraction, called `name`, is not in [0, 1].
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"{name} is {fraction!r}; it is a share in [0, 1]")
    return math.ceil(fraction * count - 1e-9)


def _score(name: str, given: Any) -> float:
    number = as_number(given)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {given!r}; a variance score is a finite number")
    return number
