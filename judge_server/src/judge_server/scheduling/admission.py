"""Admission control: one fair, bounded queue in front of an engine.

The queue is fair over runs by estimated prompt tokens, and serves online work before bulk (`scheduling.queueing`).
`QueueLimits` bounds it, and a `ConcurrencyLimit` sets how many batches may be at the engine. If the engine works on a
fixed number of calls, no further batch is sent while every place is taken, so the calls of one response finish before
those of the next begin. To give up, cancel: the entry then leaves the queue or frees its place at the engine.

A `ConcurrencyLimit` is a fixed number of batches, or follows the engine's throughput. Too few batches leave the engine
idle. Too many form a second queue inside it, which is not fair and from which work cannot be withdrawn cheaply.
`AdaptiveLimit` searches for the smallest number beyond which throughput no longer grows.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from judge_server.judging.results import Caller
from judge_server.observability.tracing import span
from judge_server.ports import IMAGE_TOKENS, Batch
from judge_server.scheduling.queueing import FairQueue, FairQueueItem, QueueLimits

_GAIN_FOR_MORE, _LOSS_FOR_LESS = 1.03, 0.98
_STEP = 1.25
_BACK_OFF = 0.7
_WINDOWS_BETWEEN_TRIALS = 4
_FEWEST_IN_A_WINDOW = 16
_BATCHES_PER_SLOT = 4


class ConcurrencyLimit:
    """How many batches may be at the engine: a fixed number, or with `reported`, the one that the engine reports."""

    def __init__(self, limit: int, *, reported: bool = False) -> None:
        self.limit = limit
        self._reported = reported

    def resize(self, most: int) -> None:
        """Take note of how many batches the engine takes at a time (at least 1)."""
        if self._reported:
            self.limit = most

    def record_batch(self, tokens: float, *, full: bool) -> None:
        """Record that a batch of `tokens` tokens has ended; `full` tells whether others waited for its place."""

    def record_rejection(self) -> None:
        """Record that the engine refused a call because it is overloaded."""

    def restart(self) -> None:
        """Leave a pause out of what is measured."""


class AdaptiveLimit(ConcurrencyLimit):
    """A limit found by hill climbing on throughput (tokens per second), measured while work waits.

    At intervals the limit moves up or down by a quarter. A larger one is kept if throughput rises by 3%, a smaller one
    if it falls by at most 2%; while a direction pays, the limit keeps moving that way. If the engine refuses work, the
    limit drops to 0.7 of its value at once and recovers step by step.

    Args:
        most: the largest limit, which is also the initial one (at least 1).
        clock: returns seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        super().__init__(most)
        self._most = most
        self._clock = clock
        self._reference = 0.0
        self._tried_from: int | None = None
        self._up = True
        self._windows_left = 1
        self._refused = False
        self._start_window()

    def resize(self, most: int) -> None:
        """Scale the limit to the new capacity, and measure anew."""
        if most != self._most:
            self.limit = max(1, min(most, round(self.limit * most / self._most)))
            self._most = most
            self._end_trial()
            self._start_window()

    def record_batch(self, tokens: float, *, full: bool) -> None:
        """Count a batch, and end the window once it holds enough of them."""
        if not full:
            self._start_window()  # with spare capacity, throughput measures the demand and not the engine
            return
        self._tokens += tokens
        self._batches += 1
        if self._batches < max(_FEWEST_IN_A_WINDOW, _BATCHES_PER_SLOT * self.limit):
            return
        seconds = self._clock() - self._began
        if seconds > 0:
            self._learn(self._tokens / seconds)
        self._start_window()

    def record_rejection(self) -> None:
        """Lower the limit at once; several rejections in one window count once."""
        if not self._refused:
            self.limit = max(1, math.floor(self.limit * _BACK_OFF))
            self._end_trial()
            self._start_window()
            self._refused = True

    def restart(self) -> None:
        """Measure anew: nothing was sent during the pause."""
        self._start_window()

    def _learn(self, rate: float) -> None:
        if self._tried_from is None:
            self._reference = rate
            self._windows_left -= 1
            if self._windows_left <= 0:
                self._up = not self._up
                self._step()
        elif rate >= self._reference * (_GAIN_FOR_MORE if self._up else _LOSS_FOR_LESS):
            self._reference = rate
            self._step()
        else:
            self.limit = self._tried_from
            self._end_trial()

    def _step(self) -> None:
        """Try the next limit in the current direction; at a bound, end the trial."""
        before = self.limit
        if self._up:
            self.limit = min(self._most, max(before + 1, math.ceil(before * _STEP)))
        else:
            self.limit = max(1, min(before - 1, math.floor(before / _STEP)))
        if self.limit == before:
            self._end_trial()
        else:
            self._tried_from = before

    def _end_trial(self) -> None:
        self._tried_from = None
        self._windows_left = _WINDOWS_BETWEEN_TRIALS

    def _start_window(self) -> None:
        self._began, self._tokens, self._batches, self._refused = self._clock(), 0.0, 0, False


CHARACTERS_PER_TOKEN = 4.0

IDLE_CREDIT_S = 1.0
"""Seconds of its share that a run or project that was idle may catch up on: a light run's group goes first. If it is
longer, the first batches of a large light run hold up others."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How the queue is bounded and shared.

    Attributes:
        calls: the most calls queued or at the engine; further requests are refused.
        run_calls: the same for each run; None for no limit per run.
        run_at_engine: the most calls of one run at the engine, whether or not other runs wait; None for no limit. A
            run may always have one batch there.
        weights: the weight of each run, by name; 1 for runs not listed.
        bulk_share: the share of the prompt tokens that bulk work gets while online work waits too.
        batches: how many batches may be at the engine: None for the number the engine reports, a fixed number, or
            `auto` to follow the engine's throughput up to the number it reports.
    """

    calls: int = 50_000
    run_calls: int | None = None
    run_at_engine: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    bulk_share: float = 0.1
    batches: int | Literal["auto"] | None = None


DEFAULT_QUEUE_RULES = QueueRules()


class QueueEntry:
    """A batch in the queue or at the engine, with its caller and the clock times it arrived, began and ended.

    `resumed` marks further calls about a response whose first calls have already been at the engine. `places` is the
    number of the engine's places that the batch takes.
    """

    __slots__ = ("arrived", "at_engine", "began", "caller", "calls", "ended", "fair_item", "granted", "places")

    def __init__(self, caller: Caller, batch: Batch, arrived: float, *, resumed: bool = False) -> None:
        self.caller = caller
        self.calls = len(batch.calls)
        self.places = 0
        self.fair_item: FairQueueItem[QueueEntry] = FairQueueItem(
            caller.run, caller.priority, estimated_tokens(batch), self, caller.share, resumed, caller.batch
        )
        self.granted: asyncio.Future[None] | None = None
        self.at_engine = False
        self.arrived = arrived
        self.began: float | None = None
        self.ended: float | None = None

    def seconds(self, now: float) -> tuple[float, float]:
        """Return the seconds queued and the seconds at the engine, up to `now`."""
        end = now if self.ended is None else self.ended
        began = end if self.began is None else self.began
        return began - self.arrived, end - began


class Admission:
    """The queue in front of an engine that takes `capacity()` batches at a time.

    While it is `paused`, no batch is sent to the engine, and batches wait.

    The capacity may change. If it drops to 0, the last one stays in force: calls sent to the engine fail, and the call
    runner holds them until the engine is back.

    Args:
        capacity: returns how many batches the engine takes at a time now.
        rules: how the queue is bounded and shared.
        calls: how many calls the engine works on at a time; None if only its batches are limited.
        first_alone: whether the engine answers the first call of a batch before it begins the others.
        clock: returns seconds.

    Attributes:
        limits: the limits on calls queued or at the engine.
        concurrency: how many batches may be at the engine.
        calls_at_engine: the number of calls at the engine, by run.
        paused: whether batches wait until `resume`.
        counts_calls: whether the engine works on a fixed number of calls, so that each answer must be reported to
            `record_answer`.
    """

    def __init__(
        self,
        capacity: Callable[[], int],
        rules: QueueRules,
        *,
        calls: int | None = None,
        first_alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.limits = QueueLimits(rules.calls, rules.run_calls, clock)
        self.concurrency = _limit(capacity(), rules, clock)
        self.calls_at_engine: Counter[str] = Counter()
        self._capacity = capacity
        self._queue: FairQueue[QueueEntry] = FairQueue(
            rules.weights, bulk_share=rules.bulk_share, idle_credit_s=IDLE_CREDIT_S, clock=clock
        )
        self._run_at_engine = rules.run_at_engine
        self.paused = False
        self._on_idle: Callable[[], None] = _no_op
        self._batches_at_engine = 0
        self.counts_calls = calls is not None
        self._places = math.inf if calls is None else calls
        self._first_alone = first_alone
        self._places_taken = 0

    def state(self) -> tuple[int, int, int, Iterable[tuple[str, int]]]:
        """Return calls waiting, calls at the engine, the limit on batches at the engine, and calls held by each run."""
        self._refresh_capacity()
        at_engine = self.calls_at_engine.total()
        return self.limits.held - at_engine, at_engine, self.concurrency.limit, self.limits.held_by_run.items()

    @asynccontextmanager
    async def acquire(self, queue_entry: QueueEntry) -> AsyncIterator[None]:
        """Wait for a place at the engine and hold it inside the block. Cancelling the wait leaves the queue."""
        queue_entry.granted = asyncio.get_running_loop().create_future()
        self._queue.push(queue_entry.fair_item)
        self._dispatch()
        try:
            with span("queue", calls=queue_entry.calls, priority=queue_entry.caller.priority):
                await queue_entry.granted
            queue_entry.began = self.clock()
            yield
            self.concurrency.record_batch(queue_entry.fair_item.cost, full=len(self._queue) > 0)
        finally:
            queue_entry.ended = self.clock()
            self.withdraw(queue_entry)
            if queue_entry.at_engine:
                self._release(queue_entry)
            del queue_entry.fair_item.item  # break the reference cycle, so that no garbage collection is needed

    def withdraw(self, queue_entry: QueueEntry) -> None:
        """Take a batch out of the queue. One at the engine leaves when its `acquire` block ends."""
        self._queue.remove(queue_entry.fair_item)

    def record_answer(self, queue_entry: QueueEntry, left: int) -> None:
        """Free a place after a call of a batch at the engine has its outcome; `left` calls have none yet.

        The batch keeps its last place until it leaves, because its response may need further calls.
        """
        self._take_places(queue_entry, max(1, left))
        if self._places_taken < self._places and len(self._queue):
            self._dispatch()

    def promote(self, queue_entry: QueueEntry) -> None:
        """Move a waiting batch from the bulk class to the online class."""
        if queue_entry.fair_item.priority == "bulk" and self._queue.remove(queue_entry.fair_item):
            queue_entry.fair_item.priority = "online"
            self._queue.push(queue_entry.fair_item)

    @property
    def idle(self) -> bool:
        """Whether no batch is at the engine."""
        return self._batches_at_engine == 0

    def pause(self, on_idle: Callable[[], None]) -> None:
        """Send no batch to the engine until `resume`. Calls `on_idle` when the last batch has left it."""
        self.paused, self._on_idle = True, on_idle

    def resume(self) -> None:
        """Send batches to the engine again."""
        self.paused, self._on_idle = False, _no_op
        self.concurrency.restart()
        self._dispatch()

    def _dispatch(self) -> None:
        """Hand free places to the next entries in the queue."""
        if self.paused:
            return
        self._refresh_capacity()
        while (
            len(self._queue) and self._batches_at_engine < self.concurrency.limit and self._places_taken < self._places
        ):
            bound = self._run_at_engine
            excluded_runs = [run for run, calls in self.calls_at_engine.items() if bound is not None and calls >= bound]
            fair_item = self._queue.pop(excluded_runs)
            if fair_item is None:
                return
            queue_entry = fair_item.item
            if queue_entry.granted is not None and not queue_entry.granted.done():
                queue_entry.granted.set_result(None)
                queue_entry.at_engine = True
                self._batches_at_engine += 1
                self._take_places(queue_entry, 1 if self._first_alone else queue_entry.calls)
                self.calls_at_engine[fair_item.run] += queue_entry.calls

    def _take_places(self, queue_entry: QueueEntry, places: int) -> None:
        self._places_taken += places - queue_entry.places
        queue_entry.places = places

    def _refresh_capacity(self) -> None:
        if batches := self._capacity():
            self.concurrency.resize(batches)

    def _release(self, queue_entry: QueueEntry) -> None:
        run = queue_entry.fair_item.run
        self._batches_at_engine -= 1
        self._take_places(queue_entry, 0)
        self.calls_at_engine[run] -= queue_entry.calls
        if self.calls_at_engine[run] <= 0:
            del self.calls_at_engine[run]
        queue_entry.at_engine = False
        if self.idle:
            self._on_idle()
        asyncio.get_running_loop().call_soon(
            self._dispatch
        )  # later, so that retries of the same response can queue first


def estimated_tokens(batch: Batch) -> float:
    """Estimate the prompt tokens of a batch whose shared part is computed once: a quarter of its characters.

    An image counts as `IMAGE_TOKENS`.
    """
    characters = len(batch.system) + len(batch.shared) + sum(len(call.question) for call in batch.calls)
    return max(1.0, characters / CHARACTERS_PER_TOKEN) + IMAGE_TOKENS * len(batch.images)


def _no_op() -> None:
    """Do nothing: nobody waits for the engine to be idle."""


def _limit(concurrent_batches: int, rules: QueueRules, clock: Callable[[], float]) -> ConcurrencyLimit:
    if rules.batches == "auto":
        return AdaptiveLimit(concurrent_batches, clock)
    if rules.batches is None:
        return ConcurrencyLimit(concurrent_batches, reported=True)
    return ConcurrencyLimit(rules.batches)
