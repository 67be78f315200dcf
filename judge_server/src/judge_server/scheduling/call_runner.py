"""Run the calls of a flight: through admission, with retries when the engine fails.

How the calls of a flight are asked: through admission, again where the engine failed, alone where it was unread.

One `Asking` is one response's calls on their way. Every verdict that can be read is kept at once, so that nothing which
was judged is lost when somebody leaves.

Waiting for an engine that went away: calls that failed with it are held until it is back, and not failed at once.

An engine that is started anew takes seconds; a training step's verdicts are worth that. One watch serves all that wait.

Batches at the engine, as spans: what they took and what became of their calls; never a span for a single call.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from judge_server.judging.plan import PlannedCall, ResponsePlan
from judge_server.judging.questions import Question
from judge_server.judging.results import Caller, CallOutcome, JudgementResults, WriteBehindBuffer
from judge_server.observability.tracing import mark_span_failed, set_span_attributes, tracer
from judge_server.ports import Batch, CallFailure, Engine, JudgeResult, Reply
from judge_server.scheduling.admission import Admission, QueueEntry
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scheduling.single_flight import InFlightCalls

MAX_HOLD_S = 30.0
"""How long after it went away calls are held for an engine; one that takes longer is away for good, or for long."""

_MAX_PAUSE_S = 1.0


class EngineRecovery:
    """Watches one engine while somebody waits for it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch_task: asyncio.Task[None] | None = None
        self._down_since: float | None = None

    async def wait(self, pause_s: float, deadline: float) -> bool | None:
        """Wait for a pause (seconds), then until the engine is ready; says whether it was away.

        None where it is not ready by the deadline (loop time), or has been away for too long to be waited for.
        """
        loop = asyncio.get_running_loop()
        if loop.time() + pause_s >= deadline:
            return None
        await asyncio.sleep(pause_s)
        if await self._engine.ready():
            self._down_since = None
            return False
        if self._down_since is None:
            self._down_since = loop.time()
        until = min(deadline, self._down_since + MAX_HOLD_S)
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.create_task(self._watch(pause_s))
        await asyncio.wait({self._watch_task}, timeout=max(0.0, until - loop.time()))
        return True if self._watch_task.done() and loop.time() < deadline else None

    def close(self) -> None:
        """Watch no more."""
        if self._watch_task is not None:
            self._watch_task.cancel()

    async def _watch(self, pause_s: float) -> None:
        while not await self._engine.ready():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        self._down_since = None


BatchOutcome = tuple[int, Reply | CallFailure]


def traced_answers(engine: Engine, batch: Batch) -> AsyncIterator[BatchOutcome]:
    """What the engine answers a batch; it goes through a span where spans are made, and else straight through."""
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


log = logging.getLogger("adjudge")

ENGINE_RETRY_PAUSE_S = 0.2
_MISSING_ANSWER = CallFailure("engine", "the engine ended a batch without an answer to this call")


class CallRound(NamedTuple):
    """A batch, and what is told each call's place and outcome."""

    batch: Batch
    on_outcome: Callable[[int, Reply | CallFailure], None]


class CallRunner:
    """What every flight needs to be asked."""

    def __init__(
        self, engine: Engine, admission: Admission, write_buffer: WriteBehindBuffer, metrics: JudgeMetrics
    ) -> None:
        self.engine = engine
        self.admission = admission
        self.write_buffer = write_buffer
        self.metrics = metrics
        self.recovery = EngineRecovery(engine)

    def launch(
        self, in_flight: InFlightCalls, plan: ResponsePlan, caller: Caller, billed_to: JudgementResults
    ) -> "CallTask":
        """Begin to ask a flight's calls, which have room in the queue; what it costs goes to `account`."""
        return CallTask(self, in_flight, plan, caller, billed_to)


class CallTask:
    """The calls of one flight, being asked."""

    def __init__(
        self,
        runner: CallRunner,
        in_flight: InFlightCalls,
        plan: ResponsePlan,
        caller: Caller,
        billed_to: JudgementResults,
    ) -> None:
        self._runner = runner
        self._in_flight = in_flight
        self._plan = plan
        self._caller = caller
        self._billed_to = billed_to
        self._queue_entry: QueueEntry | None = None
        self._charged = False
        self._begun = False
        self._round: CallRound | None = None
        self._arrived: list[tuple[int, Reply | CallFailure]] = []
        self._whole: list[PlannedCall] = []
        self._held_calls = len(in_flight.unsettled)
        in_flight.on_abandoned = self._on_abandoned
        in_flight.on_unsubscribed = self._on_unsubscribed
        if caller.priority == "bulk":
            in_flight.promote = self._promote
        in_flight.task = asyncio.create_task(self._run())

    def charge_to(self, billed_to: JudgementResults) -> None:
        """Add the seconds that the batch under way has taken, if this is the account that pays for it."""
        if billed_to is self._billed_to:
            self._charge()

    def _charge(self) -> None:
        """Add the seconds that the batch under way has taken to the account, once."""
        if self._queue_entry is None or self._charged:
            return
        self._charged = True
        queued, judging = self._queue_entry.seconds(self._runner.admission.clock())
        self._billed_to.seconds_queued += queued
        self._billed_to.seconds_judging += judging
        self._runner.metrics.batch(self._caller, queued, judging)

    def _promote(self) -> None:
        """Somebody online waits for this now."""
        self._caller = self._caller._replace(priority="online")
        if self._queue_entry is not None:
            self._runner.admission.promote(self._queue_entry)

    async def _run(self) -> None:
        in_flight = self._in_flight
        try:
            unread = [*await self._run_calls(in_flight.unsettled), *await self._retry_calls()]
            if unread:
                await self._retry_individually(unread)
            in_flight.settle(in_flight.unsettled)
        except Exception as error:
            log.exception("a response's calls broke off")
            in_flight.fail(error)
        finally:
            self._release_limits()
            # Else cycles of references wait for the garbage collector.
            in_flight.on_abandoned = in_flight.on_unsubscribed = in_flight.promote = None
            self._round = None

    def _on_unsubscribed(self, billed_to: JudgementResults) -> None:
        """Somebody waits no more. If it was who paid, who still waits pays from now on."""
        if billed_to is self._billed_to:
            self._charge()
            self._billed_to = next(iter(self._in_flight.subscribers)).result

    def _on_abandoned(self) -> None:
        self._process_arrived()
        if self._queue_entry is not None:
            self._runner.admission.withdraw(self._queue_entry)
        self._charge()
        self._release_limits()

    def _release_limits(self) -> None:
        self._runner.admission.limits.release(self._caller.run, self._held_calls)
        self._held_calls = 0

    async def _run_calls(self, planned_calls: Sequence[PlannedCall]) -> list[tuple[PlannedCall, int]]:
        """Ask, and return what the judge wrote no readable verdict on: calls, and the place in each."""
        unread: list[tuple[PlannedCall, int]] = []

        def make_round() -> CallRound:
            wanted = self._in_flight.prune(planned_calls)

            def on_outcome(place: int, outcome: Reply | CallFailure) -> None:
                one = wanted[place]
                if isinstance(outcome, CallFailure):
                    for digest in one.digests:
                        self._keep(digest, outcome)
                    return
                verdicts = one.question.read(outcome)
                missing = [n for n, digest in enumerate(one.digests) if not self._keep(digest, verdicts[n])]
                if not missing:
                    self._whole.append(one)
                elif outcome.text is not None:
                    unread.extend((one, n) for n in missing if _unreadable(verdicts[n]))

            return CallRound(replace(self._plan.batch, calls=tuple([one.question.call for one in wanted])), on_outcome)

        await self._run_round(make_round)
        return unread

    async def _retry_calls(self) -> list[tuple[PlannedCall, int]]:
        """Ask once more where the engine failed, and as often as it goes away and comes back; what was unread then."""
        in_flight, unread = self._in_flight, []
        was_away: bool | None = True
        while was_away:
            gone = [
                one for one in in_flight.unsettled if any(_transient(in_flight.latest_outcomes[d]) for d in one.digests)
            ]
            if not gone:
                break
            pause = max(_retry_pause_s(in_flight.latest_outcomes[d]) for one in gone for d in one.digests)
            was_away = await self._runner.recovery.wait(pause, in_flight.deadline)
            if was_away is not None:
                unread += await self._run_calls(gone)
        return unread

    async def _retry_individually(self, unread: Sequence[tuple[PlannedCall, int]]) -> None:
        """Ask once more, each criterion by itself, for verdicts that could not be read from what was written."""
        calls_of = list(dict.fromkeys(one for one, _ in unread))

        def make_round() -> CallRound:
            wanted = self._in_flight.prune(calls_of)
            again = [(one.digests[n], _single_question(one.question, n)) for one, n in unread if one in wanted]

            def on_outcome(place: int, outcome: Reply | CallFailure) -> None:
                digest, question = again[place]
                if isinstance(outcome, Reply):
                    self._keep(digest, *question.read(outcome))

            calls = tuple([question.call for _, question in again])
            return CallRound(Batch(self._plan.system_alone, self._plan.batch.shared, calls), on_outcome)

        await self._run_round(make_round)

    async def _run_round(self, make: Callable[[], CallRound]) -> None:
        """Have a round answered, made anew when its turn has come: nothing that nobody wants reaches the engine."""
        admission, loop = self._runner.admission, asyncio.get_running_loop()
        self._round = make()
        if not self._round.batch.calls:
            return
        self._queue_entry = QueueEntry(self._caller, self._round.batch, admission.clock(), resumed=self._begun)
        self._charged = False
        try:
            async with admission.acquire(self._queue_entry):
                while loop.time() >= self._in_flight.deadline:  # noqa: ASYNC110 - what is expired is cancelled any moment
                    await asyncio.sleep(0)
                if self._in_flight.has_leavers:
                    self._round = make()
                self._begun = True
                await self._collect_answers(self._round.batch, self._queue_entry)
        finally:
            self._process_arrived()
            self._charge()
            self._queue_entry = None

    async def _collect_answers(self, batch: Batch, queue_entry: QueueEntry) -> None:
        """Take what the engine answers, and a failure for each call it leaves out: its faults cost no other call."""
        left, why = set(range(len(batch.calls))), _MISSING_ANSWER
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
            log.exception("the engine broke off a batch of %d calls", len(batch.calls))
            why = CallFailure("engine", f"the engine broke off: {type(error).__name__}; its log says more")
        self._arrived += [(place, why) for place in sorted(left)]

    def _process_arrived(self) -> None:
        """Read all that has arrived in this turn of the event loop, and settle what has all its verdicts."""
        arrived, self._arrived = self._arrived, []
        for place, outcome in arrived:
            self._count(outcome)
            if self._round is not None:
                self._round.on_outcome(place, outcome)
        whole, self._whole = self._whole, []
        if whole:
            self._in_flight.settle(whole)

    def _count(self, outcome: Reply | CallFailure) -> None:
        billed_to = self._billed_to
        billed_to.calls += 1
        if isinstance(outcome, Reply):
            billed_to.tokens_computed += outcome.tokens_computed
            billed_to.tokens_reused += outcome.tokens_reused
            billed_to.tokens_written += outcome.tokens_written
            if outcome.count_clipped_reply:
                self._runner.metrics.count_clipped_reply()
        elif outcome.kind == "overloaded":
            self._runner.admission.concurrency.record_rejection()

    def _keep(self, digest: bytes, verdict: CallOutcome) -> bool:
        """Remember a verdict, unless there is a finding, which stands; whether there is one now."""
        latest_outcomes = self._in_flight.latest_outcomes
        if isinstance(latest_outcomes.get(digest), JudgeResult):
            return True
        latest_outcomes[digest] = verdict
        if isinstance(verdict, JudgeResult):
            self._runner.write_buffer.add(digest, verdict)
            return True
        return False


def _single_question(question: Question, place: int) -> Question:
    return question.alone(place) if question.alone else question


def _transient(outcome: CallOutcome) -> bool:
    return isinstance(outcome, CallFailure) and outcome.kind in ("engine", "overloaded")


def _retry_pause_s(outcome: CallOutcome) -> float:
    """Seconds to leave the engine alone after an outcome."""
    requested_s = outcome.retry_after_s if isinstance(outcome, CallFailure) else None
    return max(ENGINE_RETRY_PAUSE_S, requested_s or 0.0)


def _unreadable(verdict: CallOutcome) -> bool:
    return isinstance(verdict, CallFailure) and verdict.kind == "parse"
