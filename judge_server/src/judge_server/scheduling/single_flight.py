"""Single flight: identical calls are made once and shared by all requests that need them.

`InFlightCalls` are the calls that one request makes about one response. Another request that needs one of their
verdicts subscribes to them instead of making the call again. When the last subscriber leaves, the calls are cancelled.
How calls are made is up to `judge_server.scheduling.call_runner`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from judge_server.judging.plan import PlannedCall
from judge_server.judging.results import CallOutcome, JudgingProgress, Outcomes
from judge_server.ports import CallFailure

DEADLINE_EXCEEDED = CallFailure("timeout", "the request's deadline passed before the judge came to this criterion")

_UNSUBSCRIBED_PER_TURN = 16
"""How many `InFlightCalls` a request leaves in one turn of the event loop. Each may cancel a task."""


class Subscriber:
    """A request that waits for outcomes until its deadline (loop time).

    `expects_more` is set while it has not subscribed to everything yet.
    """

    def __init__(self, progress: JudgingProgress, deadline: float) -> None:
        self.progress = progress
        self.deadline = deadline
        self.expects_more = False
        self._pending: dict[InFlightCalls, set[bytes]] = {}
        self._completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expect(self, in_flight: "InFlightCalls", digests: Iterable[bytes]) -> None:
        """Wait for these outcomes of calls in flight as well."""
        self._pending.setdefault(in_flight, set()).update(digests)

    def expected_from(self, in_flight: "InFlightCalls") -> set[bytes]:
        """Return the digests that this request still waits for from these calls."""
        return self._pending.get(in_flight, set())

    def deliver(self, in_flight: "InFlightCalls", outcomes: Mapping[bytes, CallOutcome]) -> None:
        """Take over final outcomes that this request waits for."""
        missing = self._pending.get(in_flight)
        if missing is None:  # the request has stopped waiting and is about to unsubscribe
            return
        delivered = missing & outcomes.keys()
        self.progress.add(Outcomes({digest: outcomes[digest] for digest in delivered}))
        missing -= delivered
        if not missing:
            del self._pending[in_flight]
            in_flight.remove_subscriber(self)
            if not self._pending and not self.expects_more and not self._completed.done():
                self._completed.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Fail with an unexpected error of the calls in flight."""
        if not self._completed.done():
            self._completed.set_exception(error)

    async def wait(self) -> None:
        """Wait until every outcome is known or the deadline passes.

        Outcomes that are unknown then are the latest failure, or `DEADLINE_EXCEEDED`.
        """
        if not self._pending:
            return
        timer = asyncio.get_running_loop().call_at(self.deadline, self._expire)
        try:
            await self._completed
        finally:
            timer.cancel()

    def unsubscribe(self) -> None:
        """Stop waiting. Leaves the calls in flight in slices, so that other tasks get their turn in between."""
        self._leave(deque(self._pending))
        self._pending = {}

    def _leave(self, remaining: "deque[InFlightCalls]") -> None:
        for _ in range(min(_UNSUBSCRIBED_PER_TURN, len(remaining))):
            remaining.popleft().unsubscribe(self)
        if remaining:
            asyncio.get_running_loop().call_soon(self._leave, remaining)

    def _expire(self) -> None:
        late = {
            digest: in_flight.latest_outcomes.get(digest, DEADLINE_EXCEEDED)
            for in_flight, missing in self._pending.items()
            for digest in missing
        }
        self.progress.add(Outcomes(late))
        self.unsubscribe()
        if not self._completed.done():
            self._completed.set_result(None)


class InFlightCalls(ABC):
    """The calls in flight about one response, which other requests can join.

    Attributes:
        latest_outcomes: the outcomes so far: results, which are final, and failures, which a retry may replace.
        subscribers: the requests that wait for some of the outcomes.
        has_leavers: whether a subscriber has left, so that some calls may have no subscriber any more.
    """

    def __init__(self, single_flight: "SingleFlight", planned_calls: Sequence[PlannedCall]) -> None:
        self._single_flight = single_flight
        self._open = {one.digests[0]: one for one in planned_calls}
        self.has_leavers = False
        self.latest_outcomes: dict[bytes, CallOutcome] = {}
        self.subscribers: dict[Subscriber, None] = {}
        single_flight.register(self, planned_calls)

    @abstractmethod
    def promote(self) -> None:
        """Take note that a request of priority "online" waits for these calls."""

    @abstractmethod
    def bill_another_than(self, leaver: Subscriber) -> None:
        """Take note that a subscriber left while others remain."""

    @abstractmethod
    def abandon(self) -> None:
        """Cancel the calls: the last subscriber has left."""

    @property
    def deadline(self) -> float:
        """The latest deadline of the subscribers (loop time)."""
        return max((subscriber.deadline for subscriber in self.subscribers), default=0.0)

    @property
    def unsettled(self) -> list[PlannedCall]:
        """The calls without a final outcome."""
        return list(self._open.values())

    def subscribe(self, subscriber: Subscriber, digests: Iterable[bytes]) -> None:
        """Add a subscriber that waits for these outcomes."""
        self.subscribers[subscriber] = None
        subscriber.expect(self, digests)

    def remove_subscriber(self, subscriber: Subscriber) -> None:
        """Remove a subscriber that has all its outcomes."""
        self.subscribers.pop(subscriber, None)
        if self.subscribers:
            self.bill_another_than(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber that stops waiting. The last one to leave cancels the remaining calls."""
        self.remove_subscriber(subscriber)
        self.has_leavers = True
        if not self.subscribers:
            self._single_flight.forget(self, self._open.values())
            self.abandon()

    def prune(self, planned_calls: Sequence[PlannedCall]) -> list[PlannedCall]:
        """Return the calls that have a subscriber. The others can no longer be joined."""
        if not self.has_leavers:
            return list(planned_calls)
        wanted = set().union(*(subscriber.expected_from(self) for subscriber in self.subscribers))
        kept = [one for one in planned_calls if not wanted.isdisjoint(one.digests)]
        for one in planned_calls:
            if wanted.isdisjoint(one.digests):
                self._single_flight.forget(self, [self._open.pop(one.digests[0])])
        return kept

    def settle(self, planned_calls: Sequence[PlannedCall]) -> None:
        """Deliver the latest outcomes of these calls, which are final now."""
        for one in planned_calls:
            del self._open[one.digests[0]]
        self._single_flight.forget(self, planned_calls)
        outcomes = {digest: self.latest_outcomes[digest] for one in planned_calls for digest in one.digests}
        for subscriber in list(self.subscribers):
            subscriber.deliver(self, outcomes)

    def fail(self, error: BaseException) -> None:
        """Fail all subscribers with the unexpected error."""
        self._single_flight.forget(self, self._open.values())
        for subscriber in list(self.subscribers):
            subscriber.fail(error)


class SingleFlight:
    """The calls in flight, by the digest of each verdict that they bring."""

    def __init__(self) -> None:
        self._calls_of: dict[bytes, InFlightCalls] = {}

    def __len__(self) -> int:
        return len(self._calls_of)

    def find(self, digest: bytes) -> InFlightCalls | None:
        """Return the calls in flight that bring this verdict; None if there are none."""
        return self._calls_of.get(digest)

    def has_none_of(self, digests: Iterable[bytes]) -> bool:
        """Whether no calls in flight bring any of these verdicts."""
        return self._calls_of.keys().isdisjoint(digests)

    def register(self, in_flight: InFlightCalls, planned_calls: Iterable[PlannedCall]) -> None:
        """Register calls as in flight, so that other requests can join them."""
        for one in planned_calls:
            for digest in one.digests:
                self._calls_of[digest] = in_flight

    def forget(self, in_flight: InFlightCalls, planned_calls: Iterable[PlannedCall]) -> None:
        """Unregister calls, so that no other request joins them."""
        for one in planned_calls:
            for digest in one.digests:
                if self._calls_of.get(digest) is in_flight:
                    del self._calls_of[digest]
