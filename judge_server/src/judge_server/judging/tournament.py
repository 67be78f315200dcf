"""Schedules of the mode `ranking`: which pairs of a group's responses are compared, round by round. Pure.

- `all_pairs`: one round with every pair, n (n - 1) / 2 of n responses.
- `pivot`: one round of every response against the same one of the group, n - 1 pairs. Writing-Zero (arXiv 2506.00103)
  picks its reference in a group at random; here a hash of the texts picks it.
- `swiss`: rounds of n / 2 pairs. In each, responses that have won about as much meet, and no pair meets twice. With an
  odd number one response pauses, and goes first in the next round.

What is left to chance is decided by a hash of the texts: the same responses in another order meet in the same pairs.
"""

import hashlib
import math
from collections.abc import Sequence

from trainer_client.wire.ranking import RankingSchedule

Pair = tuple[int, int]


def swiss_rounds(count: int, rounds: int | None) -> int:
    """Return the rounds of a Swiss schedule of `count` responses: as asked, but no more than there are opponents."""
    return min(count - 1, math.ceil(math.log2(count)) if rounds is None else rounds)


def most_pairs(count: int, schedule: RankingSchedule, rounds: int | None) -> int:
    """Return the most pairs that a schedule of `count` responses has over all rounds."""
    if schedule == "all_pairs":
        return count * (count - 1) // 2
    return count - 1 if schedule == "pivot" else swiss_rounds(count, rounds) * (count // 2)


class Tournament:
    """The pairs of a group, round by round.

    Args:
        texts: the text of each response.
        schedule: how pairs are chosen.
        rounds: the rounds of a Swiss schedule; None for the default.
    """

    def __init__(self, texts: Sequence[str], schedule: RankingSchedule, rounds: int | None = None) -> None:
        keys = [hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in texts]
        self._order = sorted(range(len(texts)), key=lambda place: (keys[place], place))
        self._schedule = schedule
        self._rounds_left = swiss_rounds(len(texts), rounds) if schedule == "swiss" else 1
        self._met: set[Pair] = set()
        self._games = [0] * len(texts)

    @property
    def finished(self) -> bool:
        """Whether there is no further round."""
        return not self._rounds_left

    def next_round(self, standings: Sequence[float]) -> list[Pair]:
        """Return the pairs of the next round, the lower place of each first; in order.

        `standings` holds what each response has won of its comparisons, from 0 to 1; 0.5 if it has none.
        """
        self._rounds_left -= 1
        if self._schedule == "all_pairs":
            places = range(len(self._order))
            return [(i, j) for i in places for j in places if i < j]
        if self._schedule == "pivot":
            pivot = self._order[0]
            return sorted([(min(pivot, place), max(pivot, place)) for place in self._order[1:]])
        return self._swiss(standings)

    def _swiss(self, standings: Sequence[float]) -> list[Pair]:
        waiting = sorted(self._order, key=lambda place: (self._games[place], -standings[place]))
        pairs: list[Pair] = []
        while waiting:
            place = waiting.pop(0)
            for index, other in enumerate(waiting):
                pair = (min(place, other), max(place, other))
                if pair not in self._met:
                    del waiting[index]
                    pairs.append(pair)
                    break
        self._met.update(pairs)
        for place in [place for pair in pairs for place in pair]:
            self._games[place] += 1
        return sorted(pairs)
