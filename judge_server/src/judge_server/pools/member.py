"""One of several alike: its load, its circuit breaker, and whether the health watch has found it gone.

Each change between up and down is logged once. Knows nothing of what is asked of it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, Literal, NamedTuple, TypeVar

from judge_server.pools.breaker import BreakerState, CircuitBreaker

T = TypeVar("T")

MemberState = BreakerState | Literal["gone"]

log = logging.getLogger("adjudge")


class MemberUnavailable(Exception):
    """A member was found gone while something waited for it."""


class MemberView(NamedTuple):
    """What operators see of a member: its name without credentials, its state, and its load now."""

    name: str
    state: MemberState
    load: int


class Member(Generic[T]):
    """A member of a pool.

    Attributes:
        name: what it is called in logs and metrics; it holds no credentials.
        target: the member itself.
        load: what it works on now.
        breaker: opens when what is asked of it fails again and again.
        gone: set while the health watch finds it gone.
        answers: how many it has given; while they come, a missed health check does not count.
    """

    def __init__(self, name: str, of: T, breaker: CircuitBreaker) -> None:
        self.name = name
        self.target = of
        self.load = 0
        self.breaker = breaker
        self.gone = asyncio.Event()
        self.answers = 0
        self._down = False
        self._scopes: set[asyncio.Timeout] = set()

    @property
    def state(self) -> MemberState:
        """`gone`, or what its breaker is."""
        return "gone" if self.gone.is_set() else self.breaker.state

    @property
    def view(self) -> MemberView:
        """What operators see of it."""
        return MemberView(self.name, self.state, self.load)

    @property
    def available(self) -> bool:
        """Whether something may be asked of it now."""
        return not self.gone.is_set() and self.breaker.would_allow

    @asynccontextmanager
    async def cancel_when_gone(self) -> AsyncIterator[None]:
        """Wait for it in the block, as long as it is there.

        Do not yield from an asynchronous generator inside the block: what stands there is cancelled.

        Raises:
            MemberGone: it was found gone, before or meanwhile; what the block waited for has been cancelled.
        """
        if self.gone.is_set():
            raise MemberUnavailable(self.name)
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
        except TimeoutError as error:
            if scope.expired():
                raise MemberUnavailable(self.name) from error
            raise

    def succeeded(self) -> None:
        """What was asked of it went well."""
        self.answers += 1
        self.breaker.succeeded()
        self._log_change(down=self.gone.is_set())

    def failed(self, why: str) -> None:
        """What was asked of it went wrong, and that was its own fault."""
        self.breaker.failed()
        self._log_change(down=self.breaker.state != "closed" or self.gone.is_set(), why=why)

    def mark_down(self, why: str) -> None:
        """It is gone: nothing is asked of it until it is `found`, and what waits for it in `present` is told."""
        self.gone.set()
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now)
        self._scopes.clear()
        self._log_change(down=True, why=why)

    def mark_up(self) -> None:
        """It is there again, with a clean slate; changes nothing where it was not gone."""
        if self.gone.is_set():
            self.gone.clear()
            self.breaker.succeeded()
            self._log_change(down=False)

    def _log_change(self, *, down: bool, why: str = "") -> None:
        if down and not self._down:
            log.warning("%s is out of the pool: %s", self.name, why)
        elif self._down and not down:
            log.info("%s is in the pool again", self.name)
        self._down = down
