"""Admission: the one queue in front of an engine. Who is let in, whose turn it is, and how many are at the engine.

Fair over runs by estimated prompt tokens, online before bulk (`fair_queue`); bounded (`room`); at most as many batches
at the engine as its limit allows (`concurrency`), and no further batch while the calls there fill every place of an
engine that works on a number of calls. So a response's calls are finished before another response is begun. Knows
nothing of verdicts, and nothing of who waits for them: whoever gives up cancels, and leaves the queue or the engine's
slot with that.
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
from judge_server.ports import Batch
from judge_server.queueing import FairQueue, FairQueueItem, QueueLimits
from judge_server.scheduling.concurrency import AdaptiveLimit, ConcurrencyLimit, EngineReportedLimit, FixedLimit

CHARACTERS_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How the queue is bounded and shared.

    Attributes:
        calls: how many calls may be on their way before requests are refused.
        run_calls: how many of one run; None for no bound of its own.
        run_at_engine: how many calls of one run may be at the engine while others wait or not; None for no bound. A
            run may always have one batch there.
        weights: of runs, by name; 1 for the others.
        bulk_share: what bulk work gets while online work waits too, as a share of the prompt tokens.
        batches: how many batches may be at the engine: None for what the engine says, a number, or `auto` for one
            that follows the engine's throughput and is never above what it says.
    """

    calls: int = 50_000
    run_calls: int | None = None
    run_at_engine: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    bulk_share: float = 0.1
    batches: int | Literal["auto"] | None = None


DEFAULT_QUEUE_RULES = QueueRules()


class QueueEntry:
    """A batch's way through the queue and the engine: whose it is, and when it came, began and ended (clock times).

    `resumed` is set for more calls about a response of which some were at the engine before. `places` is how many calls
    of it the engine works on, or would with places free.
    """

    __slots__ = ("arrived", "at_engine", "began", "caller", "calls", "ended", "fair_item", "granted", "places")

    def __init__(self, caller: Caller, batch: Batch, arrived: float, *, resumed: bool = False) -> None:
        self.caller = caller
        self.calls = len(batch.calls)
        self.places = 0
        self.fair_item: FairQueueItem[QueueEntry] = FairQueueItem(
            caller.run, caller.priority, estimated_tokens(batch), self, caller.share, resumed
        )
        self.granted: asyncio.Future[None] | None = None
        self.at_engine = False
        self.arrived = arrived
        self.began: float | None = None
        self.ended: float | None = None

    def seconds(self, now: float) -> tuple[float, float]:
        """Seconds queued and seconds at the engine up to now."""
        end = now if self.ended is None else self.ended
        began = end if self.began is None else self.began
        return began - self.arrived, end - began


class Admission:
    """The queue in front of an engine that takes `capacity()` batches at a time, a number that may change.

    An engine that takes none for now is given what it took last: its calls fail, and are held until it is back.

    Args:
        capacity: how many batches the engine takes at a time now.
        rules: how the queue is bounded and shared.
        calls: how many calls the engine works on at a time; None where that depends on its batches alone.
        first_alone: the engine answers the first call of a batch before it begins the others.
        clock: gives seconds.

    Attributes:
        room: how many calls are on their way.
        concurrency: how many batches may be at the engine.
        calls_at_engine: by run.
        counts_calls: the engine works on a number of calls, and is to be told of each answer by `answered`.
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
        self._queue: FairQueue[QueueEntry] = FairQueue(rules.weights, bulk_share=rules.bulk_share)
        self._run_at_engine = rules.run_at_engine
        self._batches_at_engine = 0
        self.counts_calls = calls is not None
        self._places = math.inf if calls is None else calls
        self._first_alone = first_alone
        self._places_taken = 0

    def state(self) -> tuple[int, int, int, Iterable[tuple[str, int]]]:
        """Calls waiting, calls at the engine, batches that may be at the engine, and each run's calls on their way."""
        self._refresh_capacity()
        at_engine = self.calls_at_engine.total()
        return self.limits.held - at_engine, at_engine, self.concurrency.limit, self.limits.held_by_run.items()

    @asynccontextmanager
    async def acquire(self, queue_entry: QueueEntry) -> AsyncIterator[None]:
        """Wait for a place at the engine, and hold it in the block. Cancelling the wait leaves the queue."""
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
            del (
                queue_entry.fair_item.item
            )  # or ticket and entry would hold each other until the garbage collector comes

    def withdraw(self, queue_entry: QueueEntry) -> None:
        """Take a batch that nobody wants any more out of the queue; one at the engine leaves by its `turn`."""
        self._queue.remove(queue_entry.fair_item)

    def record_answer(self, queue_entry: QueueEntry, left: int) -> None:
        """A call of a batch at the engine has its outcome, and so many of it have none yet.

        The batch keeps its last place until it leaves: its response may have more to ask.
        """
        self._take_places(queue_entry, max(1, left))
        if self._places_taken < self._places and len(self._queue):
            self._dispatch()

    def promote(self, queue_entry: QueueEntry) -> None:
        """Let a batch that waits in the class bulk wait in the class online instead."""
        if queue_entry.fair_item.priority == "bulk" and self._queue.remove(queue_entry.fair_item):
            queue_entry.fair_item.priority = "online"
            self._queue.push(queue_entry.fair_item)

    def _dispatch(self) -> None:
        """Give places to those whose turn it is, as long as there are any."""
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
        asyncio.get_running_loop().call_soon(self._dispatch)  # first, the response may come back with what to ask again


def estimated_tokens(batch: Batch) -> float:
    """Roughly the prompt tokens of a batch whose shared part is computed once: a quarter of its characters."""
    characters = len(batch.system) + len(batch.shared) + sum(len(call.question) for call in batch.calls)
    return max(1.0, characters / CHARACTERS_PER_TOKEN)


def _limit(concurrent_batches: int, rules: QueueRules, clock: Callable[[], float]) -> ConcurrencyLimit:
    if rules.batches == "auto":
        return AdaptiveLimit(concurrent_batches, clock)
    return EngineReportedLimit(concurrent_batches) if rules.batches is None else FixedLimit(rules.batches)
