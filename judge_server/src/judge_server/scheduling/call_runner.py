"""Run the judge calls of a response: queue them, retry them, and keep every verdict that can be read.

Identical calls are made once and shared by all requests that need them (single flight). A `CallTask` runs the calls
that one request makes about one response. Another request that needs one of their verdicts subscribes to them instead
of making the call again, and when the last subscriber leaves, the calls are cancelled.

A task sends its calls through admission, again if the engine failed, and one criterion at a time if part of a written
answer could not be read. Each verdict is kept as soon as it is read, so nothing judged is lost when a subscriber
leaves. If the engine goes away, its calls are held until it is back: an engine restarts in seconds, and losing a
training step costs more.
"""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeGuard

from judge_server.judging.plan import PlannedCall, ResponsePlan
from judge_server.judging.questions import Question
from judge_server.judging.results import Caller, CallOutcome, Costs, JudgingProgress, Outcomes, WriteBehindBuffer
from judge_server.observability.tracing import mark_span_failed, set_span_attributes, tracer
from judge_server.ports import Batch, CallFailure, Engine, JudgeResult, Reply
from judge_server.scheduling.admission import Admission, QueueEntry
from judge_server.scheduling.metrics import JudgeMetrics

log = logging.getLogger("adjudge")

ENGINE_RETRY_PAUSE_S = 0.2
"""Pause before the single retry at the same engine."""

MAX_HOLD_S = 30.0
"""How long calls are held for an engine that is down; one that is down for longer is not expected back soon. If a load
takes longer, verdicts fail needlessly; if the value is close to the deadline, they fail as timeouts."""

_MAX_PAUSE_S = 1.0


class RetryTimes(NamedTuple):
    """How long calls wait for an engine that failed, in seconds.

    Attributes:
        pause_s: the pause before the single retry.
        max_hold_s: how long calls are held for an engine that is down.
    """

    pause_s: float = ENGINE_RETRY_PAUSE_S
    max_hold_s: float = MAX_HOLD_S


RETRY_TIMES = RetryTimes()

_MISSING_ANSWER = CallFailure("engine", "the engine ended a batch without an answer to this call")


DEADLINE_EXCEEDED = CallFailure("timeout", "the request's deadline passed before the judge came to this criterion")

_UNSUBSCRIBED_PER_TURN = 16
"""How many calls in flight a request leaves in one turn of the event loop. Each may cancel a task."""


class CallRound(NamedTuple):
    """A batch, and the callback that receives the place and outcome of each of its calls."""

    batch: Batch
    on_outcome: Callable[[int, Reply | CallFailure], None]


class CallRunner:
    """Run calls on one engine. Holds what all `CallTask`s share."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        write_buffer: WriteBehindBuffer,
        metrics: JudgeMetrics,
        retry_times: RetryTimes = RETRY_TIMES,
    ) -> None:
        self.engine = engine
        self.admission = admission
        self.write_buffer = write_buffer
        self.metrics = metrics
        self.retry_pause_s = retry_times.pause_s
        self.recovery = EngineRecovery(engine, admission, retry_times.max_hold_s)


class Subscriber:
    """A request that waits for outcomes until its deadline (loop time).

    `expects_more` is set while it has not subscribed to everything yet.
    """

    def __init__(self, progress: JudgingProgress, deadline: float) -> None:
        self.progress = progress
        self.deadline = deadline
        self.expects_more = False
        self._pending: dict[CallTask, set[bytes]] = {}
        self._completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expect(self, in_flight: "CallTask", digests: Iterable[bytes]) -> None:
        """Wait for these outcomes of calls in flight as well."""
        self._pending.setdefault(in_flight, set()).update(digests)

    def expected_from(self, in_flight: "CallTask") -> set[bytes]:
        """Return the digests that this request still waits for from these calls."""
        return self._pending.get(in_flight, set())

    def deliver(self, in_flight: "CallTask", outcomes: Mapping[bytes, CallOutcome]) -> None:
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

    def _leave(self, remaining: "deque[CallTask]") -> None:
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


class CallTask:
    """The running calls about one response, which other requests can join. They are billed to `billed_to`.

    The queue limits have admitted them.

    Attributes:
        latest_outcomes: the outcomes so far: results, which are final, and failures, which a retry may replace.
        subscribers: the requests that wait for some of the outcomes.
        has_leavers: whether a subscriber has left, so that some calls may have no subscriber any more.
    """

    def __init__(
        self,
        runner: CallRunner,
        single_flight: "SingleFlight",
        plan: ResponsePlan,
        planned_calls: Sequence[PlannedCall],
        caller: Caller,
        billed_to: JudgingProgress,
    ) -> None:
        self.has_leavers = False
        self.latest_outcomes: dict[bytes, CallOutcome] = {}
        self.subscribers: dict[Subscriber, None] = {}
        self._single_flight = single_flight
        self._open = {one.digests[0]: one for one in planned_calls}
        single_flight.register(self, planned_calls)
        self._runner = runner
        self._plan = plan
        self._caller = caller
        self._billed_to = billed_to
        self._queue_entry: QueueEntry | None = None
        self._charged = False
        self._started = False
        self._round: CallRound | None = None
        self._arrived: list[tuple[int, Reply | CallFailure]] = []
        self._complete: list[PlannedCall] = []
        self._held_calls = len(planned_calls)
        self._task = asyncio.create_task(self._run())

    @property
    def deadline(self) -> float:
        """The latest deadline of the subscribers (loop time)."""
        return max((subscriber.deadline for subscriber in self.subscribers), default=0.0)

    @property
    def _unsettled(self) -> list[PlannedCall]:
        """The calls without a final outcome."""
        return list(self._open.values())

    def subscribe(self, subscriber: Subscriber, digests: Iterable[bytes]) -> None:
        """Add a subscriber that waits for these outcomes."""
        self.subscribers[subscriber] = None
        subscriber.expect(self, digests)

    def remove_subscriber(self, subscriber: Subscriber) -> None:
        """Remove a subscriber that has all its outcomes. If it was the one billed, bill one that remains."""
        self.subscribers.pop(subscriber, None)
        if self.subscribers and subscriber.progress is self._billed_to:
            self._charge()
            self._billed_to = next(iter(self.subscribers)).progress

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber that stops waiting. The last one to leave cancels the remaining calls.

        They leave the queue and the engine, and are billed until now.
        """
        self.remove_subscriber(subscriber)
        self.has_leavers = True
        if not self.subscribers:
            self._single_flight.forget(self, self._open.values())
            self._process_arrived()
            if self._queue_entry is not None:
                self._runner.admission.withdraw(self._queue_entry)
            self._charge()
            self._release_limits()
            self._task.cancel()

    def _prune(self, planned_calls: Sequence[PlannedCall]) -> list[PlannedCall]:
        """Return the calls that have a subscriber. The others can no longer be joined."""
        if not self.has_leavers:
            return list(planned_calls)
        wanted = set().union(*(subscriber.expected_from(self) for subscriber in self.subscribers))
        kept = [one for one in planned_calls if not wanted.isdisjoint(one.digests)]
        for one in planned_calls:
            if wanted.isdisjoint(one.digests):
                self._single_flight.forget(self, [self._open.pop(one.digests[0])])
        return kept

    def _settle(self, planned_calls: Sequence[PlannedCall]) -> None:
        """Deliver the latest outcomes of these calls, which are final now."""
        for one in planned_calls:
            del self._open[one.digests[0]]
        self._single_flight.forget(self, planned_calls)
        outcomes = {digest: self.latest_outcomes[digest] for one in planned_calls for digest in one.digests}
        for subscriber in list(self.subscribers):
            subscriber.deliver(self, outcomes)

    def _fail(self, error: BaseException) -> None:
        self._single_flight.forget(self, self._open.values())
        for subscriber in list(self.subscribers):
            subscriber.fail(error)

    def add_done_callback(self, done: Callable[["CallTask"], None]) -> None:
        """Call `done` with this task when it has ended."""
        self._task.add_done_callback(lambda _: done(self))

    def charge_to(self, billed_to: JudgingProgress) -> None:
        """Add the seconds that the current batch has taken, if `billed_to` is the one billed for it."""
        if billed_to is self._billed_to:
            self._charge()

    def _charge(self) -> None:
        """Bill the seconds that the current batch has taken, once."""
        if self._queue_entry is None or self._charged:
            return
        self._charged = True
        queued, judging = self._queue_entry.seconds(self._runner.admission.clock())
        self._billed_to.charge(Costs(seconds_queued=queued, seconds_judging=judging))
        self._runner.metrics.batch(self._caller, queued, judging)

    def promote(self) -> None:
        """Move these calls to the online class, because an online request waits for them now."""
        if self._caller.priority == "online":
            return
        self._caller = self._caller._replace(priority="online")
        if self._queue_entry is not None:
            self._runner.admission.promote(self._queue_entry)

    async def _run(self) -> None:
        try:
            unread = [*await self._run_calls(self._unsettled), *await self._retry_calls()]
            if unread:
                await self._retry_individually(unread)
            self._settle(self._unsettled)
        except Exception as error:
            log.exception("the calls of a response failed with an unexpected error")
            self._fail(error)
        finally:
            self._release_limits()
            self._round = None  # breaks a reference cycle, so that no garbage collection is needed

    def _release_limits(self) -> None:
        self._runner.admission.limits.release(self._caller.run, self._held_calls)
        self._held_calls = 0

    async def _run_calls(self, planned_calls: Sequence[PlannedCall]) -> list[tuple[PlannedCall, int]]:
        """Run calls and return the verdicts that could not be read, each as its call and the place in it."""
        unread: list[tuple[PlannedCall, int]] = []

        def make_round() -> CallRound:
            wanted = self._prune(planned_calls)

            def on_outcome(place: int, outcome: Reply | CallFailure) -> None:
                one = wanted[place]
                if isinstance(outcome, CallFailure):
                    for digest in one.digests:
                        self._keep(digest, outcome)
                    return
                verdicts = one.question.read(outcome)
                missing = [n for n, digest in enumerate(one.digests) if not self._keep(digest, verdicts[n])]
                if not missing:
                    self._complete.append(one)
                elif outcome.text is not None:
                    unread.extend((one, n) for n in missing if _unreadable(verdicts[n]))

            batch = self._plan.batch
            if len(wanted) < len(batch.calls):
                batch = replace(batch, calls=tuple([one.question.call for one in wanted]))
            return CallRound(batch, on_outcome)

        await self._run_round(make_round)
        return unread

    async def _retry_calls(self) -> list[tuple[PlannedCall, int]]:
        """Retry calls that failed at the engine: once, and again each time it was down and came back.

        Returns the verdicts that could not be read, as `_run_calls` does.
        """
        unread: list[tuple[PlannedCall, int]] = []
        was_down: bool | None = True
        while was_down:
            to_retry = [one for one in self._unsettled if any(_transient(self.latest_outcomes[d]) for d in one.digests)]
            if not to_retry:
                break
            outcomes = [self.latest_outcomes[d] for one in to_retry for d in one.digests]
            requested = [outcome.retry_after_s for outcome in outcomes if _transient(outcome)]
            pause = max([self._runner.retry_pause_s, *[seconds or 0.0 for seconds in requested]])
            was_down = await self._runner.recovery.wait(pause, self.deadline)
            if was_down is not None:
                unread += await self._run_calls(to_retry)
        return unread

    async def _retry_individually(self, unread: Sequence[tuple[PlannedCall, int]]) -> None:
        """Ask again, one criterion per call, for the verdicts that could not be read."""
        calls_of = list(dict.fromkeys(one for one, _ in unread))

        def make_round() -> CallRound:
            wanted = self._prune(calls_of)
            again = [(one.digests[n], _single_question(one.question, n)) for one, n in unread if one in wanted]

            def on_outcome(place: int, outcome: Reply | CallFailure) -> None:
                digest, question = again[place]
                if isinstance(outcome, Reply):
                    self._keep(digest, *question.read(outcome))

            calls = tuple([question.call for _, question in again])
            batch = replace(self._plan.batch, system=self._plan.system_alone, calls=calls)
            return CallRound(batch, on_outcome)

        await self._run_round(make_round)

    async def _run_round(self, build: Callable[[], CallRound]) -> None:
        """Queue a round and collect its answers.

        The round is rebuilt once it is admitted if subscribers have left, so that the engine gets no unwanted calls.
        """
        admission, loop = self._runner.admission, asyncio.get_running_loop()
        self._round = build()
        if not self._round.batch.calls:
            return
        self._queue_entry = QueueEntry(self._caller, self._round.batch, admission.clock(), resumed=self._started)
        self._charged = False
        try:
            async with admission.acquire(self._queue_entry):
                while loop.time() >= self.deadline:  # noqa: ASYNC110 - expiry cancels this task
                    await asyncio.sleep(0)
                if self.has_leavers:
                    self._round = build()
                self._started = True
                await self._collect_answers(self._round.batch, self._queue_entry)
        finally:
            self._process_arrived()
            self._charge()
            self._queue_entry = None

    async def _collect_answers(self, batch: Batch, queue_entry: QueueEntry) -> None:
        """Collect the engine's answers, and a failure for each call it did not answer; other calls keep theirs."""
        left, failure = set(range(len(batch.calls))), _MISSING_ANSWER
        try:
            admission = self._runner.admission
            async for place, outcome in traced_answers(self._runner.engine, batch):
                if not self._arrived:
                    asyncio.get_running_loop().call_soon(self._process_arrived)
                self._arrived.append((place, outcome))
                left.discard(place)
                if admission.counts_calls:
                    admission.record_answer(queue_entry, len(left))
        except Exception as error:
            log.exception("the engine failed in a batch of %d calls", len(batch.calls))
            failure = CallFailure("engine", f"the engine failed with {type(error).__name__}; see its log")
        self._arrived += [(place, failure) for place in sorted(left)]

    def _process_arrived(self) -> None:
        """Read the outcomes that arrived in this event loop iteration, and settle the calls that are complete."""
        arrived, self._arrived = self._arrived, []
        if not arrived:
            return
        self._bill([outcome for _, outcome in arrived])
        for place, outcome in arrived:
            if self._round is not None:
                self._round.on_outcome(place, outcome)
        complete, self._complete = self._complete, []
        if complete:
            self._settle(complete)

    def _bill(self, outcomes: Sequence[Reply | CallFailure]) -> None:
        """Bill calls, and count what the engine got wrong or refused."""
        computed = reused = written = 0
        for outcome in outcomes:
            if isinstance(outcome, Reply):
                computed += outcome.tokens_computed
                reused += outcome.tokens_reused
                written += outcome.tokens_written
                if outcome.counts_clipped:
                    self._runner.metrics.count_clipped_reply()
            elif outcome.kind == "overloaded":
                self._runner.admission.concurrency.record_rejection()
        self._billed_to.charge(Costs(len(outcomes), computed, reused, written))

    def _keep(self, digest: bytes, verdict: CallOutcome) -> bool:
        """Keep an outcome unless a verdict is known already; return whether one is known now."""
        latest_outcomes = self.latest_outcomes
        if isinstance(latest_outcomes.get(digest), JudgeResult):
            return True
        latest_outcomes[digest] = verdict
        if isinstance(verdict, JudgeResult):
            self._runner.write_buffer.add(digest, verdict)
            return True
        return False


class SingleFlight:
    """The calls in flight, by the digest of each verdict that they bring."""

    def __init__(self) -> None:
        self._calls_of: dict[bytes, CallTask] = {}

    def __len__(self) -> int:
        return len(self._calls_of)

    def find(self, digest: bytes) -> CallTask | None:
        """Return the calls in flight that bring this verdict; None if there are none."""
        return self._calls_of.get(digest)

    def has_none_of(self, digests: Iterable[bytes]) -> bool:
        """Whether no calls in flight bring any of these verdicts."""
        return self._calls_of.keys().isdisjoint(digests)

    def register(self, in_flight: CallTask, planned_calls: Iterable[PlannedCall]) -> None:
        """Register calls as in flight, so that other requests can join them."""
        for one in planned_calls:
            for digest in one.digests:
                self._calls_of[digest] = in_flight

    def forget(self, in_flight: CallTask, planned_calls: Iterable[PlannedCall]) -> None:
        """Unregister calls, so that no other request joins them."""
        for one in planned_calls:
            for digest in one.digests:
                if self._calls_of.get(digest) is in_flight:
                    del self._calls_of[digest]


def _single_question(question: Question, place: int) -> Question:
    return question.alone(place) if question.alone else question


def _transient(outcome: CallOutcome) -> TypeGuard[CallFailure]:
    return (
        isinstance(outcome, CallFailure)
        and outcome.kind in ("engine", "overloaded")
        and outcome.retry_after_s != math.inf
    )


def _unreadable(verdict: CallOutcome) -> bool:
    return isinstance(verdict, CallFailure) and verdict.kind == "parse"


BatchOutcome = tuple[int, Reply | CallFailure]


def traced_answers(engine: Engine, batch: Batch) -> AsyncIterator[BatchOutcome]:
    """Stream the engine's answers to a batch, inside a span if tracing is on.

    The span covers the batch and carries its token counts and failures; single calls get no span.
    """
    return engine.answer(batch) if tracer() is None else _answer_in_span(engine, batch)


async def _answer_in_span(engine: Engine, batch: Batch) -> AsyncIterator[BatchOutcome]:
    active_tracer = tracer()
    assert active_tracer is not None
    engine_span = active_tracer.start_span("engine", attributes={"adjudge.calls": len(batch.calls)})
    computed = reused = written = replies = 0
    failures: Counter[str] = Counter()
    answer_stream = engine.answer(batch)
    try:
        async for place, outcome in answer_stream:
            if isinstance(outcome, CallFailure):
                failures[outcome.kind] += 1
            else:
                replies += 1
                computed += outcome.tokens_computed
                reused += outcome.tokens_reused
                written += outcome.tokens_written
            yield place, outcome
    except Exception as error:
        mark_span_failed(engine_span, type(error).__name__)
        raise
    finally:
        set_span_attributes(
            engine_span, replies=replies, tokens_computed=computed, tokens_reused=reused, tokens_written=written
        )
        set_span_attributes(engine_span, **{f"failed.{kind}": number for kind, number in failures.items()})
        if failures:
            mark_span_failed(engine_span, failures.most_common(1)[0][0])
        engine_span.end()
        if (close := getattr(answer_stream, "aclose", None)) is not None:
            await close()


class EngineRecovery:
    """Wait for an engine that went down. All calls that wait share one watch task.

    While admission is paused the engine may be asleep. Its calls then wait in the queue, up to their own deadlines.
    """

    def __init__(self, engine: Engine, admission: Admission, max_hold_s: float = MAX_HOLD_S) -> None:
        self._max_hold_s = max_hold_s
        self._engine = engine
        self._admission = admission
        self._watch_task: asyncio.Task[None] | None = None
        self._down_since: float | None = None

    async def wait(self, pause_s: float, deadline: float) -> bool | None:
        """Pause for `pause_s` seconds, then wait until the engine is ready; return whether it was down.

        Returns None if it is not ready by the deadline (loop time), or has been down for `max_hold_s`.
        """
        loop = asyncio.get_running_loop()
        if loop.time() + pause_s >= deadline:
            return None
        await asyncio.sleep(pause_s)
        if await self._takes_calls():
            self._down_since = None
            return self._admission.paused
        if self._down_since is None:
            self._down_since = loop.time()
        until = min(deadline, self._down_since + self._max_hold_s)
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.create_task(self._watch(pause_s))
        await asyncio.wait({self._watch_task}, timeout=max(0.0, until - loop.time()))
        return True if self._watch_task.done() and loop.time() < deadline else None

    def close(self) -> None:
        """Stop the watch task."""
        if self._watch_task is not None:
            self._watch_task.cancel()

    async def _watch(self, pause_s: float) -> None:
        while not await self._takes_calls():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        self._down_since = None

    async def _takes_calls(self) -> bool:
        return self._admission.paused or await self._engine.ready()
