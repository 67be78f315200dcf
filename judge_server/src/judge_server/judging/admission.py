"""Admission: the one queue in front of an engine. First come, first served; bounded; nothing expired gets through.

A request reserves room for all its calls before any is judged, so that it is refused as a whole or not at all.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from judge_server.errors import Overloaded
from judge_server.ports import Batch, CallFailed, Engine, Reply

log = logging.getLogger("adjudge")


@dataclass(slots=True)
class Judged:
    """A batch's outcomes, aligned with its calls, and the wall seconds it waited and took."""

    outcomes: list[Reply | CallFailed]
    seconds_queued: float = 0.0
    seconds_judging: float = 0.0


class Admission:
    """Lets `concurrent_batches` batches reach the engine at a time and keeps at most `capacity` calls waiting."""

    def __init__(self, engine: Engine, *, concurrent_batches: int, capacity: int) -> None:
        self._engine = engine
        self._slots = asyncio.Semaphore(concurrent_batches)
        self._capacity = capacity
        self._reserved = 0

    @contextmanager
    def reserve(self, calls: int) -> Iterator[None]:
        """Hold room for a request's calls while it is judged; an idle queue takes a request of any size.

        A request without calls, all of whose verdicts are known, needs no room.

        Raises:
            Overloaded: others hold so much that these calls do not fit.
        """
        if calls and self._reserved and self._reserved + calls > self._capacity:
            raise Overloaded(
                f"{self._reserved} judge calls are waiting and {calls} more exceed the queue's {self._capacity}; "
                "try again later, or send fewer responses at once",
                retry_after_s=5,
            )
        self._reserved += calls
        try:
            yield
        finally:
            self._reserved -= calls

    async def judge(self, batch: Batch, deadline: float) -> Judged:
        """Wait for a slot and answer the batch; what is not answered by `deadline` (loop time) is a `timeout`."""
        late = CallFailed("timeout", "the request's deadline passed before the judge came to this criterion")
        judged = Judged([late] * len(batch.calls))
        arrived = time.monotonic()
        started = None
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                if asyncio.get_running_loop().time() >= deadline:
                    raise TimeoutError  # `timeout_at` acts only where something waits, and a free slot does not
                started = time.monotonic()
                async for index, outcome in self._engine.answer(batch):
                    judged.outcomes[index] = outcome
        except TimeoutError:
            pass  # the outcomes not yet replaced say so
        except Exception as error:  # an engine's fault costs its own calls, never the request
            log.exception("the engine broke off a batch of %d calls", len(batch.calls))
            broken = CallFailed("engine", f"the engine broke off: {type(error).__name__}; its log says more")
            judged.outcomes = [broken if outcome is late else outcome for outcome in judged.outcomes]
        ended = time.monotonic()
        judged.seconds_queued = (started or ended) - arrived
        judged.seconds_judging = ended - (started or ended)
        return judged
