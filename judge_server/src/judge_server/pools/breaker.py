"""A circuit breaker: leaves alone for a while what fails again and again. Knows time and counts, and nothing else."""

from collections.abc import Callable
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]


class CircuitBreaker:
    """Closed until `failures` in a row; then open for a pause; then half open, for one trial at a time.

    A trial that fails opens it again, for twice the pause, up to the longest; one that succeeds closes it. A trial of
    which nothing is heard for as long as the pause was is taken for lost, and another one is let through.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        failures: int = 3,
        pause_s: float = 1.0,
        longest_pause_s: float = 30.0,
    ) -> None:
        self._clock = clock
        self._allowed_failures = failures
        self._first_pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        self._failures = 0
        self._pause_s = pause_s
        self._open_until: float | None = None
        self._trial_until: float | None = None

    @property
    def state(self) -> BreakerState:
        """What it is now."""
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half_open"

    @property
    def would_allow(self) -> bool:
        """Whether `allows` would say yes now."""
        state = self.state
        if state == "half_open":
            return self._trial_until is None or self._clock() >= self._trial_until
        return state == "closed"

    def try_acquire(self) -> bool:
        """Whether something may be tried now; where it is half open, a yes is the one trial."""
        if not self.would_allow:
            return False
        if self.state == "half_open":
            self._trial_until = self._clock() + self._pause_s
        return True

    def succeeded(self) -> None:
        """What was tried went well: it is closed."""
        self._failures = 0
        self._pause_s = self._first_pause_s
        self._open_until = self._trial_until = None

    def failed(self) -> None:
        """What was tried went wrong. What began before it opened changes nothing while it rests."""
        state = self.state
        if state == "closed":
            self._failures += 1
            if self._failures >= self._allowed_failures:
                self._open()
        elif state == "half_open":
            self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
            self._open()

    def _open(self) -> None:
        self._open_until = self._clock() + self._pause_s
        self._trial_until = None
