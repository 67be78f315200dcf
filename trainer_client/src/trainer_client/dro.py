"""DRO: the reward from the policy's certainty of a reference answer, its gates, and the variance filter.

All functions take probabilities and verdicts as numbers. `variance_score` measures how much the certainties of a group
vary; `RollingThreshold` filters groups by it during training, `select_groups` before training.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_client._inputs import Score, read_scores
from trainer_client.advantages import Array, read_finite, read_finite_or_none
from trainer_client.measures import rouge_l_f1

__all__ = [
    "Gates",
    "RollingThreshold",
    "average_log_probability",
    "average_probability",
    "gate",
    "reasoning_reflection_reward",
    "rouge_l_f1",
    "select_groups",
    "variance_score",
]


Probabilities = Sequence[Sequence[float]] | npt.NDArray[Any]
"""G x T probabilities p_ij, in [0, 1], of token j of the reference answer after the reasoning of rollout i. All rows
have the same T tokens. The caller leaves out rollouts without probabilities; they get no reward."""

_ROUNDING = 1e-6
SMALLEST_PROBABILITY = float(np.finfo(np.float32).smallest_subnormal)
"""The smallest probability above 0 in float32, about 1.4e-45; its logarithm is -103."""


class Gates(NamedTuple):
    """Whether a group passes each gate; None if missing verdicts leave it undecided.

    The group passes if both gates are True, fails if either is False, and is otherwise undecided. This is exact, since
    satisfying more rubrics never closes a gate.
    """

    coverage: bool | None
    consistency: bool | None


def reasoning_reflection_reward(
    probs: Probabilities, *, beta: float = 10.0, p_min: float = 0.05, p_max: float = 0.95
) -> tuple[Array, Array]:
    """Compute R3, the reasoning reflection reward of each rollout of a group (DRO, eq. 2).

    R3_i = sum_j w_j p_ij with w = softmax(beta * sigma), sigma_j being the population's deviation of p_j over the
    group, and every p clipped to [p_min, p_max].

    Args:
        probs: G x T, see `Probabilities`.
        beta: how strongly tokens of high deviation are preferred, finite; 0 gives equal weights (ours: 10).
        p_min: the lower clip (ours: 0.05).
        p_max: the upper clip (ours: 0.95).

    Returns:
        G rewards in [p_min, p_max], and T weights that sum to 1.

    Raises:
        ValueError: there are no rows, or they are empty or of different lengths; a p is outside [0, 1]; an option is
            out of range.
    """
    if not math.isfinite(beta):
        raise ValueError(f"beta is {beta!r}; use a finite number")
    clipped = _clipped(probs, p_min, p_max)
    logits = beta * clipped.std(axis=0)
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    return clipped @ weights, weights


def average_probability(probs: Probabilities) -> Array:
    """Compute the mean p of each of G rollouts: R3 with beta 0 and no clipping, a baseline of DRO."""
    means: Array = _read_probs(probs).mean(axis=1)
    return means


def average_log_probability(probs: Probabilities, *, floor: float = SMALLEST_PROBABILITY) -> Array:
    """Compute the mean log p of each of G rollouts, in nats, a baseline of DRO.

    The paper has no floor, and shows that one improbable token dominates this reward. A p below `floor`, in (0, 1],
    counts as `floor`. The default is the smallest number above 0 in float32, so that log p is finite and no other
    probability changes. A higher floor would improve the baseline beyond the paper's.

    Raises:
        ValueError: as for `reasoning_reflection_reward`.
    """
    if not 0.0 < floor <= 1.0:
        raise ValueError(f"floor is {floor!r}; use a probability in (0, 1]")
    means: Array = np.log(_read_probs(probs).clip(floor)).mean(axis=1)
    return means


def gate(
    satisfied: Sequence[Sequence[Score]],
    rewards: Sequence[float | None],
    *,
    min_rollouts: int = 1,
    top_k: int | None = None,
    min_fraction: float = 0.5,
) -> Gates:
    """Decide whether to train on a group of rollouts (DRO, section 4.1).

    *Coverage*: each rubric is satisfied by at least m rollouts. *Consistency*: each of the k rollouts with the highest
    reward satisfies at least the fraction rho of the rubrics. A gate is decided only if every way of filling in the
    missing verdicts gives the same result. Without rubrics, both gates pass.

    Args:
        satisfied: G rows of M verdicts; True or 1 is satisfied, False or any other number in [0, 1] is not, None is
            missing.
        rewards: G rewards R3 to rank by; among equal ones, the first ranks higher. A rollout whose reward is None is
            not ranked, but its verdicts count for coverage.
        min_rollouts: m, at least 0 (ours: 1).
        top_k: k, at least 0 (ours: G / 4, rounded up).
        min_fraction: rho, in [0, 1] (ours: 0.5). A rounding error of 1e-9 in rho * M is tolerated.

    Raises:
        ValueError: there are no rollouts, rows differ in length, a verdict or reward is invalid, or an option is out of
            range.
    """
    if len(satisfied) == 0 or len(satisfied) != len(rewards):
        raise ValueError(f"{len(satisfied)} rows of verdicts and {len(rewards)} rewards; give one of each per rollout")
    if min_rollouts < 0 or (top_k is not None and top_k < 0):
        raise ValueError(f"min_rollouts is {min_rollouts} and top_k {top_k}; both must be at least 0")
    rubrics = len(satisfied[0])
    rows = [[None if s is None else s == 1.0 for s in read_scores(row, rubrics)] for row in satisfied]
    needed = rounded_up_share("min_fraction", min_fraction, rubrics)
    ranked = _ranking(rewards)[: math.ceil(len(rewards) / 4) if top_k is None else top_k]
    return Gates(
        _all_true(_at_least(min_rollouts, column) for column in zip(*rows, strict=True)),
        _all_true(_at_least(needed, rows[index]) for index in ranked),
    )


def variance_score(
    probs: Probabilities, *, top_fraction: float = 0.1, p_min: float = 0.05, p_max: float = 0.95
) -> float:
    """Compute how much a group's certainties vary: the mean of the highest sigma_j (DRO, section 4.2).

    Args:
        probs: G x T, see `Probabilities`.
        top_fraction: the share of the T tokens that counts, in [0, 1], rounded up and at least one token (ours: 0.1).
        p_min: the lower clip (ours: 0.05).
        p_max: the upper clip (ours: 0.95).

    Raises:
        ValueError: as for `reasoning_reflection_reward`.
    """
    deviations = np.sort(_clipped(probs, p_min, p_max).std(axis=0))
    count = max(1, rounded_up_share("top_fraction", top_fraction, len(deviations)))
    return float(deviations[-count:].mean())


@dataclass(frozen=True, slots=True)
class RollingThreshold:
    """The threshold of DRO's variance filter (section 4.2), estimated every K steps.

    It is immutable: `after_step` returns the next one. All fields are numbers, so that a checkpoint can store it and
    training resumes exactly.

    Attributes:
        every: K, in steps, at least 1 (ours: 20).
        percentile: q, in [0, 100]: the share of groups to reject, in percent (ours: 50).
        threshold: scores below it are rejected; None during the first K steps.
        steps: steps since the last estimate, 0 to K - 1.
        recent: the scores of these steps, of both accepted and rejected groups.
    """

    every: int = 20
    percentile: float = 50.0
    threshold: float | None = None
    steps: int = 0
    recent: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every is {self.every}; use at least 1 step")
        if not 0.0 <= self.percentile <= 100.0:
            raise ValueError(f"percentile is {self.percentile!r}; use a number in [0, 100]")

    def accepts(self, score: float) -> bool:
        """Whether to train on a group with this score."""
        return self.threshold is None or read_finite("score", score) >= self.threshold

    def after_step(self, scores: Sequence[float]) -> "RollingThreshold":
        """Return the threshold for the next step.

        After every K-th step, the estimate is the q-th percentile of the scores of the last K steps, linear between
        ranks. A period without scores leaves the threshold unchanged.

        Args:
            scores: the scores of all scored groups of the step, accepted or not; may be empty.

        Raises:
            ValueError: a score is not a finite number.
        """
        recent = (*self.recent, *(read_finite(f"scores[{index}]", given) for index, given in enumerate(scores)))
        if self.steps + 1 < self.every:
            return replace(self, steps=self.steps + 1, recent=recent)
        threshold = float(np.percentile(recent, self.percentile)) if recent else self.threshold
        return replace(self, threshold=threshold, steps=0, recent=())


def select_groups(
    scores: Sequence[float | None], *, top_fraction: float, random_fraction: float = 0.1, seed: int
) -> list[int]:
    """Select the groups to train on before training: the top by score, and some of the rest (DRO, section 5.5).

    Args:
        scores: one variance score for each of N groups; a group with None is not selected.
        top_fraction: the share of the scored groups to select by score, in [0, 1]. The paper's value is not known.
        random_fraction: the share of the remaining ones to select at random, in [0, 1] (paper: 0.1).
        seed: the seed of the random selection; the same seed and scores select the same groups.

    Returns:
        The indices of the selected groups, ascending. Numbers of groups are rounded up; among equal scores, the first
        groups are selected.

    Raises:
        ValueError: a share is out of range, or a score is not a finite number.
    """
    scored = [
        (read_finite(f"scores[{index}]", given), index) for index, given in enumerate(scores) if given is not None
    ]
    ranked = [index for _, index in sorted(scored, key=lambda pair: (-pair[0], pair[1]))]
    kept = rounded_up_share("top_fraction", top_fraction, len(ranked))
    rest = ranked[kept:]
    drawn = random.Random(seed).sample(rest, rounded_up_share("random_fraction", random_fraction, len(rest)))  # noqa: S311
    return sorted(ranked[:kept] + drawn)


def _at_least(needed: int, verdicts: Sequence[bool | None]) -> bool | None:
    """Whether at least `needed` verdicts are True; None if that depends on missing ones."""
    confirmed = sum(verdict is True for verdict in verdicts)
    if confirmed >= needed:
        return True
    return None if confirmed + sum(verdict is None for verdict in verdicts) >= needed else False


def _all_true(parts: Iterable[bool | None]) -> bool | None:
    decided = set(parts)
    return False if False in decided else None if None in decided else True


def _ranking(rewards: Sequence[float | None]) -> list[int]:
    numbers = [read_finite_or_none(f"rewards[{index}]", given) for index, given in enumerate(rewards)]
    known = [(-number, index) for index, number in enumerate(numbers) if number is not None]
    return [index for _, index in sorted(known)]


def _clipped(probs: Probabilities, p_min: float, p_max: float) -> Array:
    if not 0.0 <= p_min <= p_max <= 1.0:
        raise ValueError(f"p_min is {p_min!r} and p_max {p_max!r}; use probabilities, p_min at most p_max")
    return _read_probs(probs).clip(p_min, p_max)


def _read_probs(probs: Probabilities) -> Array:
    widths = {len(row) for row in probs}
    if len(widths) != 1 or 0 in widths:
        raise ValueError(
            f"probs has rows of {sorted(widths)} tokens; give one row per rollout, each with the tokens of the same "
            "reference answer, at least one"
        )
    given = np.asarray(probs)
    if given.ndim != 2 or given.dtype.kind not in "fiub":
        raise ValueError("probs holds something other than numbers; leave out rollouts without probabilities")
    if not ((given >= 0.0) & (given <= 1.0 + _ROUNDING)).all():
        raise ValueError("probs holds a number outside [0, 1]; pass probabilities, not their logarithms")
    return given.astype(np.float64).clip(0.0, 1.0)


def rounded_up_share(name: str, fraction: float, count: int) -> int:
    """Return a share of `count`, rounded up; a rounding error of 1e-9 is tolerated.

    Raises:
        ValueError: the fraction is not in [0, 1]; the message calls it `name`.
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"{name} is {fraction!r}; it is a share in [0, 1]")
    return math.ceil(fraction * count - 1e-9)
