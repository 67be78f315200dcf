"""When to try again and how long to wait first: bounded in count, in each wait and in total time.

Written out rather than taken from a library: it is one method, shared by a sync and an async loop, and a
trainer node is spared a dependency. Knows nothing of HTTP: errors say themselves whether they are retryable.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainer_client.errors import AdjudgeError

INITIAL_BACKOFF_S = 0.5
MAX_BACKOFF_S = 5.0
"""So that who could not get through for a minute is back soon after the service is."""

MAX_WAIT_S = 30.0


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is repeated and for how long.

    `retries` bounds the tries after the first; `budget_s` the seconds after the first try began at which a
    further one may still begin. `clock` gives seconds, `random` a number in [0, 1).
    """

    retries: int
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if self.retries < 0 or self.budget_s < 0:
            raise ValueError(f"retries ({self.retries}) and retry_budget_s ({self.budget_s}) must not be negative")

    def start(self) -> "RetryState":
        """Begin counting the tries of one request."""
        return RetryState(self)


class RetryState:
    """The tries of one request so far."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._began = policy.clock()
        self._failed = 0

    def wait_after(self, error: AdjudgeError) -> float | None:
        """Give the seconds to wait before the next try, or None where the error stands.

        Exponential backoff with full jitter: uniform in [0, FIRST_WAIT_S * 2**n), up to LONGEST_BACKOFF_S, on top
        of what the service asked for by Retry-After, so that clients turned away together do not come back
        together. Never more than LONGEST_WAIT_S.
        """
        if not error.retryable or self._failed >= self._policy.retries:
            return None
        backoff = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0**self._failed) * self._policy.random()
        wait = min(MAX_WAIT_S, (error.retry_after_s or 0.0) + backoff)
        self._failed += 1
        elapsed = self._policy.clock() - self._began
        return wait if elapsed + wait <= self._policy.budget_s else None
