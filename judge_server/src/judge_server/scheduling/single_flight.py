"""Calls on their way, whoever waits for them: identical ones are made once, and stop when the last one waiting leaves.

A `InFlightCalls` is what one request has to ask about one response. Whoever needs one of its verdicts meanwhile waits for it
instead of asking again. Nothing here knows what a verdict is worth or how it is asked: see `asking`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from judge_server.judging.plan import PlannedCall
from judge_server.judging.results import CallOutcome, CompletionTracker, JudgementResults
from judge_server.ports import CallFailure

DEADLINE_EXCEEDED = CallFailure("timeout", "the request's deadline passed before the judge came to this criterion")


_LEAVING_PER_TURN = 64
"""Flights that one request leaves in one turn of the event loop: each ends a task."""


class Subscriber:
    """One request that waits for outcomes until its deadline (loop time).

    `expects_more` is set while it has not begun to wait for all that it wants.
    """

    def __init__(self, result: JudgementResults, tracker: CompletionTracker, deadline: float) -> None:
        self.result = result
        self.deadline = deadline
        self.expects_more = False
        self._tracker = tracker
        self._pending: dict[InFlightCalls, set[bytes]] = {}
        self._completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expect(self, in_flight: "InFlightCalls", digests: Iterable[bytes]) -> None:
        """Wait for these outcomes of a flight too."""
        self._pending.setdefault(in_flight, set()).update(digests)

    def expected_from(self, in_flight: "InFlightCalls") -> set[bytes]:
        """The digests of a flight that this request still waits for."""
        return self._pending.get(in_flight, set())

    def deliver(self, in_flight: "InFlightCalls", outcomes: Mapping[bytes, CallOutcome]) -> None:
        """These outcomes are final."""
        missing = self._pending.get(in_flight)
        if missing is None:  # this request waits for nothing any more, and is about to leave
            return
        mine = missing & outcomes.keys()
        self.result.by_digest.update([(digest, outcomes[digest]) for digest in mine])
        missing -= mine
        if not missing:
            del self._pending[in_flight]
            in_flight.remove_subscriber(self)
            if not self._pending and not self.expects_more and not self._completed.done():
                self._completed.set_result(None)
        self._tracker.complete(mine)

    def know(self, outcomes: Mapping[bytes, CallOutcome]) -> None:
        """Take outcomes of no flight."""
        self.result.by_digest.update(outcomes)
        self._tracker.complete(outcomes)

    def fail(self, error: BaseException) -> None:
        """A flight broke off of something nobody foresaw."""
        if not self._completed.done():
            self._completed.set_exception(error)

    async def wait(self) -> None:
        """Wait until every outcome is known, or the deadline; what is not known then is `DEADLINE_EXCEEDED`, or failed before."""
        if not self._pending:
            return
        timer = asyncio.get_running_loop().call_at(self.deadline, self._expire)
        try:
            await self._completed
        finally:
            timer.cancel()

    def unsubscribe(self) -> None:
        """Wait for nothing any more. The flights are left in slices, so that others have their turn in between."""
        self._leave(deque(self._pending))
        self._pending = {}

    def _leave(self, single_flight: "deque[InFlightCalls]") -> None:
        for _ in range(min(_LEAVING_PER_TURN, len(single_flight))):
            single_flight.popleft().unsubscribe(self)
        if single_flight:
            asyncio.get_running_loop().call_soon(self._leave, single_flight)

    def _expire(self) -> None:
        late = {
            digest: in_flight.latest_outcomes.get(digest, DEADLINE_EXCEEDED)
            for in_flight, missing in self._pending.items()
            for digest in missing
        }
        self.result.by_digest.update(late)
        self.unsubscribe()
        if not self._completed.done():
            self._completed.set_result(None)
        self._tracker.complete(late)


class InFlightCalls:
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

    def __init__(self, single_flight: "SingleFlight", planned_calls: Sequence[PlannedCall]) -> None:
        self._single_flight = single_flight
        self._open = {one.digests[0]: one for one in planned_calls}
        self.has_leavers = False
        self.latest_outcomes: dict[bytes, CallOutcome] = {}
        self.subscribers: dict[Subscriber, None] = {}
        self.task: asyncio.Task[None] | None = None
        self.on_unsubscribed: Callable[[JudgementResults], None] | None = None
        self.on_abandoned: Callable[[], None] | None = None
        self.promote: Callable[[], None] | None = None

    @property
    def deadline(self) -> float:
        """The latest deadline of those who wait (loop time)."""
        return max((subscriber.deadline for subscriber in self.subscribers), default=0.0)

    @property
    def unsettled(self) -> list[PlannedCall]:
        """The calls that have no final outcome."""
        return list(self._open.values())

    def subscribe(self, subscriber: Subscriber, digests: Iterable[bytes]) -> None:
        """Let a request wait for these of its outcomes."""
        self.subscribers[subscriber] = None
        subscriber.expect(self, digests)

    def remove_subscriber(self, subscriber: Subscriber) -> None:
        """A request has all that it waited for."""
        self.subscribers.pop(subscriber, None)
        if self.subscribers and self.on_unsubscribed is not None:
            self.on_unsubscribed(subscriber.result)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """A request waits no more; the last one to leave cancels what is left."""
        self.remove_subscriber(subscriber)
        self.has_leavers = True
        if not self.subscribers:
            self._single_flight.forget(self, self._open.values())
            if self.on_abandoned is not None:
                self.on_abandoned()
            if self.task is not None:
                self.task.cancel()

    def prune(self, planned_calls: Sequence[PlannedCall]) -> list[PlannedCall]:
        """Those of the calls that somebody waits for; nobody can join the others any more."""
        if not self.has_leavers:
            return list(planned_calls)
        wanted = set().union(*(subscriber.expected_from(self) for subscriber in self.subscribers))
        kept = [one for one in planned_calls if not wanted.isdisjoint(one.digests)]
        for one in planned_calls:
            if wanted.isdisjoint(one.digests):
                self._single_flight.forget(self, [self._open.pop(one.digests[0])])
        return kept

    def settle(self, planned_calls: Sequence[PlannedCall]) -> None:
        """The latest outcomes of these calls are final."""
        for one in planned_calls:
            del self._open[one.digests[0]]
        self._single_flight.forget(self, planned_calls)
        outcomes = {digest: self.latest_outcomes[digest] for one in planned_calls for digest in one.digests}
        for subscriber in list(self.subscribers):
            subscriber.deliver(self, outcomes)

    def fail(self, error: BaseException) -> None:
        """It broke off of something nobody foresaw: everybody who waits is told."""
        self._single_flight.forget(self, self._open.values())
        for subscriber in list(self.subscribers):
            subscriber.fail(error)


class SingleFlight:
    """Which verdict comes with which flight."""

    def __init__(self) -> None:
        self._calls_of: dict[bytes, InFlightCalls] = {}

    def __len__(self) -> int:
        return len(self._calls_of)

    def find(self, digest: bytes) -> InFlightCalls | None:
        """The flight that brings this verdict, where there is one."""
        return self._calls_of.get(digest)

    def start(self, planned_calls: Sequence[PlannedCall]) -> InFlightCalls:
        """A flight of these calls, for others to join."""
        in_flight = InFlightCalls(self, planned_calls)
        for one in planned_calls:
            for digest in one.digests:
                self._calls_of[digest] = in_flight
        return in_flight

    def forget(self, in_flight: InFlightCalls, planned_calls: Iterable[PlannedCall]) -> None:
        """Nobody can join these calls of a flight any more."""
        for one in planned_calls:
            for digest in one.digests:
                if self._calls_of.get(digest) is in_flight:
                    del self._calls_of[digest]
