"""The judge executor: the port that has calls answered, and the one in front of a local engine.

A judge hands over the calls that have no known verdict, and gets a `PendingJudgement` to wait for. `LocalExecutor`
joins them with identical calls in flight, queues the rest and sends them to the engine of this process.
`judge_server.remote.executor` sends them to judges in other processes.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Protocol

from judge_server.errors import EngineUnavailable, Overloaded
from judge_server.judging.plan import PlannedCall, ResponsePlan
from judge_server.judging.results import (
    Caller,
    CallOutcome,
    JudgingProgress,
    Outcomes,
    UnresolvedWork,
    WriteBehindBuffer,
)
from judge_server.ports import Batch, Engine, EngineIdentity, MemberView
from judge_server.scheduling.admission import DEFAULT_QUEUE_RULES, Admission, QueueRules
from judge_server.scheduling.call_runner import (
    DEADLINE_EXCEEDED,
    RETRY_TIMES,
    CallRunner,
    CallTask,
    RetryTimes,
    SingleFlight,
    Subscriber,
)
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scheduling.sleep import Lease, SleepControl, SleepReport
from judge_server.scheduling.time_sharing import next_slice
from judge_server.scheduling.weights import VersionGate, WeightsControl, WeightsOrder, WeightsReport
from trainer_client.wire.judges import RestingState, SleepState


class PendingJudgement(Protocol):
    """The calls of one request at an executor. Outcomes enter its progress as soon as they are final."""

    async def wait(self) -> None:
        """Wait until every outcome is known. Outcomes still unknown at the deadline are timeouts.

        Raises:
            Overloaded: nothing was judged, because the queue is full.
            NotReady: nothing was judged, because no judge is available.
        """

    def cancel(self) -> None:
        """Stop waiting, and charge the cost so far. Calls that no other request waits for are dropped."""


class ExecutorStatus(Protocol):
    """What others may know of an executor, or of those of a cascade or panel together, and do with it."""

    @property
    def sleep_state(self) -> SleepState:
        """Whether it is awake or asleep, or on its way."""

    async def hold(self, lease: Lease) -> SleepReport:
        """Have the engine sleep or wake, as this and other leases say, and wait until it does.

        Raises:
            CannotSleep: it cannot sleep, and stays awake.
            NotReady: it failed to fall asleep or to wake, or could not be reached.
        """

    @property
    def weights(self) -> WeightsReport:
        """The weights that it has."""

    async def load(self, order: WeightsOrder) -> WeightsReport:
        """Judge with other weights, once the requests under way have ended.

        Raises:
            CannotLoad: it cannot, or is asleep, and has the weights before.
            WeightsChanged: its weights are not those that the order expects.
            NotReady: requests under way have not ended, or which weights it has is unknown now.
        """

    def one_version(self, deadline: float) -> AbstractAsyncContextManager[None]:
        """Keep its weights as they are inside the block, which is a request; waits until `deadline` for a change.

        Raises:
            NotReady: other weights are still being loaded at the deadline, or which ones it has is unknown.
        """

    @property
    def max_calls(self) -> int:
        """How many calls the queue holds, and so the most that one request may have."""

    @property
    def unavailable_reason(self) -> str:
        """Why no call can be answered at the moment; empty if calls can be."""

    async def count_tokens(self, batch: Batch) -> int:
        """Return the tokens of the batch's longest prompt; raises `EngineUnavailable` if the engine is gone."""

    def members(self) -> list[MemberView]:
        """Return the members that calls are balanced over; empty if there is only one."""

    async def ready(self) -> bool:
        """Return whether a call could be answered now."""

    async def should_receive_traffic(self) -> bool:
        """Return whether this replica should receive traffic; a judge that all replicas share counts against none."""


class JudgeExecutor(ExecutorStatus, Protocol):
    """Has calls answered by a model.

    Attributes:
        identity: the model that answers; set once started.
        write_buffer: results that are not in the verdict cache yet.
    """

    identity: EngineIdentity
    write_buffer: WriteBehindBuffer

    @property
    def fatal_error(self) -> str:
        """Why no call can be answered until the process restarts; empty if there is no such reason."""

    async def start(self, metrics: JudgeMetrics) -> None:
        """Start, and count into `metrics`. Raises `EngineStartError`, which says what to do."""

    def submit(
        self, work: Sequence[UnresolvedWork], caller: Caller, progress: JudgingProgress, deadline: float
    ) -> PendingJudgement:
        """Start having the calls answered by `deadline` (loop time), billed to `caller`.

        Raises:
            Overloaded: the queue has no room for them.
        """

    async def close(self) -> None:
        """Release all resources. Calls in flight fail."""


RESPONSES_PER_TURN = 16
"""Responses whose calls are started in one slice of the event loop, about 2 ms."""


class LocalPendingJudgement:
    """The calls that one request waits for, and the running tasks that it started and is billed for while it waits.

    The calls of the first responses start at once. Those of the others start in slices while the request waits, so that
    other requests get their turn in between. The queue limits count all of them from the start.
    """

    def __init__(self, executor: "LocalExecutor", caller: Caller, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self._call_tasks: set[CallTask] = set()
        self._executor = executor
        self._caller = caller
        self._left: deque[tuple[ResponsePlan, list[PlannedCall]]] = deque()
        self._reading = ExitStack()

    def start(self, own: Sequence[tuple[ResponsePlan, list[PlannedCall]]]) -> None:
        """Start the first of these calls; `wait` starts the others. None of them is in flight yet."""
        self._left.extend(own)
        self._start_some()
        if self._left:
            self.subscriber.expects_more = True
            self._reading.enter_context(self._executor.write_buffer.read_through())

    async def wait(self) -> None:
        """Start the remaining calls, and wait until every outcome is known or the deadline passes."""
        loop = asyncio.get_running_loop()
        while self._left:
            await next_slice()
            if loop.time() >= self.subscriber.deadline:
                late = [digest for _, planned_calls in self._left for one in planned_calls for digest in one.digests]
                self._stop_starting()
                progress = self.subscriber.progress
                progress.add(Outcomes({digest: DEADLINE_EXCEEDED for digest in late if digest not in progress.known}))
            self._start_some()
        self._stop_starting()
        await self.subscriber.wait()

    def cancel(self) -> None:
        """Stop waiting. A call whose last subscriber leaves is dropped."""
        self._stop_starting()
        self.subscriber.unsubscribe()
        for call_task in self._call_tasks:
            call_task.charge_to(self.subscriber.progress)

    def _start_some(self) -> None:
        """Start the calls of the next responses, except those that another request has started or finished since."""
        executor, subscriber = self._executor, self.subscriber
        for _ in range(min(RESPONSES_PER_TURN, len(self._left))):
            plan, planned_calls = self._left.popleft()
            digests = [digest for one in planned_calls for digest in one.digests]
            mine = planned_calls
            if not (executor.single_flight.has_none_of(digests) and executor.write_buffer.has_none_of(digests)):
                mine = self._without_known(planned_calls)
                executor.admission.limits.release(self._caller.run, len(planned_calls) - len(mine))
            if mine:
                call_task = executor.start_calls(plan, mine, self._caller, subscriber)
                self._call_tasks.add(call_task)
                call_task.add_done_callback(self._call_tasks.discard)

    def _without_known(self, planned_calls: Sequence[PlannedCall]) -> list[PlannedCall]:
        """Take over what is known or in flight of these calls; return the others."""
        executor, progress, mine = self._executor, self.subscriber.progress, []
        for one in planned_calls:
            missing = [digest for digest in one.digests if digest not in progress.known]
            buffer = executor.write_buffer
            found: dict[bytes, CallOutcome] = {
                digest: known for digest in missing if (known := buffer.get(digest)) is not None
            }
            in_flight = executor.single_flight.find(missing[0]) if missing else None
            if in_flight is not None:
                executor.subscribe(in_flight, missing, self._caller, self.subscriber)
            else:
                progress.add(Outcomes(found, joined=set(found)))
                if len(found) < len(missing):
                    mine.append(one)
        return mine

    def _stop_starting(self) -> None:
        self.subscriber.expects_more = False
        self._executor.admission.limits.release(
            self._caller.run, sum(len(planned_calls) for _, planned_calls in self._left)
        )
        self._left.clear()
        self._reading.close()


class LocalExecutor:
    """An engine in this process, and the queue in front of it. `clock` returns seconds.

    `resting` is the engine's state while nobody holds a lease. `adapters` is the folder that adapters are loaded from.
    `retry_times` say how long calls wait for an engine that failed.
    """

    identity: EngineIdentity
    admission: Admission

    def __init__(
        self,
        engine: Engine,
        *,
        rules: QueueRules = DEFAULT_QUEUE_RULES,
        resting: RestingState = "awake",
        adapters: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        retry_times: RetryTimes = RETRY_TIMES,
    ) -> None:
        self.engine = engine
        self.write_buffer = WriteBehindBuffer()
        self.single_flight = SingleFlight()
        self.max_calls = rules.calls
        self._rules = rules
        self._resting = resting
        self._adapters = adapters
        self._clock = clock
        self._retry_times = retry_times
        self._gate = VersionGate()
        self._weights: WeightsControl | None = None
        self._loads: set[asyncio.Task[WeightsReport]] = set()
        self._sleep: SleepControl | None = None
        self._runner: CallRunner | None = None

    @property
    def fatal_error(self) -> str:
        """Why the engine cannot answer until the process restarts."""
        return self.engine.fatal_error

    @property
    def unavailable_reason(self) -> str:
        """Why the engine does not wake, does not fall asleep, or must not be asked."""
        return self._gate.problem or ("" if self._sleep is None else self._sleep.problem)

    @property
    def sleep_state(self) -> SleepState:
        """The engine's state."""
        return "awake" if self._sleep is None else self._sleep.state

    async def hold(self, lease: Lease) -> SleepReport:
        """Take the lease, and wait until the engine follows."""
        return await self._control.hold(lease)

    @property
    def weights(self) -> WeightsReport:
        """The weights that the engine has."""
        assert self._weights is not None, "the executor has not started"
        return self._weights.report

    async def load(self, order: WeightsOrder) -> WeightsReport:
        """Load other weights. A change that has begun is finished, also if the wait for it is cancelled."""
        assert self._weights is not None, "the executor has not started"
        task = asyncio.create_task(self._weights.load(order))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        return await asyncio.shield(task)

    def one_version(self, deadline: float) -> AbstractAsyncContextManager[None]:
        """Keep the engine's weights as they are inside the block."""
        return self._gate.request(deadline)

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
        self._runner = CallRunner(self.engine, self.admission, self.write_buffer, metrics, self._retry_times)
        self._sleep = SleepControl(self.engine, self.admission, resting=self._resting)
        self._weights = WeightsControl(self.engine, self.identity, self._gate, self._sleep, self._adapters, self._adopt)
        metrics.watch(self.admission)

    def submit(
        self,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        progress: JudgingProgress,
        deadline: float,
    ) -> LocalPendingJudgement:
        """Join the calls that are in flight already, and start the rest."""
        pending = LocalPendingJudgement(self, caller, Subscriber(progress, deadline))
        own: list[tuple[ResponsePlan, list[PlannedCall]]] = []
        joins: list[tuple[CallTask, list[bytes]]] = []
        for plan, planned_calls, _ in work:
            mine = planned_calls
            if self.single_flight and not self.single_flight.has_none_of(plan.digests):
                mine = []
                for one in planned_calls:
                    missing = [digest for digest in one.digests if digest not in progress.known]
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

    def subscribe(self, in_flight: CallTask, missing: Sequence[bytes], caller: Caller, subscriber: Subscriber) -> None:
        """Subscribe a request to calls in flight that another request started."""
        in_flight.subscribe(subscriber, missing)
        if caller.priority == "online":
            in_flight.promote()
        subscriber.progress.add(Outcomes(joined=set(missing)))

    def start_calls(
        self, plan: ResponsePlan, planned_calls: Sequence[PlannedCall], caller: Caller, subscriber: Subscriber
    ) -> CallTask:
        """Start a response's calls. The queue limits have admitted them."""
        assert self._runner is not None, "the executor has not started"
        progress = subscriber.progress
        call_task = CallTask(self._runner, self.single_flight, plan, planned_calls, caller, progress)
        digests = [digest for one in planned_calls for digest in one.digests]
        call_task.latest_outcomes.update({d: progress.known[d] for d in digests if d in progress.known})
        call_task.subscribe(subscriber, [digest for digest in digests if digest not in progress.known])
        return call_task

    async def count_tokens(self, batch: Batch) -> int:
        """Ask the engine, once it is awake."""
        while True:
            await self._control.until_awake()
            try:
                return await self.engine.count_tokens(batch)
            except EngineUnavailable:
                if self.sleep_state == "awake":
                    raise

    def members(self) -> list[MemberView]:
        """Return the endpoints of a pool."""
        pool = self.engine.pool
        return [] if pool is None else pool.members()

    async def ready(self) -> bool:
        """Return whether the engine could answer now, or is asleep as it should be."""
        if self._gate.problem or self.sleep_state != "awake":
            return not self.unavailable_reason
        return await self.engine.ready()

    async def should_receive_traffic(self) -> bool:
        """Return whether the engine is ready. Another replica has another engine."""
        return await self.ready()

    async def close(self) -> None:
        """Release the model."""
        for one in self._loads:
            one.cancel()
        await asyncio.gather(*self._loads, return_exceptions=True)
        if self._sleep is not None:
            await self._sleep.close()
        if self._runner is not None:
            self._runner.recovery.close()
        await self.engine.close()

    def _adopt(self, identity: EngineIdentity) -> None:
        self.identity = identity

    @property
    def _control(self) -> SleepControl:
        assert self._sleep is not None, "the executor has not started"
        return self._sleep

    def _capacity(self) -> int:
        """Return how many batches the engine takes at a time now. Members of a pool come and go."""
        pool = self.engine.pool
        return self.identity.concurrent_batches if pool is None else pool.capacity
