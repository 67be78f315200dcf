"""The judge executor: the port that has calls answered, and the one in front of a local engine.

The desk: whoever has the calls of a request answered, an engine in this process or judges in others.

A judge hands over what nobody has a verdict on, and gets an errand to wait for. What is behind the desk is its own
business.

The desk of an engine in this process: calls are joined with those on their way, queue, and reach the engine.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from judge_server.engines.pool import EnginePool
from judge_server.errors import Overloaded
from judge_server.judging.plan import PlannedCall, ResponsePlan
from judge_server.judging.results import Caller, CompletionTracker, JudgementResults, UnresolvedWork, WriteBehindBuffer
from judge_server.pools import MemberView
from judge_server.ports import Batch, Engine, EngineIdentity
from judge_server.scheduling.admission import DEFAULT_QUEUE_RULES, Admission, QueueRules
from judge_server.scheduling.call_runner import CallRunner, CallTask
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scheduling.single_flight import DEADLINE_EXCEEDED, InFlightCalls, SingleFlight, Subscriber


class PendingJudgement(Protocol):
    """What one request has at the desk. Outcomes enter the request's as soon as they are final."""

    async def wait(self) -> None:
        """Wait until every outcome is known, or the deadline; what is not known then failed as late.

        Raises:
            Overloaded: nothing of it was judged, since there is no room.
            NotReady: nothing of it was judged, since no judge is there.
        """

    def cancel(self) -> None:
        """Wait for nothing any more, and charge what it has cost so far. Calls that nobody else wants are dropped."""


class JudgeExecutor(Protocol):
    """Has calls answered.

    Attributes:
        identity: the model that answers, once started.
        findings: what was found and is not stored yet.
        most_calls: how many calls its queue holds, and so the most that a request may ask for.
    """

    identity: EngineIdentity
    write_buffer: WriteBehindBuffer
    max_calls: int

    @property
    def unavailable_reason(self) -> str:
        """Why nobody can answer for now, in words; empty where there is nothing to say."""

    @property
    def fatal_error(self) -> str:
        """Why nobody here will ever answer again, and the process must be started anew; empty while somebody may."""

    async def start(self, metrics: JudgeMetrics) -> None:
        """Get ready; what it costs is counted in `metrics`. Raises `EngineStartError` with the way out."""

    def submit(
        self,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        result: JudgementResults,
        tracker: CompletionTracker,
        deadline: float,
    ) -> PendingJudgement:
        """Begin to have the calls of the work answered by `deadline` (loop time), at the cost of `caller`.

        Raises:
            Overloaded: there is no room for them.
        """

    async def count_tokens(self, batch: Batch) -> int:
        """How many tokens the batch's longest prompt takes; raises `EngineUnavailable` when it cannot be asked."""

    def members(self) -> list[MemberView]:
        """Those behind the desk among whom calls are shared out; none where there is but one."""

    async def ready(self) -> bool:
        """Whether it could have a call answered now."""

    async def should_receive_traffic(self) -> bool:
        """Whether requests do as well here as at any other replica: a judge that all of them share is no difference."""

    async def close(self) -> None:
        """Release everything; calls on their way fail."""


FLIGHTS_PER_TURN = 64
"""Responses whose calls are begun in one turn of the event loop, some 5 ms."""


class LocalPendingJudgement:
    """What one request waits for, and the askings that it set off, and pays for as long as it waits.

    The calls of the first responses are begun at once, those of the others while the request waits, in slices: other
    requests have their turn in between. Room in the queue is held for all of them from the start.
    """

    def __init__(self, desk: "LocalExecutor", caller: Caller, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.call_tasks: list[CallTask] = []
        self._desk = desk
        self._caller = caller
        self._left: deque[tuple[ResponsePlan, list[PlannedCall]]] = deque()
        self._reading = ExitStack()

    def start(self, own: Sequence[tuple[ResponsePlan, list[PlannedCall]]]) -> None:
        """Begin the first of these calls, which nobody has on the way; `done` begins the others."""
        for plan, planned_calls in own[:FLIGHTS_PER_TURN]:
            self.call_tasks.append(self._desk.start_calls(plan, planned_calls, self._caller, self.subscriber))
        self._left.extend(own[FLIGHTS_PER_TURN:])
        if self._left:
            self.subscriber.expects_more = True
            self._reading.enter_context(self._desk.write_buffer.read_through())

    async def wait(self) -> None:
        """Begin what is left, and wait until every outcome is known, or the deadline."""
        loop = asyncio.get_running_loop()
        while self._left:
            await asyncio.sleep(0)
            if loop.time() >= self.subscriber.deadline:
                late = [digest for _, planned_calls in self._left for one in planned_calls for digest in one.digests]
                self._stop_starting()
                self.subscriber.know(
                    {digest: DEADLINE_EXCEEDED for digest in late if digest not in self.subscriber.result.by_digest}
                )
            for _ in range(min(FLIGHTS_PER_TURN, len(self._left))):
                self._start_next()
        self._stop_starting()
        await self.subscriber.wait()

    def cancel(self) -> None:
        """Wait for nothing any more; the last one to leave a call drops it."""
        self._stop_starting()
        self.subscriber.unsubscribe()
        for call_task in self.call_tasks:
            call_task.charge_to(self.subscriber.result)

    def _start_next(self) -> None:
        """Begin the calls of a response, but for those that others have begun, or even finished, in the meantime."""
        plan, planned_calls = self._left.popleft()
        result, mine = self.subscriber.result, []
        for one in planned_calls:
            missing = [digest for digest in one.digests if digest not in result.by_digest]
            found = {
                digest: finding for digest in missing if (finding := self._desk.write_buffer.get(digest)) is not None
            }
            in_flight = self._desk.single_flight.find(missing[0]) if missing else None
            if in_flight is not None:
                self._desk.subscribe(in_flight, missing, self._caller, self.subscriber)
            else:
                self.subscriber.know(found)
                result.joined |= found.keys()
                if len(found) < len(missing):
                    mine.append(one)
        self._desk.admission.limits.release(self._caller.run, len(planned_calls) - len(mine))
        if mine:
            self.call_tasks.append(self._desk.start_calls(plan, mine, self._caller, self.subscriber))

    def _stop_starting(self) -> None:
        self.subscriber.expects_more = False
        self._desk.admission.limits.release(self._caller.run, sum(len(planned_calls) for _, planned_calls in self._left))
        self._left.clear()
        self._reading.close()


class LocalExecutor:
    """One engine, and the one queue in front of it. `clock` gives seconds."""

    identity: EngineIdentity
    admission: Admission
    unavailable_reason = ""

    def __init__(
        self, engine: Engine, *, rules: QueueRules = DEFAULT_QUEUE_RULES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine = engine
        self.write_buffer = WriteBehindBuffer()
        self.single_flight = SingleFlight()
        self.max_calls = rules.calls
        self._rules = rules
        self._clock = clock
        self._runner: CallRunner | None = None

    @property
    def fatal_error(self) -> str:
        """Why the engine will never answer again."""
        return self.engine.fatal_error

    async def start(self, metrics: JudgeMetrics) -> None:
        """Load the engine."""
        self.identity = await self.engine.start()
        self.admission = Admission(
            self._capacity,
            self._rules,
            calls=self.engine.concurrent_calls,
            first_alone=not self.identity.capabilities.prefix_in_flight,
            clock=self._clock,
        )
        self._metrics = metrics
        self._runner = CallRunner(self.engine, self.admission, self.write_buffer, metrics)
        metrics.watch(self.admission)

    def submit(
        self,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        result: JudgementResults,
        tracker: CompletionTracker,
        deadline: float,
    ) -> LocalPendingJudgement:
        """Have the request wait for what is on its way already, and set off flights of its own for the rest."""
        pending = LocalPendingJudgement(self, caller, Subscriber(result, tracker, deadline))
        own: list[tuple[ResponsePlan, list[PlannedCall]]] = []
        joins: list[tuple[InFlightCalls, list[bytes]]] = []
        for plan, planned_calls, _ in work:
            mine = []
            for one in planned_calls:
                missing = [digest for digest in one.digests if digest not in result.by_digest]
                in_flight = self.single_flight.find(missing[0])
                if in_flight is None:
                    mine.append(one)
                else:
                    joins.append((in_flight, missing))
            if mine:
                own.append((plan, mine))
        calls = sum(len(planned_calls) for _, planned_calls in own)
        try:
            self.admission.limits.acquire(caller.run, calls)
        except Overloaded:
            self._metrics.count_shed(calls)
            raise
        for in_flight, missing in joins:
            self.subscribe(in_flight, missing, caller, pending.subscriber)
        pending.start(own)
        return pending

    def subscribe(
        self, in_flight: InFlightCalls, missing: Sequence[bytes], caller: Caller, subscriber: Subscriber
    ) -> None:
        """Have a request wait for outcomes that another one has on their way."""
        in_flight.subscribe(subscriber, missing)
        if caller.priority == "online" and in_flight.promote is not None:
            in_flight.promote()
        subscriber.result.joined.update(missing)

    def start_calls(
        self, plan: ResponsePlan, planned_calls: Sequence[PlannedCall], caller: Caller, subscriber: Subscriber
    ) -> CallTask:
        """Set off a response's calls, which have room in the queue."""
        in_flight, of = self.single_flight.start(planned_calls), subscriber.result.by_digest
        digests = [digest for one in planned_calls for digest in one.digests]
        in_flight.latest_outcomes.update([(digest, of[digest]) for digest in digests if digest in of])
        in_flight.subscribe(subscriber, [digest for digest in digests if digest not in of])
        assert self._runner is not None, "the desk has not started"
        return self._runner.launch(in_flight, plan, caller, subscriber.result)

    async def count_tokens(self, batch: Batch) -> int:
        """As the engine counts."""
        return await self.engine.count_tokens(batch)

    def members(self) -> list[MemberView]:
        """The endpoints of a pool."""
        return self.engine.members() if isinstance(self.engine, EnginePool) else []

    async def ready(self) -> bool:
        """Whether the engine could answer now."""
        return await self.engine.ready()

    async def should_receive_traffic(self) -> bool:
        """Whether the engine could answer now: another replica has another engine."""
        return await self.engine.ready()

    async def close(self) -> None:
        """Release the model."""
        if self._runner is not None:
            self._runner.recovery.close()
        await self.engine.close()

    def _capacity(self) -> int:
        """How many batches the engine takes at a time now: a pool's members come and go."""
        return self.engine.capacity if isinstance(self.engine, EnginePool) else self.identity.concurrent_batches
