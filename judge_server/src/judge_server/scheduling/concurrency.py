"""Limits on how many batches an engine is given at a time: a fixed number, or one that follows its throughput.

Too few batches leave the engine idle. Too many form a second queue inside it, which is not fair and from which work
cannot be withdrawn cheaply. `AdaptiveLimit` searches for the smallest number beyond which throughput no longer grows.
"""

import math
from collections.abc import Callable
from typing import Protocol

_GAIN_FOR_MORE, _LOSS_FOR_LESS = 1.03, 0.98
_STEP = 1.25
_BACK_OFF = 0.7
_WINDOWS_BETWEEN_TRIALS = 4
_FEWEST_IN_A_WINDOW = 16
_BATCHES_PER_SLOT = 4


class ConcurrencyLimit(Protocol):
    """How many batches may be at the engine, and the events that may change it."""

    limit: int

    def resize(self, most: int) -> None:
        """Set how many batches the engine takes at a time (at least 1)."""

    def record_batch(self, tokens: float, *, full: bool) -> None:
        """Record that a batch of `tokens` tokens has ended; `full` tells whether others waited for its place."""

    def record_rejection(self) -> None:
        """Record that the engine refused a call because it is overloaded."""


class FixedLimit:
    """A fixed number of batches."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def resize(self, most: int) -> None:
        """Do nothing: the limit is fixed."""

    def record_batch(self, tokens: float, *, full: bool) -> None:
        """Do nothing: the limit is fixed."""

    def record_rejection(self) -> None:
        """Do nothing: the limit is fixed."""


class EngineReportedLimit(FixedLimit):
    """The number of batches that the engine reports."""

    def resize(self, most: int) -> None:
        """Use the reported number."""
        self.limit = most


class AdaptiveLimit:
    """A limit found by hill climbing on throughput (tokens per second), measured while work waits.

    At intervals the limit moves up or down by a quarter. A larger one is kept if throughput rises by 3%, a smaller one
    if it falls by at most 2%; while a direction pays, the limit keeps moving that way. If the engine refuses work, the
    limit drops to 0.7 of its value at once and recovers step by step.

    Args:
        most: the largest limit, which is also the initial one (at least 1).
        clock: returns seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.limit = most
        self._most = most
        self._clock = clock
        self._reference = 0.0
        self._tried_from: int | None = None
        self._up = True
        self._windows_left = 1
        self._refused = False
        self._start_window()

    def resize(self, most: int) -> None:
        """Scale the limit to the new capacity, and measure anew."""
        if most != self._most:
            self.limit = max(1, min(most, round(self.limit * most / self._most)))
            self._most = most
            self._end_trial()
            self._start_window()

    def record_batch(self, tokens: float, *, full: bool) -> None:
        """Count a batch, and end the window once it holds enough of them."""
        if not full:
            self._start_window()  # with spare capacity, throughput measures the demand and not the engine
            return
        self._tokens += tokens
        self._batches += 1
        if self._batches < max(_FEWEST_IN_A_WINDOW, _BATCHES_PER_SLOT * self.limit):
            return
        seconds = self._clock() - self._began
        if seconds > 0:
            self._learn(self._tokens / seconds)
        self._start_window()

    def record_rejection(self) -> None:
        """Lower the limit at once; several rejections in one window count once."""
        if not self._refused:
            self.limit = max(1, math.floor(self.limit * _BACK_OFF))
            self._end_trial()
            self._start_window()
            self._refused = True

    def _learn(self, rate: float) -> None:
        if self._tried_from is None:
            self._reference = rate
            self._windows_left -= 1
            if self._windows_left <= 0:
                self._up = not self._up
                self._step()
        elif rate >= self._reference * (_GAIN_FOR_MORE if self._up else _LOSS_FOR_LESS):
            self._reference = rate
            self._step()
        else:
            self.limit = self._tried_from
            self._end_trial()

    def _step(self) -> None:
        """Try the next limit in the current direction; at a bound, end the trial."""
        before = self.limit
        if self._up:
            self.limit = min(self._most, max(before + 1, math.ceil(before * _STEP)))
        else:
            self.limit = max(1, min(before - 1, math.floor(before / _STEP)))
        if self.limit == before:
            self._end_trial()
        else:
            self._tried_from = before

    def _end_trial(self) -> None:
        self._tried_from = None
        self._windows_left = _WINDOWS_BETWEEN_TRIALS

    def _start_window(self) -> None:
        self._began, self._tokens, self._batches, self._refused = self._clock(), 0.0, 0, False
