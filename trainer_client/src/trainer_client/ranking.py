"""Reward the responses of a group by how they fare against each other (mode `ranking`).

The judge says which of two responses is better, in both orders. Bradley and Terry (1952, Biometrika 39:324-345) give
response i a strength theta_i, so that i is preferred over j with probability sigma(theta_i - theta_j). The strengths of
a group maximise

    sum over comparisons of s log sigma(theta_i - theta_j) + (1 - s) log sigma(theta_j - theta_i)
    - sum over responses of theta_i^2 / 2

where s is 1 if i was preferred, 0 if j was, 1/2 for a tie, or the judge's probability that i is better. The last term
is a normal prior of variance 1: it keeps the strength of a response that won everything finite, and makes the strengths
add up to 0. The reward is sigma(theta_i), the probability of being preferred over a response of average strength. It
lies in (0, 1), is 1/2 for the average and for a group of ties, and swapping all wins and losses turns r into 1 - r.

A failed comparison is never a loss:

- A pair counts if it has an answer in both orders, so that a judge's preference for a place cancels out; any other pair
  is as if it had not been planned.
- Strengths are only comparable between responses that are connected by counted pairs. The responses outside the largest
  connected set have no reward; if the two largest are of one size, no response has.
- A response of that set has a reward if at least half of its planned pairs count. The failure policy decides about the
  others, and `skip` rewards those of the set by the pairs that they have.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainer_client.rewards import RewardOutcome, UnscoredCriteria
from trainer_client.wire.rewards import FailurePolicy, RankingReport, RankingSchedule
from trainer_client.wire.verdicts import FailureKind

if TYPE_CHECKING:  # NumPy takes long to import, and few services rank
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PairVerdict", "bradley_terry", "compared_with", "comparison_id", "rank", "report"]

_MAX_STEPS = 100
_TOLERANCE = 1e-10
_COMPARISON_ID = re.compile(r"beats_(\d+)")


class PairVerdict(NamedTuple):
    """The judge's verdict on two responses in one order.

    Attributes:
        first, second: the places of the responses in their group; `first` was shown first.
        win: what the first one gained, from 0 to 1: its score, or the probability that it is better. None if judging
            failed.
        score: 1 if the first one was preferred, 0 if the second was, 0.5 for a tie; None if judging failed.
        failure: the kind of failure.
    """

    first: int
    second: int
    win: float | None
    score: float | None
    failure: FailureKind | None = None


def comparison_id(opponent: int) -> str:
    """Return the id under which a response has its verdict against the response at this place of the group.

    Each comparison is a verdict on the response that was shown first.
    """
    return f"beats_{opponent}"


def compared_with(criterion: str) -> int | None:
    """Return the place of the opponent that an id names; None for another id."""
    found = _COMPARISON_ID.fullmatch(criterion)
    return None if found is None else int(found[1])


def bradley_terry(count: int, games: Iterable[tuple[int, int, float]]) -> list[float]:
    """Return the strengths of `count` responses from games (i, j, what i won of it, from 0 to 1).

    The strengths add up to 0 within each connected set of responses. One without a game has the strength 0.

    Raises:
        ValueError: a game is not between two of these responses, or its share is not in [0, 1].
    """
    import numpy as np

    wins = np.zeros((count, count))
    for i, j, win in games:
        if not (0 <= i < count and 0 <= j < count and i != j and 0.0 <= win <= 1.0):
            raise ValueError(f"({i}, {j}, {win}) is not a game between two of {count} responses with a share in [0, 1]")
        wins[i, j] += win
        wins[j, i] += 1.0 - win
    played = wins + wins.T
    won = wins.sum(axis=1)
    strengths = np.zeros(count)
    for _ in range(_MAX_STEPS):
        expected = _preferred(strengths)
        gradient = won - (played * expected).sum(axis=1) - strengths
        if np.abs(gradient).max(initial=0.0) < _TOLERANCE:
            break
        information = played * expected * expected.T
        hessian = np.diag(information.sum(axis=1) + 1.0) - information
        step = np.linalg.solve(hessian, gradient)
        size, before = 1.0, _log_posterior(strengths, wins)
        while _log_posterior(strengths + size * step, wins) < before - 1e-12 and size > 1e-6:
            size /= 2
        strengths = strengths + size * step
    return [float(strength) for strength in strengths]


def _preferred(strengths: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return sigma(theta_i - theta_j) for all i and j."""
    import numpy as np

    chances: NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * (strengths[:, None] - strengths[None, :])))
    return chances


def _log_posterior(strengths: "NDArray[np.float64]", wins: "NDArray[np.float64]") -> float:
    import numpy as np

    differences = strengths[:, None] - strengths[None, :]
    return float(-(wins * np.logaddexp(0.0, -differences)).sum() - (strengths**2).sum() / 2)


def rank(count: int, verdicts: Sequence[PairVerdict], on_failure: FailurePolicy = "null") -> list[RewardOutcome]:
    """Return the reward of each of the `count` responses of a group, and how it was determined.

    `status` is `scored` if all planned pairs of a response count, `partial` if some do not but it has a reward.
    `dropped` is the number of pairs that `skip` went without.

    Args:
        count: the number of responses.
        verdicts: every planned comparison, two for each pair; a failed one has no win.
        on_failure: what becomes of a response without enough comparisons, or outside the largest connected set.

    Raises:
        UnscoredCriteria: `on_failure` is `error` and a response has no reward.
    """
    counted = _counted_pairs(verdicts)
    planned = Counter(place for pair in _pairs(verdicts) for place in pair)
    known = Counter(place for pair in counted for place in pair)
    ranked = _largest_set(count, counted)
    games = [(i, j, win) for (i, j), wins in counted.items() if i in ranked for win in wins]
    rewards = [0.5 * (1.0 + math.tanh(0.5 * strength)) for strength in bradley_terry(count, games)]
    failures: dict[int, set[FailureKind | None]] = defaultdict(set)
    for one in verdicts:
        if one.win is None:
            failures[one.first].add(one.failure)
            failures[one.second].add(one.failure)
    outcomes, unscored = [], []
    for place in range(count):
        missing = planned[place] - known[place]
        enough = place in ranked and 2 * known[place] >= planned[place]
        if enough or (place in ranked and on_failure == "skip"):
            status: Literal["scored", "partial"] = "partial" if missing else "scored"
            reward = rewards[place]
            outcomes.append(RewardOutcome(reward, status) if enough else RewardOutcome(reward, status, "skip", missing))
            continue
        unscored.append(f"response {place}")
        outcomes.append(_without_reward(on_failure, failures[place]))
    if unscored and on_failure == "error":
        raise UnscoredCriteria(tuple(unscored))
    return outcomes


def report(schedule: RankingSchedule, verdicts: Sequence[PairVerdict]) -> RankingReport:
    """Say how a group was compared, and how much the order of showing decided."""
    counted = _counted_pairs(verdicts)
    scores = {(one.first, one.second): one.score for one in verdicts}
    both = [(scores[i, j] or 0.0, scores[j, i] or 0.0) for i, j in counted]
    pairs = len(_pairs(verdicts))
    return RankingReport(
        schedule=schedule,
        pairs=pairs,
        failed=pairs - len(counted),
        inconsistent=sum(one != 1.0 - other for one, other in both),
        first_preferred=sum(one + other for one, other in both) / (2 * len(both)) if both else None,
    )


def _pairs(verdicts: Sequence[PairVerdict]) -> set[tuple[int, int]]:
    return {(min(one.first, one.second), max(one.first, one.second)) for one in verdicts}


def _counted_pairs(verdicts: Sequence[PairVerdict]) -> dict[tuple[int, int], tuple[float, float]]:
    """Return the pairs with an answer in both orders, and what the lower place won in each of them."""
    wins = {(one.first, one.second): one.win for one in verdicts}
    counted = {}
    for i, j in sorted(_pairs(verdicts)):
        one, other = wins.get((i, j)), wins.get((j, i))
        if one is not None and other is not None:
            counted[i, j] = (one, 1.0 - other)
    return counted


def _largest_set(count: int, pairs: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Return the largest set of at least two responses that pairs connect; empty if two sets are the largest."""
    set_of = {place: {place} for place in range(count)}
    for i, j in pairs:
        if set_of[i] is not set_of[j]:
            set_of[i] |= set_of[j]
            for place in set_of[j]:
                set_of[place] = set_of[i]
    distinct = {id(members): members for members in set_of.values()}
    largest = sorted(distinct.values(), key=len, reverse=True)[:2]
    if not largest or len(largest[0]) < 2 or (len(largest) > 1 and len(largest[0]) == len(largest[1])):
        return frozenset()
    return frozenset(largest[0])


def _without_reward(on_failure: FailurePolicy, failures: set[FailureKind | None]) -> RewardOutcome:
    if on_failure == "zero" or (on_failure == "zero_unparseable" and failures == {"parse"}):
        return RewardOutcome(0.0, "unscored", on_failure)
    return RewardOutcome(None, "unscored")
