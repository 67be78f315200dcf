"""How many batches an engine is given at a time: a number set by hand, or one that follows its throughput.

Too few leave the engine idle; too many only make a second queue inside it, in which nobody is fair and whose work
cannot be taken back cheaply. `AdaptiveLimit` looks for the smallest number beyond which more gains nothing.
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
    """How many batches may be at the engine, and what it learns from."""

    limit: int

    def resize(self, most: int) -> None:
        """The engine takes so many batches at a time from now on (at least 1)."""

    def record_batch(self, tokens: float, *, full: bool) -> None:
        """A batch of so many tokens has ended; `full` says whether others waited for its place."""

    def record_rejection(self) -> None:
        """The engine refused a call because it has too much to do."""


class FixedLimit:
    """A number set by hand."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def resize(self, most: int) -> None:
        """Changes nothing."""

    def record_batch(self, tokens: float, *, full: bool) -> None:
        """Changes nothing."""

    def record_rejection(self) -> None:
        """Changes nothing."""


class EngineReportedLimit(FixedLimit):
    """What the engine says of itself."""

    def resize(self, most: int) -> None:
        """Take the number over."""
        self.limit = most


class AdaptiveLimit:
    """Climbs by the throughput, in tokens a second, of windows in which work waited all the time.

    Now and then it tries one step more, or one less: a quarter. More stays if it gains 3%, less if it loses no more
    than 2%; as long as a direction pays, it goes on there. An engine that refuses work gets 0.7 of what it had at once,
    and wins more back step by step.

    Args:
        most: the largest limit, which is also the first (at least 1).
        clock: gives seconds.
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
        """Keep the share of what the engine takes, and learn anew."""
        if most != self._most:
            self.limit = max(1, min(most, round(self.limit * most / self._most)))
            self._most = most
            self._end_trial()
            self._start_window()

    def record_batch(self, tokens: float, *, full: bool) -> None:
        """Count a batch; ends a window where it is time."""
        if not full:
            self._start_window()  # with room to spare, throughput says what was asked for and not what could be done
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
        """Give the engine less at once; what it refused in one window counts once."""
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
        """Try the next limit in the direction at hand; at the bound there is none."""
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
