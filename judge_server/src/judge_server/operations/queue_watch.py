"""A queue that is watched: whether its broker answers, and whether this process takes what waits in it.

A worker whose connection to the broker died without a word hears of no chunk any more, and looks well otherwise. What
gives it away is that chunks wait while it has room, at every look, and that none is handed to it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from judge_server.ports import ChunkQueue
from trainer_client.wire.operation_rows import ChunkRef

RESPONDING_WINDOW_S = 30.0
"""How long a look at the queue tells that its broker answers: some looks of the feeder, each with its timeouts."""

STALLED_AFTER_S = 60.0
"""How long chunks may wait for a worker that has room before it is taken for one that hears nothing."""


class BrokerHealth:
    """A `ChunkQueue` that notes what is seen of it. `slots` is how many chunks this process works on at a time."""

    def __init__(
        self,
        queue: ChunkQueue,
        slots: int,
        *,
        stalled_after_s: float = STALLED_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._slots = slots
        self._stalled_after_s = stalled_after_s
        self._clock = clock
        self._in_progress = 0
        self._answered_at: float | None = None
        self._stalled_since: float | None = None
        self._draining = False

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Announce chunks."""
        await self._queue.put(refs)

    async def waiting(self) -> int:
        """How many announcements wait."""
        try:
            number = await self._queue.waiting()
        except ConnectionError:
            self._answered_at = self._stalled_since = None
            raise
        self._answered_at = self._clock()
        if not number or self._in_progress >= self._slots or self._draining:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = self._answered_at
        return number

    @contextmanager
    def processing(self) -> Iterator[None]:
        """This process was handed an announcement, and deals with it for as long as the block runs."""
        self._stalled_since = None
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1

    def drain(self) -> None:
        """From now on no more are taken, since this process stops."""
        self._draining = True
        self._stalled_since = None

    @property
    def responding(self) -> bool:
        """Whether the broker answered a moment ago."""
        return self._answered_at is not None and self._clock() - self._answered_at <= RESPONDING_WINDOW_S

    @property
    def stalled(self) -> bool:
        """Whether what waits is not handed to this process, although it has room."""
        return self._stalled_since is not None and self._clock() - self._stalled_since > self._stalled_after_s
