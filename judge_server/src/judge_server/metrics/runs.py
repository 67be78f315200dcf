"""What each run has cost, for as many runs as may have a label of their own; all others count as one.

A label is a series that somebody keeps for weeks, and names of runs come from outside. So there are at most `most` of
them: the most active runs. A run that overtakes the least active one takes its label. Every series only ever grows:
what was counted under `(other)` stays there, and a run that gets a label begins at 0.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from judge_server.judging.fair_queue import label_of_run
from judge_server.judging.rates import DecayingRate

OTHER_LABEL = "(other)"
NO_RUN_LABEL = "(none)"
"""The label of requests that name no run."""

_HALF_LIFE_S = 60.0
_REWARDS_HALF_LIFE_S = 300.0
_MIN_REWARDS = 1e-3
_CANDIDATES_PER_LABEL = 8
_TAKEOVER_RATIO = 2.0


@dataclass(slots=True)
class RunRow:
    """One label's counts, by name, its prompt tokens of late, and its rewards of late: their sum and their number."""

    recent_tokens: DecayingRate
    recent_reward_sum: DecayingRate
    recent_reward_count: DecayingRate
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def mean_reward(self) -> float | None:
        """The mean of the rewards of late; None where there are none."""
        number = self.recent_reward_count.value
        return self.recent_reward_sum.value / number if number > _MIN_REWARDS else None


def _label(run: str) -> str:
    return label_of_run(run) + (NO_RUN_LABEL if not run or run.endswith("\0") else "")


class RunTable:
    """Counts by run. `clock` gives seconds."""

    def __init__(self, max_labels: int, clock: Callable[[], float]) -> None:
        self._max_labels = max_labels
        self._clock = clock
        self._other = self._row()
        self._rows: dict[str, RunRow] = {}
        self._candidates: dict[str, DecayingRate] = {}

    def add(self, run: str, tokens: float, **counts: float) -> None:
        """Count something of a run, and the prompt tokens that it took."""
        label = _label(run)
        row = self._rows.get(label)
        if row is None:
            row = self._admit(label, tokens)
        row.recent_tokens.add(tokens)
        row.counts.update(counts)

    def reward(self, run: str, rewards: Sequence[float]) -> None:
        """Take note of rewards of a run; those of runs without a label are left out: together they mean nothing."""
        row = self._rows.get(_label(run))
        if row is not None and rewards:
            row.recent_reward_sum.add(sum(rewards))
            row.recent_reward_count.add(len(rewards))

    def rows(self) -> Iterator[tuple[str, RunRow, float]]:
        """Each label with its counts and its share of the prompt tokens of late, in [0, 1]."""
        rows = self._rows | ({OTHER_LABEL: self._other} if self._other.counts else {})
        total = sum(row.recent_tokens.value for row in rows.values())
        for label, row in rows.items():
            yield label, row, row.recent_tokens.value / total if total else 0.0

    def label_of(self, run: str) -> str:
        """The label that a run goes by now."""
        label = _label(run)
        return label if label in self._rows else OTHER_LABEL

    def _admit(self, label: str, tokens: float) -> RunRow:
        """The row to count a run's work in, which has no label yet."""
        if label == OTHER_LABEL:
            return self._other
        if len(self._rows) < self._max_labels:
            return self._rows.setdefault(label, self._row())
        if label not in self._candidates:
            while len(self._candidates) >= _CANDIDATES_PER_LABEL * self._max_labels:
                del self._candidates[min(self._candidates, key=lambda name: self._candidates[name].value)]
            self._candidates[label] = DecayingRate(_HALF_LIFE_S, self._clock)
        activity = self._candidates[label]
        activity.add(tokens)
        least_active = min(self._rows, key=lambda name: self._rows[name].recent_tokens.value)
        if activity.value <= _TAKEOVER_RATIO * self._rows[least_active].recent_tokens.value:
            return self._other
        del self._rows[least_active], self._candidates[label]
        return self._rows.setdefault(label, self._row())

    def _row(self) -> RunRow:
        tokens, reward, rewards = (
            DecayingRate(half_life, self._clock)
            for half_life in (_HALF_LIFE_S, _REWARDS_HALF_LIFE_S, _REWARDS_HALF_LIFE_S)
        )
        return RunRow(tokens, reward, rewards)
