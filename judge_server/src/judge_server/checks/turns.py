"""Whose check is next at the workers: fair over projects, over their runs, and over the groups of a run.

Every check has a short try first. One that is not done by then waits among the long ones, which take turns of their own
and never have all workers: so a check that is quick waits only for quick ones, whatever others send. Knows no process.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from judge_server.judging.fair_queue import FairQueue, FairQueueItem
from trainer_client.wire import Priority


class CheckOwner(NamedTuple):
    """Whose a check is.

    Attributes:
        run: the run of a `TrainerContext`, which names the project too.
        group: the place of the group in its request.
        priority: the class that it waits in.
        share: the weight of the project beside others.
    """

    run: str = ""
    group: str = ""
    priority: Priority = "online"
    share: float = 1.0


class _CheckQueue:
    """Checks that wait: runs in a fair queue that holds each run once, and the groups of each run in one of its own."""

    def __init__(self) -> None:
        self._runs: FairQueue[str] = FairQueue()
        self._groups: dict[str, FairQueue[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def push(self, owner: CheckOwner, granted: asyncio.Future[None]) -> FairQueueItem[asyncio.Future[None]]:
        entry = FairQueueItem(owner.group, owner.priority, 1.0, granted)
        key = self._key(owner)
        if key not in self._groups:
            self._groups[key] = FairQueue()
            self._runs.push(FairQueueItem(owner.run, owner.priority, 1.0, key, owner.share))
        self._groups[key].push(entry)
        return entry

    def remove(self, owner: CheckOwner, entry: FairQueueItem[asyncio.Future[None]]) -> None:
        groups = self._groups.get(self._key(owner))
        if groups is not None:
            groups.remove(entry)

    def pop(self) -> asyncio.Future[None] | None:
        while (run := self._runs.pop()) is not None:
            groups = self._groups[run.item]
            entry = groups.pop()
            if len(groups):
                self._runs.push(run)
            else:
                del self._groups[run.item]
            if entry is not None:
                return entry.item
        return None

    @staticmethod
    def _key(owner: CheckOwner) -> str:
        return f"{owner.priority}\0{owner.run}"


class CheckScheduler:
    """Gives `workers` places to checks; long ones get all but one of them at most, where there are two."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._most_long = max(1, workers - 1)
        self._short, self._long = _CheckQueue(), _CheckQueue()
        self._at_work = self._long_at_work = 0

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    @asynccontextmanager
    async def acquire(self, owner: CheckOwner, *, long: bool) -> AsyncIterator[None]:
        """Wait for a place at a worker, and hold it in the block. Cancelling the wait leaves the line."""
        line = self._long if long else self._short
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = line.push(owner, granted)
        self._dispatch()
        try:
            await granted
            yield
        finally:
            line.remove(owner, entry)
            if granted.done() and not granted.cancelled():
                self._at_work -= 1
                self._long_at_work -= long
                self._dispatch()

    def _dispatch(self) -> None:
        while self._at_work < self._workers:
            can_run_long = self._long_at_work < self._most_long and len(self._long) > 0
            long = can_run_long and (self._long_at_work == 0 or not len(self._short))
            granted = (self._long if long else self._short).pop()
            if granted is None:
                return
            if not granted.done():
                granted.set_result(None)
                self._at_work += 1
                self._long_at_work += long
