"""Announces chunks that are to be done: those of new operations, and those whose worker or announcement was lost.

Any number of processes may do this at once, for the store gives each chunk to one of them. Nothing is ever forgotten:
what a broker lost with its memory is announced again as soon as its queue is seen to be empty, and what was lost out of
a queue that never is, after some minutes.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic

from judge_server.ports.operations import ChunkQueue, OperationStore

log = logging.getLogger("adjudge")

MAX_QUEUED_CHUNKS = 256
"""Announcements that may wait: enough for any number of workers, and few enough to repeat all of them. More come
once half of them are taken, since the store has to look at all that waits to see whose turn it is."""

DISPATCH_INTERVAL_S = 2.0
REENQUEUE_AFTER_S = 5.0
"""How long a chunk may be announced and taken by nobody, while the queue is empty, before it is announced again."""

LOST_AFTER_S = 300.0
"""The same while the queue is not empty. What only waited for its turn is then announced twice, and refused once: at
most `MAX_QUEUED_CHUNKS` times in so long."""

PURGE_INTERVAL_S = 3600.0


def _now() -> datetime:
    return datetime.now(UTC)


class Dispatcher:
    """Keeps a queue fed from a store."""

    def __init__(
        self,
        store: OperationStore,
        queue: ChunkQueue,
        *,
        reenqueue_after_s: float = REENQUEUE_AFTER_S,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._store = store
        self._queue = queue
        self._reenqueue_after_s = reenqueue_after_s
        self._now = now
        self._wakeup = asyncio.Event()
        self._purged_at: float | None = None

    def wake(self) -> None:
        """There is something to announce: have what runs look at once. Nobody waits for the queue by this."""
        self._wakeup.set()

    async def dispatch(self) -> int:
        """Announce what there is room for; how many chunks. What cannot be reached now is left for the next time."""
        try:
            waiting = await self._queue.waiting()
            if waiting > MAX_QUEUED_CHUNKS // 2:
                return 0
            lost_after_s = LOST_AFTER_S if waiting else self._reenqueue_after_s
            refs = await self._store.take_due(MAX_QUEUED_CHUNKS - waiting, lost_after_s=lost_after_s)
            await self._queue.put(refs)
        except ConnectionError as error:
            log.warning("operations wait, for their queue or store cannot be reached: %s", error)
            return 0
        return len(refs)

    async def run(self, interval_s: float = DISPATCH_INTERVAL_S) -> None:
        """Feed when woken and every so often, until cancelled; now and then have the store forget what has expired.

        Nothing else ends it.
        """
        while True:
            self._wakeup.clear()
            try:
                await self.dispatch()
                await self._purge()
            except Exception:
                log.exception("operations could not be announced; looking again")
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wakeup.wait()

    async def _purge(self) -> None:
        elapsed = monotonic()
        if self._purged_at is not None and elapsed - self._purged_at < PURGE_INTERVAL_S:
            return
        self._purged_at = elapsed
        try:
            if purged := await self._store.purge(self._now()):
                log.info("%d operations have expired and are deleted", purged)
        except ConnectionError as error:
            log.warning("expired operations cannot be deleted now: %s", error)
