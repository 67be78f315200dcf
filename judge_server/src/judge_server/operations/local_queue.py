"""A queue of this process: announcements in memory, and tasks of this event loop that work on them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from trainer_client.wire.operation_rows import ChunkRef

log = logging.getLogger("adjudge")


class LocalQueue:
    """`memory://`: hands chunks to `run`, at most `at_once` at a time, between `start` and `close`."""

    def __init__(self, run: Callable[[ChunkRef], Awaitable[None]], *, concurrency: int = 2) -> None:
        self._run = run
        self._concurrency = concurrency
        self._refs: asyncio.Queue[ChunkRef] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Announce chunks."""
        for ref in refs:
            self._refs.put_nowait(ref)

    async def waiting(self) -> int:
        """How many announcements wait."""
        return self._refs.qsize()

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]

    async def close(self) -> None:
        """Stop; chunks in work are given back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            ref = await self._refs.get()
            try:
                await self._run(ref)
            except Exception:
                log.exception("operation %s: chunk %d broke its worker", ref.operation_id, ref.chunk)
