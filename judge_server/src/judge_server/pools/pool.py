"""Several alike behind one: which of them gets a key, how load spills over, and which are out.

Generic: the api's judges and a judge's endpoints are both pools. What is asked of a member, and what counts as its
failure, is the caller's to say.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from judge_server.pools.breaker import CircuitBreaker
from judge_server.pools.member import Member
from judge_server.pools.rendezvous import ranked

T = TypeVar("T")


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
