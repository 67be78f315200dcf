"""What each run has cost, for as many runs as may have a label of their own; all others count as one.

A label is a series that somebody keeps for weeks, and names of runs come from outside. So there are at most `most` of
them: the most active runs. A run that overtakes the least active one takes its label. Every series only ever grows:
what was counted under `(other)` stays there, and a run that gets a label begins at 0.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from judge_server.judging.rates import FadingCount

OTHER = "(other)"
NONE = "(none)"
"""The label of requests that name no run."""

_HALF_LIFE_S = 60.0
_FOLLOWED_PER_LABEL = 8
_OVERTAKES = 2.0


@dataclass(slots=True)
class RunRow:
    """One label's counts, by name, and its prompt tokens of late."""

    tokens_of_late: FadingCount
    counts: Counter[str] = field(default_factory=Counter)


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
        label = run or NONE
        row = self._rows.get(label)
        if row is None:
            row = self._admit(label, tokens)
        row.tokens_of_late.add(tokens)
        row.counts.update(counts)

    def rows(self) -> Iterator[tuple[str, RunRow, float]]:
        """Each label with its counts and its share of the prompt tokens of late, in [0, 1]."""
        rows = self._rows | ({OTHER: self._other} if self._other.counts else {})
        total = sum(row.tokens_of_late.value for row in rows.values())
        for label, row in rows.items():
            yield label, row, row.tokens_of_late.value / total if total else 0.0

    def label_of(self, run: str) -> str:
        """The label that a run goes by now."""
        label = run or NONE
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
        return RunRow(FadingCount(_HALF_LIFE_S, self._clock))
