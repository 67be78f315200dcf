"""Calls on their way, whoever waits for them: identical ones are made once, and stop when the last one waiting leaves.

A `Flight` is what one request has to ask about one response. Whoever needs one of its verdicts meanwhile waits for it
instead of asking again. Nothing here knows what a verdict is worth or how it is asked: see `asking`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from judge_server.judging.plan import Asked
from judge_server.judging.work import Outcome, Outcomes, Waiting
from judge_server.ports import CallFailed

LATE = CallFailed("timeout", "the request's deadline passed before the judge came to this criterion")


class Waiter:
    """One request that waits for outcomes until its deadline (loop time)."""

    def __init__(self, result: Outcomes, waiting: Waiting, deadline: float) -> None:
        self.result = result
        self.deadline = deadline
        self._waiting = waiting
        self._missing_of: dict[Flight, set[bytes]] = {}
        self._all_known: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def waits_for(self, flight: "Flight", digests: Iterable[bytes]) -> None:
        """Wait for these outcomes of a flight too."""
        self._missing_of.setdefault(flight, set()).update(digests)

    def wants(self, flight: "Flight") -> set[bytes]:
        """The digests of a flight that this request still waits for."""
        return self._missing_of.get(flight, set())

    def take(self, flight: "Flight", outcomes: Mapping[bytes, Outcome]) -> None:
        """These outcomes are final."""
        missing = self._missing_of[flight]
        mine = missing & outcomes.keys()
        self.result.of.update([(digest, outcomes[digest]) for digest in mine])
        missing -= mine
        if not missing:
            del self._missing_of[flight]
            flight.served(self)
            if not self._missing_of and not self._all_known.done():
                self._all_known.set_result(None)
        self._waiting.known(mine)

    def fail(self, error: BaseException) -> None:
        """A flight broke off of something nobody foresaw."""
        if not self._all_known.done():
            self._all_known.set_exception(error)

    async def all_known(self) -> None:
        """Wait until every outcome is known, or the deadline; what is not known then is `LATE`, or failed before."""
        if not self._missing_of:
            return
        timer = asyncio.get_running_loop().call_at(self.deadline, self._give_up)
        try:
            await self._all_known
        finally:
            timer.cancel()

    def leave(self) -> list["Flight"]:
        """Wait for nothing any more; returns the flights that this request waited for."""
        left = list(self._missing_of)
        self._missing_of = {}
        for flight in left:
            flight.leave(self)
        return left

    def _give_up(self) -> None:
        late = {
            digest: flight.latest.get(digest, LATE)
            for flight, missing in self._missing_of.items()
            for digest in missing
        }
        self.result.of.update(late)
        self.leave()
        if not self._all_known.done():
            self._all_known.set_result(None)
        self._waiting.known(late)


class Flight:
    """Calls about one response that are on their way.

    Attributes:
        latest: what is known so far: findings, which stand, and failures that may yet be made good.
        waiters: the requests that wait for some of it.
        thinned: somebody who waited has left, so that nobody may want some of it any more.
        task: what asks.
        on_left: called with the account of a request that waits no more, while others still do.
        on_abandoned: called when the last one who waited has left.
        hurry: called when somebody online has joined.
    """

    def __init__(self, flights: "Flights", asked: Sequence[Asked]) -> None:
        self._flights = flights
        self._open = {one.digests[0]: one for one in asked}
        self.thinned = False
        self.latest: dict[bytes, Outcome] = {}
        self.waiters: dict[Waiter, None] = {}
        self.task: asyncio.Task[None] | None = None
        self.on_left: Callable[[Outcomes], None] | None = None
        self.on_abandoned: Callable[[], None] | None = None
        self.hurry: Callable[[], None] | None = None

    @property
    def deadline(self) -> float:
        """The latest deadline of those who wait (loop time)."""
        return max((waiter.deadline for waiter in self.waiters), default=0.0)

    @property
    def unsettled(self) -> list[Asked]:
        """The calls that have no final outcome."""
        return list(self._open.values())

    def join(self, waiter: Waiter, digests: Iterable[bytes]) -> None:
        """Let a request wait for these of its outcomes."""
        self.waiters[waiter] = None
        waiter.waits_for(self, digests)

    def served(self, waiter: Waiter) -> None:
        """A request has all that it waited for."""
        self.waiters.pop(waiter, None)
        if self.waiters and self.on_left is not None:
            self.on_left(waiter.result)

    def leave(self, waiter: Waiter) -> None:
        """A request waits no more; the last one to leave cancels what is left."""
        self.served(waiter)
        self.thinned = True
        if not self.waiters:
            self._flights.forget(self, self._open.values())
            if self.on_abandoned is not None:
                self.on_abandoned()
            if self.task is not None:
                self.task.cancel()

    def still_wanted(self, asked: Sequence[Asked]) -> list[Asked]:
        """Those of the calls that somebody waits for; nobody can join the others any more."""
        if not self.thinned:
            return list(asked)
        wanted = set().union(*(waiter.wants(self) for waiter in self.waiters))
        kept = [one for one in asked if not wanted.isdisjoint(one.digests)]
        for one in asked:
            if wanted.isdisjoint(one.digests):
                self._flights.forget(self, [self._open.pop(one.digests[0])])
        return kept

    def settle(self, asked: Sequence[Asked]) -> None:
        """The latest outcomes of these calls are final."""
        for one in asked:
            del self._open[one.digests[0]]
        self._flights.forget(self, asked)
        outcomes = {digest: self.latest[digest] for one in asked for digest in one.digests}
        for waiter in list(self.waiters):
            waiter.take(self, outcomes)

    def fail(self, error: BaseException) -> None:
        """It broke off of something nobody foresaw: everybody who waits is told."""
        self._flights.forget(self, self._open.values())
        for waiter in list(self.waiters):
            waiter.fail(error)


class Flights:
    """Which verdict comes with which flight."""

    def __init__(self) -> None:
        self._flight_of: dict[bytes, Flight] = {}

    def __len__(self) -> int:
        return len(self._flight_of)

    def find(self, digest: bytes) -> Flight | None:
        """The flight that brings this verdict, where there is one."""
        return self._flight_of.get(digest)

    def begin(self, asked: Sequence[Asked]) -> Flight:
        """A flight of these calls, for others to join."""
        flight = Flight(self, asked)
        for one in asked:
            for digest in one.digests:
                self._flight_of[digest] = flight
        return flight

    def forget(self, flight: Flight, asked: Iterable[Asked]) -> None:
        """Nobody can join these calls of a flight any more."""
        for one in asked:
            for digest in one.digests:
                if self._flight_of.get(digest) is flight:
                    del self._flight_of[digest]
