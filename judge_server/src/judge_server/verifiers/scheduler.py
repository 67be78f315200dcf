"""Assign worker processes to checks: fairly over projects, runs and groups, and never all of them to slow checks.

A check is short until it exceeds its first try, and long from then on. A run is quick once one of its checks was done
in the first try; if a check is not, the run counts as slow for a while. Of three or more workers, one is kept for
checks of quick runs and another for short checks. So a policy whose checks never end delays neither other runs nor its
own short checks for long.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from judge_server.queueing import FairQueue, FairQueueItem, project_of_run
from trainer_client.byte_cache import ByteCache
from trainer_client.wire import Priority

SLOW_RUN_S = 60.0
"""How long a run counts as slow after one of its checks exceeded its first try."""

MAX_SLOW_RUNS = 3
"""If more runs of a project are slow, all its runs count as slow, so that new names of runs gain nothing."""

_REMEMBERED_BYTES = 2**20


class CheckOwner(NamedTuple):
    """The owner of a check, for fair scheduling.

    Attributes:
        run: the run of a `judge_server.judging.results.Caller`, which includes the project.
        group: the index of the group in its request.
        priority: the queue class.
        share: the weight of the project relative to others.
    """

    run: str = ""
    group: str = ""
    priority: Priority = "online"
    share: float = 1.0


class RunHistory:
    """Which runs are quick, judged by their recent checks. Contains the runs that are not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quick: ByteCache[str, bool] = ByteCache(_REMEMBERED_BYTES)
        self._slow: OrderedDict[str, float] = OrderedDict()
        self._slow_runs: Counter[str] = Counter()

    def __contains__(self, run: object) -> bool:
        if not isinstance(run, str):
            return False
        self._forget()
        is_slow = run in self._slow or self._slow_runs[project_of_run(run)] > MAX_SLOW_RUNS
        return is_slow or not self._quick.get(run)

    def record(self, run: str, *, slow: bool) -> None:
        """Record that a check of a run was done in its first try, or exceeded it (`slow`)."""
        if not slow:
            self._quick.put(run, True)
            return
        self._forget()
        self._slow_runs[project_of_run(run)] += run not in self._slow
        self._slow[run] = self._clock() + SLOW_RUN_S
        self._slow.move_to_end(run)

    def _forget(self) -> None:
        while self._slow and next(iter(self._slow.values())) <= self._clock():
            run, _ = self._slow.popitem(last=False)
            self._slow_runs -= Counter({project_of_run(run): 1})


class _Waiting(NamedTuple):
    """A check that waits: its owner, and whether it has a reserved place, once it has one."""

    owner: CheckOwner
    granted: asyncio.Future[bool]


class _CheckQueue:
    """Waiting checks: a fair queue that holds each run once, and a fair queue of groups for each run."""

    def __init__(self) -> None:
        self._runs: FairQueue[str] = FairQueue()
        self._groups: dict[str, FairQueue[_Waiting]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def push(self, waiting: _Waiting) -> FairQueueItem[_Waiting]:
        owner = waiting.owner
        entry = FairQueueItem(owner.group, owner.priority, 1.0, waiting)
        key = self._key(owner)
        if key not in self._groups:
            self._groups[key] = FairQueue()
            self._runs.push(FairQueueItem(owner.run, owner.priority, 1.0, key, owner.share))
        self._groups[key].push(entry)
        return entry

    def remove(self, entry: FairQueueItem[_Waiting]) -> None:
        groups = self._groups.get(self._key(entry.item.owner))
        if groups is not None:
            groups.remove(entry)

    def pop(self, excluded_runs: RunHistory | tuple[()] = ()) -> _Waiting | None:
        while (run := self._runs.pop(excluded_runs)) is not None:
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
    """Assigns the places of `workers` processes to checks.

    Of three or more places, one is reserved for short checks of quick runs. Checks of any run share the others, of
    which long ones get at most all but one.

    Attributes:
        history: which runs are quick; record there whether each short check was done in its first try.
        reserved: the number of reserved places.
        shared: the number of other places.
    """

    def __init__(self, workers: int, history: RunHistory | None = None) -> None:
        self.history = history if history is not None else RunHistory()
        self.reserved = 1 if workers > 2 else 0
        self.shared = workers - self.reserved
        self._max_long = max(1, self.shared - 1)
        self._free_reserved, self._free_shared, self._free_long = self.reserved, self.shared, self._max_long
        self._short, self._long = _CheckQueue(), _CheckQueue()

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    @asynccontextmanager
    async def acquire(self, owner: CheckOwner, *, long: bool) -> AsyncIterator[bool]:
        """Wait for a place and hold it inside the block, which gets whether the place is a reserved one.

        Cancelling the wait leaves the queue.
        """
        queue = self._long if long else self._short
        waiting = _Waiting(owner, asyncio.get_running_loop().create_future())
        entry = queue.push(waiting)
        self._dispatch()
        try:
            yield await waiting.granted
        finally:
            queue.remove(entry)
            if waiting.granted.done() and not waiting.granted.cancelled():
                self._take(reserved=waiting.granted.result(), long=long, places=-1)
                self._dispatch()

    def _dispatch(self) -> None:
        """Assign free places until none is left or no waiting check may have one."""
        while True:
            long = self._free_shared > 0 and self._free_long > 0 and len(self._long) > 0
            if long and (self._free_long == self._max_long or not len(self._short)):
                waiting = self._long.pop()
            elif self._free_shared:
                waiting, long = self._short.pop(), False
            elif self._free_reserved:
                waiting, long = self._short.pop(self.history), False
            else:
                return
            if waiting is None:
                return
            if not waiting.granted.done():
                reserved = self._free_reserved > 0 and not long and waiting.owner.run not in self.history
                self._take(reserved=reserved, long=long, places=1)
                waiting.granted.set_result(reserved)

    def _take(self, *, reserved: bool, long: bool, places: int) -> None:
        self._free_reserved -= places * reserved
        self._free_shared -= places * (not reserved)
        self._free_long -= places * long
