"""What each run has cost, for as many runs as may have a label of their own; all others count as one.

A label is a series that somebody keeps for weeks, and names of runs come from outside. So there are at most `most` of
them: the most active runs. A run that overtakes the least active one takes its label. Every series only ever grows:
what was counted under `(other)` stays there, and a run that gets a label begins at 0.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from judge_server.judging.fair_queue import label_of_run
from judge_server.judging.rates import FadingCount

OTHER = "(other)"
NONE = "(none)"
"""The label of requests that name no run."""

_HALF_LIFE_S = 60.0
_REWARDS_HALF_LIFE_S = 300.0
_NO_REWARDS = 1e-3
_FOLLOWED_PER_LABEL = 8
_OVERTAKES = 2.0


@dataclass(slots=True)
class RunRow:
    """One label's counts, by name, its prompt tokens of late, and its rewards of late: their sum and their number."""

    tokens_of_late: FadingCount
    reward_of_late: FadingCount
    rewards_of_late: FadingCount
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def mean_reward(self) -> float | None:
        """The mean of the rewards of late; None where there are none."""
        number = self.rewards_of_late.value
        return self.reward_of_late.value / number if number > _NO_REWARDS else None


def _label(run: str) -> str:
    return label_of_run(run) + (NONE if not run or run.endswith("\0") else "")


class RunTable:
    """Counts by run. `clock` gives seconds."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._other = self._row()
        self._rows: dict[str, RunRow] = {}
        self._followed: dict[str, FadingCount] = {}

    def add(self, run: str, tokens: float, **counts: float) -> None:
        """Count something of a run, and the prompt tokens that it took."""
        label = _label(run)
        row = self._rows.get(label)
        if row is None:
            row = self._admit(label, tokens)
        row.tokens_of_late.add(tokens)
        row.counts.update(counts)

    def reward(self, run: str, rewards: Sequence[float]) -> None:
        """Take note of rewards of a run; those of runs without a label are left out: together they mean nothing."""
        row = self._rows.get(_label(run))
        if row is not None and rewards:
            row.reward_of_late.add(sum(rewards))
            row.rewards_of_late.add(len(rewards))

    def rows(self) -> Iterator[tuple[str, RunRow, float]]:
        """Each label with its counts and its share of the prompt tokens of late, in [0, 1]."""
        rows = self._rows | ({OTHER: self._other} if self._other.counts else {})
        total = sum(row.tokens_of_late.value for row in rows.values())
        for label, row in rows.items():
            yield label, row, row.tokens_of_late.value / total if total else 0.0

    def label_of(self, run: str) -> str:
        """The label that a run goes by now."""
        label = _label(run)
        return label if label in self._rows else OTHER

    def _admit(self, label: str, tokens: float) -> RunRow:
        """The row to count a run's work in, which has no label yet."""
        if label == OTHER:
            return self._other
        if len(self._rows) < self._most:
            return self._rows.setdefault(label, self._row())
        if label not in self._followed:
            while len(self._followed) >= _FOLLOWED_PER_LABEL * self._most:
                del self._followed[min(self._followed, key=lambda name: self._followed[name].value)]
            self._followed[label] = FadingCount(_HALF_LIFE_S, self._clock)
        activity = self._followed[label]
        activity.add(tokens)
        least = min(self._rows, key=lambda name: self._rows[name].tokens_of_late.value)
        if activity.value <= _OVERTAKES * self._rows[least].tokens_of_late.value:
            return self._other
        del self._rows[least], self._followed[label]
        return self._rows.setdefault(label, self._row())

    def _row(self) -> RunRow:
        tokens, reward, rewards = (
            FadingCount(half_life, self._clock)
            for half_life in (_HALF_LIFE_S, _REWARDS_HALF_LIFE_S, _REWARDS_HALF_LIFE_S)
        )
        return RunRow(tokens, reward, rewards)
