"""Load balancing over equal members: rendezvous hashing, bounded load, circuit breakers.

A circuit breaker: leaves alone for a while what fails again and again. Knows time and counts, and nothing else.

One of several alike: its load, its circuit breaker, and whether the health watch has found it gone.

Each change between up and down is logged once. Knows nothing of what is asked of it.

Several alike behind one: which of them gets a key, how load spills over, and which are out.

Generic: the api's judges and a judge's endpoints are both pools. What is asked of a member, and what counts as its
failure, is the caller's to say.

Which of several names a key belongs to, by rendezvous (highest random weight) hashing. A pure function.

Every process ranks alike, without asking another. A name that comes or goes moves only the keys that are its own.

Several alike behind one: rendezvous hashing, bounded load, circuit breakers and a health watch.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, Literal, NamedTuple, TypeVar

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


def key_of(text: str) -> bytes:
    """The key of a text, 16 bytes. What one member is to have asked of it has one text, and so one key."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def ranked(key: bytes, names: Sequence[str]) -> list[str]:
    """The names, the one that the key belongs to first, then those that stand in for it, in turn.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    start = hashlib.blake2b(len(key).to_bytes(8, "big") + key, digest_size=16)

    def weight(name: str) -> bytes:
        weighed = start.copy()
        weighed.update(name.encode())
        return weighed.digest()

    return sorted(names, key=weight, reverse=True)


class Pool(Generic[T]):
    """Members by name, each with a breaker, watched from `start` to `close`.

    Every `every_s` seconds each member is asked by `healthy` whether it is there; one that does not say so within
    `patience_s` seconds has missed. After `misses` in a row, without an answer to anything in between, it is gone until
    it says that it is there: who answers is there, however busy.

    `spill` bounds how unequal the load may be: a member takes at most that many times the mean load.
    """

    def __init__(
        self,
        members: Mapping[str, T],
        health_check: Callable[[T], Awaitable[bool]],
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 2.0,
        health_timeout_s: float = 2.0,
        misses: int = 2,
        spill: float = 1.25,
        failures: int = 3,
        pause_s: float = 1.0,
        longest_pause_s: float = 30.0,
    ) -> None:
        self._health_check = health_check
        self._interval_s = interval_s
        self._health_timeout_s = health_timeout_s
        self._allowed_misses = misses
        self._spill = spill
        self._watches: list[asyncio.Task[None]] = []
        self._members = {
            name: Member(
                name, of, CircuitBreaker(clock, failures=failures, pause_s=pause_s, longest_pause_s=longest_pause_s)
            )
            for name, of in members.items()
        }

    @property
    def members(self) -> list[Member[T]]:
        """All members, available or not."""
        return list(self._members.values())

    def member(self, name: str) -> Member[T]:
        """The member of this name."""
        return self._members[name]

    def start(self) -> None:
        """Watch the members' health from now on."""
        self._watches = [asyncio.create_task(self._watch(member)) for member in self._members.values()]

    async def close(self) -> None:
        """Watch no more."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches = []

    def choose(self, key: bytes, load: int = 1, *, exclude: Collection[str] = ()) -> Member[T] | None:
        """The member that is to take `load` more for a key; None where none is available.

        The first in rendezvous order that would not come to more than `spill` times the mean load of those available,
        this one counted; the least loaded where all would. One that failed again and again gets one trial after its
        pause, in its turn.
        """
        available = {name: member for name, member in self._members.items() if name not in exclude and member.available}
        if not available:
            return None
        order = [available[name] for name in ranked(key, list(available))]
        bound = math.ceil(self._spill * (sum(member.load for member in order) + load) / len(order))
        chosen = next((m for m in order if m.load + load <= bound), None) or min(order, key=lambda m: m.load)
        chosen.breaker.try_acquire()
        return chosen

    def in_order(self, key: bytes, *, exclude: Collection[str] = ()) -> list[Member[T]]:
        """The members that are available, in the rendezvous order of a key, whatever their load."""
        names = [name for name, member in self._members.items() if name not in exclude and member.available]
        return [self._members[name] for name in ranked(key, names)]

    @contextmanager
    def held(self, member: Member[T], load: int = 1) -> Iterator[None]:
        """Count this load as the member's in the block."""
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
            elif missed == self._allowed_misses:
                member.mark_down(why)
            await asyncio.sleep(self._interval_s)

    async def _health_problem(self, member: Member[T]) -> str:
        """Why a member does not count as healthy now; empty where it does."""
        try:
            async with asyncio.timeout(self._health_timeout_s):
                return "" if await self._health_check(member.target) else "it says that it is not ready"
        except TimeoutError:
            return f"it did not say within {self._health_timeout_s:g} s that it is ready"
        except Exception as error:  # noqa: BLE001 - whatever a check breaks off of, the watch goes on
            return f"its health check failed: {error or type(error).__name__}"
