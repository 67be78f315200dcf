"""Room in the queue: how many calls may be on their way, of all runs and of each, and when there will be more.

Knows nothing of turns. A request is let in with all its calls or refused as a whole.
"""

import math
from collections import Counter
from collections.abc import Callable

from judge_server.errors import Overloaded
from judge_server.judging.rates import DecayingRate

_RATE_HALF_LIFE_S = 5.0
_MIN_RETRY_AFTER_S, _MAX_RETRY_AFTER_S = 1, 60
_DEFAULT_RETRY_AFTER_S = 5


class QueueLimits:
    """Counts the calls that are on their way.

    At most `calls` of them, but two exceptions: an idle queue takes a request of any size; and a run that holds less
    than its equal share of the room is let in although others have filled it, up to twice `calls` in all. `run_calls`
    bounds those of one run.
    """

    def __init__(self, calls: int, run_calls: int | None, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._run_calls = run_calls
        self.held_by_run: Counter[str] = Counter()
        self._total = 0
        self._completion_rate = DecayingRate(_RATE_HALF_LIFE_S, clock)

    @property
    def held(self) -> int:
        """Calls on their way, waiting or at the engine."""
        return self._total

    def acquire(self, run: str, calls: int) -> None:
        """Let a request's calls in.

        Raises:
            Overloaded: there is no room for them; says when there may be.
        """
        own = self.held_by_run[run]
        if self._run_calls is not None and own and own + calls > self._run_calls:
            raise Overloaded(
                f"{own} judge calls of this run are waiting and {calls} more exceed the {self._run_calls} a run may "
                "have; try again later, or send fewer responses at once",
                retry_after_s=self._retry_after_s(own + calls - self._run_calls),
            )
        if (
            calls
            and self._total
            and self._total + calls > self._calls
            and not self._is_within_fair_share(own + calls, calls)
        ):
            raise Overloaded(
                f"{self._total} judge calls are waiting and {calls} more exceed the queue's {self._calls}; "
                "try again later, or send fewer responses at once",
                retry_after_s=self._retry_after_s(self._total + calls - self._calls),
            )
        self.held_by_run[run] += calls
        self._total += calls

    def release(self, run: str, calls: int) -> None:
        """So many calls of a run have ended, one way or another."""
        self._total -= calls
        self.held_by_run[run] -= calls
        if not self.held_by_run[run]:
            del self.held_by_run[run]
        self._completion_rate.add(calls)

    def _is_within_fair_share(self, own: int, calls: int) -> bool:
        others = len(self.held_by_run) + (own == calls)
        return own * others <= self._calls and self._total + calls <= 2 * self._calls

    def _retry_after_s(self, calls: int) -> int:
        rate = self._completion_rate.per_second
        if not rate:
            return _DEFAULT_RETRY_AFTER_S
        return min(_MAX_RETRY_AFTER_S, max(_MIN_RETRY_AFTER_S, math.ceil(calls / rate)))
