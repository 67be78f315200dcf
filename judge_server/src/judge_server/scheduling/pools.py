"""Load balancing over equal members: rendezvous hashing, bounded load, circuit breakers and health checks.

A pool is generic: the API's judge processes and a judge's endpoints are both pools. The caller sends the requests and
decides what counts as a member's failure.

All processes rank the members of a key alike without communicating, and adding or removing a member moves only that
member's keys. Each change of a member between up and down is logged once.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from judge_server.ports import BreakerState, MemberState, MemberView

log = logging.getLogger("adjudge")

T = TypeVar("T")


class CircuitBreaker:
    """A circuit breaker: closed until `failures` in a row, then open for a pause, then half open for one trial.

    A failed trial opens it again for twice the pause, up to `longest_pause_s`; a successful one closes it. A trial
    without a result after the length of the pause counts as lost, and another trial is allowed. `clock` returns
    seconds.
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
        """The current state."""
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half_open"

    @property
    def would_allow(self) -> bool:
        """Whether `try_acquire` would succeed now."""
        state = self.state
        if state == "half_open":
            return self._trial_until is None or self._clock() >= self._trial_until
        return state == "closed"

    def try_acquire(self) -> bool:
        """Whether a call may be made now; in the half-open state, True starts the trial."""
        if not self.would_allow:
            return False
        if self.state == "half_open":
            self._trial_until = self._clock() + self._pause_s
        return True

    def succeeded(self) -> None:
        """Record a success, which closes the breaker."""
        self._failures = 0
        self._pause_s = self._first_pause_s
        self._open_until = self._trial_until = None

    def failed(self) -> None:
        """Record a failure. While the breaker is open, failures of calls that began earlier are ignored."""
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


class MemberUnavailable(Exception):
    """A member went down before or during a call."""


class Member(Generic[T]):
    """A member of a pool.

    Attributes:
        name: its name in logs and metrics, without credentials.
        target: the object that the pool balances, such as a client.
        load: its current load.
        breaker: opens after repeated failures.
        gone: set while health checks fail.
        answers: the number of successful calls; after one of them, a missed health check does not count.
    """

    def __init__(self, name: str, target: T, breaker: CircuitBreaker) -> None:
        self.name = name
        self.target = target
        self.load = 0
        self.breaker = breaker
        self.gone = asyncio.Event()
        self.answers = 0
        self._down = False
        self._scopes: set[asyncio.Timeout] = set()

    @property
    def state(self) -> MemberState:
        """`gone`, or the state of its breaker."""
        return "gone" if self.gone.is_set() else self.breaker.state

    @property
    def view(self) -> MemberView:
        """Its status for operators."""
        return MemberView(self.name, self.state, self.load)

    @property
    def available(self) -> bool:
        """Whether it may be called now."""
        return not self.gone.is_set() and self.breaker.would_allow

    @asynccontextmanager
    async def cancel_when_gone(self) -> AsyncIterator[None]:
        """Run the block, and cancel it if the member goes down.

        Do not yield from an asynchronous generator inside the block: the cancellation would hit its consumer.

        Raises:
            MemberUnavailable: the member was down already, or went down and the block was cancelled.
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
        """Record a successful call."""
        self.answers += 1
        self.breaker.succeeded()
        self._log_change(down=self.gone.is_set())

    def failed(self, why: str) -> None:
        """Record a call that failed through the member's own fault."""
        self.breaker.failed()
        self._log_change(down=self.breaker.state != "closed" or self.gone.is_set(), why=why)

    def mark_down(self, why: str) -> None:
        """Take it out of the pool until `mark_up`, and cancel the blocks in `cancel_when_gone`."""
        self.gone.set()
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now)
        self._scopes.clear()
        self._log_change(down=True, why=why)

    def mark_up(self) -> None:
        """Return it to the pool with its breaker closed; does nothing if it was not gone."""
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


def key_of(text: str) -> bytes:
    """The key of a text, 16 bytes. Calls with equal texts go to the same member."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def ranked(key: bytes, names: Sequence[str]) -> list[str]:
    """Rank names for a key by rendezvous (highest random weight) hashing: the owner first, then its substitutes.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    start = hashlib.blake2b(len(key).to_bytes(8, "big") + key, digest_size=16)

    def weight(name: str) -> bytes:
        digest = start.copy()
        digest.update(name.encode())
        return digest.digest()

    return sorted(names, key=weight, reverse=True)


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How a pool checks its members, and when it stops asking them.

    Attributes:
        interval_s: seconds between health checks of a member.
        health_timeout_s: seconds until a health check without an answer is missed.
        misses: missed checks in a row until a member is gone, which takes 8 seconds at most. A member is gone until a
            check succeeds. At one, a garbage collection pause would exclude a judge.
        spill: a member takes at most this many times the mean load. A lower value spreads load more and reuses fewer
            prefixes.
        failures: failed calls in a row until the circuit breaker stops sending calls to a member.
        pause_s: seconds of the circuit breaker's first pause. It doubles each time.
        longest_pause_s: seconds of its longest pause. A member that recovers is used again at its next successful
            health check at the latest.
        clock: returns seconds.
    """

    interval_s: float = 2.0
    health_timeout_s: float = 2.0
    misses: int = 2
    spill: float = 1.25
    failures: int = 3
    pause_s: float = 1.0
    longest_pause_s: float = 30.0
    clock: Callable[[], float] = time.monotonic

    def breaker(self) -> CircuitBreaker:
        """Return a new circuit breaker."""
        return CircuitBreaker(
            self.clock, failures=self.failures, pause_s=self.pause_s, longest_pause_s=self.longest_pause_s
        )


class Pool(Generic[T]):
    """Members by name, each with a circuit breaker, with health checks from `start` to `close`.

    `health_check` tells whether a member is ready. A successful call between two checks counts like a check that
    succeeded, because a member that answers is up, however busy it is.
    """

    def __init__(
        self,
        members: Mapping[str, T],
        health_check: Callable[[T], Awaitable[bool]],
        rules: PoolRules = PoolRules(),
    ) -> None:
        self._health_check = health_check
        self._rules = rules
        self._watches: list[asyncio.Task[None]] = []
        self._members = {name: Member(name, target, rules.breaker()) for name, target in members.items()}

    @property
    def members(self) -> list[Member[T]]:
        """All members, available or not."""
        return list(self._members.values())

    def member(self, name: str) -> Member[T]:
        """The member with this name."""
        return self._members[name]

    def start(self) -> None:
        """Start the health checks."""
        self._watches = [asyncio.create_task(self._watch(member)) for member in self._members.values()]

    async def close(self) -> None:
        """Stop the health checks."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches = []

    def choose(self, key: bytes, load: int = 1, *, exclude: Collection[str] = ()) -> Member[T] | None:
        """Choose the member to take `load` more for a key; return None if no member is available.

        This is the first member in rendezvous order whose load would not exceed `spill` times the mean load of the
        available members, the new load included; the least loaded one if all would exceed it. A half-open member is
        ranked like the others and gets one trial.
        """
        available = {name: member for name, member in self._members.items() if name not in exclude and member.available}
        if not available:
            return None
        order = [available[name] for name in ranked(key, list(available))]
        bound = math.ceil(self._rules.spill * (sum(member.load for member in order) + load) / len(order))
        chosen = next((m for m in order if m.load + load <= bound), None) or min(order, key=lambda m: m.load)
        chosen.breaker.try_acquire()
        return chosen

    def in_order(self, key: bytes, *, exclude: Collection[str] = ()) -> list[Member[T]]:
        """The available members in the rendezvous order of a key, whatever their load."""
        names = [name for name, member in self._members.items() if name not in exclude and member.available]
        return [self._members[name] for name in ranked(key, names)]

    @contextmanager
    def held(self, member: Member[T], load: int = 1) -> Iterator[None]:
        """Add a load to a member for the duration of the block."""
        member.load += load
        try:
            yield
        finally:
            member.load -= load

    async def _watch(self, member: Member[T]) -> None:
        missed = answers = 0
        while True:
            why = await self._health_problem(member)
            missed = missed + 1 if why and member.answers == answers else 0
            answers = member.answers
            if not why:
                member.mark_up()
            elif missed == self._rules.misses:
                member.mark_down(why)
            await asyncio.sleep(self._rules.interval_s)

    async def _health_problem(self, member: Member[T]) -> str:
        """Why a member fails its health check; empty if it passes."""
        try:
            async with asyncio.timeout(self._rules.health_timeout_s):
                return "" if await self._health_check(member.target) else "it reports that it is not ready"
        except TimeoutError:
            return f"its health check did not answer within {self._rules.health_timeout_s:g} s"
        except Exception as error:  # noqa: BLE001 - an unexpected error of a check must not end the watch
            return f"its health check failed: {error or type(error).__name__}"
