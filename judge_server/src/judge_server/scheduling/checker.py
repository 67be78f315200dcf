"""Run checks: cheap ones on the event loop, others in worker processes that are killed when they take too long.

Every check first gets a short try. One that does not finish in it moves to the queue of long checks, which never occupy
all workers. Worker processes are assigned fairly over projects, runs and groups.
"""

import asyncio
import signal
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple, assert_never

from judge_server.judging.results import project_of_run
from judge_server.ports import CallFailure, JudgeResult
from judge_server.scheduling.queueing import FairQueue, FairQueueItem, QueueLimits
from judge_server.scheduling.worker_pool import WorkerExited, WorkerPool
from judge_server.verifiers.check import Check
from judge_server.verifiers.worker import WALL_CLOCK_FACTOR, compile_within, decide, decide_within, init_worker
from rubric_store.byte_cache import ByteCache
from trainer_client.wire import Priority
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JsonSchemaVerification,
    MathVerification,
    NumericVerification,
    RegexVerification,
    ToolCallVerification,
    TurnsVerification,
)

SLOW_RUN_S = 60.0
"""How long a run counts as slow after one of its checks exceeded its first try."""

MAX_SLOW_RUNS = 3
"""If more runs of a project are slow, all its runs count as slow, so that new names of runs gain nothing."""

_REMEMBERED_COST_BYTES = 2**20


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
        self._quick: ByteCache[str, bool] = ByteCache(_REMEMBERED_COST_BYTES)
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


INLINE_CHARACTERS = 2**14
"""The most characters that a plain comparison may process on the event loop: less than a millisecond of work."""

INLINE_NUMBER_CHARACTERS = 1000
"""The most characters of a text that is read as a number on the event loop."""

FIRST_TRY_S = 0.5
"""CPU seconds of a check's first try. A check that needs more joins the queue of long checks, which never occupy all
workers."""

MAX_QUEUED_CHECKS = 50_000
"""How many checks may wait or run before requests are refused; see `QueueLimits` for the share of a run."""

COMPILE_S = 0.5
"""CPU seconds to compile all regular expressions of a request. If the patterns need more, Adjudge refuses the request
with 422."""

MAX_PATTERN_CHARACTERS = 1_000_000
"""The most characters of all distinct regular expressions of a request."""

_REMEMBERED_BYTES = 4 * 2**20


class Checker:
    """Decides checks. Worker processes start with the first check that needs one.

    Attributes:
        limits: the limits on checks waiting or running. Callers with many checks acquire from it first.
    """

    def __init__(self, *, workers: int = 3, seconds: float = 5.0, memory_mb: int = 1024) -> None:
        """Create a checker whose worker processes are not yet started.

        Args:
            workers: number of worker processes. One is kept for runs whose checks are quick, another for short checks.
            seconds: CPU seconds for each check. A pattern with exponential backtracking occupies a process for this
                long.
            memory_mb: the most memory of each process, in MiB.
        """
        self._seconds = seconds
        self._memory_mb = memory_mb
        self._scheduler = CheckScheduler(workers)
        self._shared_pool = WorkerPool(self._scheduler.shared, init_worker, (memory_mb,))
        self._reserved_pool = WorkerPool(self._scheduler.reserved, init_worker, (memory_mb,))
        self._slow_checks: ByteCache[bytes, bool] = ByteCache(_REMEMBERED_BYTES)
        self._compiled: ByteCache[bytes, bool] = ByteCache(_REMEMBERED_BYTES)
        self.limits = QueueLimits(MAX_QUEUED_CHECKS, None, time.monotonic)

    async def run(self, check: Check, deadline: float, owner: CheckOwner = CheckOwner()) -> JudgeResult | CallFailure:  # noqa: B008
        """Decide a check before `deadline` (loop time). Raises nothing.

        The time limit counts a worker's CPU time, so neither the wait for a worker nor a busy machine uses it up.
        Failures: `parse`, what it compares with cannot be read; `timeout`, its time limit or the deadline has passed;
        `engine`, its worker died.
        Cancelling the task ends the work.
        """
        if is_inline_check(check):
            return decide(check)
        method, digest = check.program.method, check.digest
        try:
            async with asyncio.timeout_at(deadline):
                if not self._slow_checks.get(digest):
                    outcome = await self._try(check, owner, FIRST_TRY_S)
                    self._scheduler.history.record(owner.run, slow=outcome is None)
                    if outcome is not None:
                        return outcome
                    self._slow_checks.put(digest, True)
                outcome = await self._try(check, owner, None)
                return outcome or self._pool_failure(method)
        except TimeoutError:
            return CallFailure(
                "timeout", f"the {method} check was not done by the deadline; raise the request's deadline_s"
            )

    async def first_unusable(
        self,
        patterns: Sequence[str],
        deadline: float,
        owner: CheckOwner = CheckOwner(),  # noqa: B008
    ) -> tuple[int, str] | None:
        """Compile regular expressions in a worker.

        Returns:
            The index of the first that cannot be used, and why; None if all can.

        Raises:
            TimeoutError: no worker was free before `deadline` (loop time).
        """
        places: dict[str, int] = {}
        for place, pattern in enumerate(patterns):
            if not self._compiled.get(sha256(pattern.encode("utf-8", "surrogatepass")).digest()):
                places.setdefault(pattern, place)
        if not places:
            return None
        if sum(map(len, places)) > MAX_PATTERN_CHARACTERS:
            return 0, f"the regular expressions have more than {MAX_PATTERN_CHARACTERS:,} characters together"
        args = tuple(places), self._seconds, COMPILE_S
        try:
            async with asyncio.timeout_at(deadline), self._scheduler.acquire(owner, long=False) as reserved:
                outcome = await self._pool(reserved=reserved).execute(
                    compile_within, args, WALL_CLOCK_FACTOR * self._seconds
                )
        except WorkerExited:
            self._scheduler.history.record(owner.run, slow=True)
            return 0, "the regular expressions take too long to compile; write simpler ones"
        if outcome is None:
            return 0, self._pool_failure("regex").detail
        (unusable,) = outcome
        if unusable is None:
            for pattern in places:
                self._compiled.put(sha256(pattern.encode("utf-8", "surrogatepass")).digest(), True)
            return None
        place, why = unusable
        return places[list(places)[place]], why

    async def _try(
        self, check: Check, owner: CheckOwner, first_try_s: float | None
    ) -> JudgeResult | CallFailure | None:
        """Have a worker decide; None if that takes longer than the first try."""
        seconds = self._seconds if first_try_s is None else min(self._seconds, 2 * first_try_s)
        if isinstance(check.program, ToolCallVerification) or check.program.of == "final_answer":
            check = replace(check, text="", steps=())  # not read, and possibly long
        args = (check, seconds, self._memory_mb, first_try_s)
        method = check.program.method
        async with self._scheduler.acquire(owner, long=first_try_s is None) as reserved:
            try:
                outcome = await self._pool(reserved=reserved).execute(decide_within, args, WALL_CLOCK_FACTOR * seconds)
            except WorkerExited as exited:
                timed_out = exited.timed_out or exited.exit_code in (-signal.SIGPROF, -signal.SIGALRM)
                return None if timed_out and first_try_s is not None else self._exit_failure(method, timed_out)
        if outcome is None:
            return self._pool_failure(method)
        (decided,) = outcome
        return decided  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End every worker; running checks fail."""
        await asyncio.gather(self._shared_pool.close(), self._reserved_pool.close())

    def _pool(self, *, reserved: bool) -> WorkerPool:
        """The pool of a place. Reserved places have their own, since the end of a worker holds up its pool."""
        return self._reserved_pool if reserved else self._shared_pool

    def _exit_failure(self, method: str, timed_out: bool) -> CallFailure:
        if timed_out:
            return CallFailure("timeout", f"the {method} check exceeded its limit of {self._seconds:g} CPU seconds")
        detail = f"the process of the {method} check died, perhaps from its memory limit of {self._memory_mb} MB"
        return CallFailure("engine", detail)

    def _pool_failure(self, method: str) -> CallFailure:
        if self._shared_pool.closed:
            return CallFailure("engine", f"the {method} check was not done: the service is stopping")
        return CallFailure(
            "engine",
            f"the {method} check was not done: its processes ended before they could begin; see the service's log, and "
            f"check whether {self._memory_mb} MB of memory are enough for one process",
        )


def is_inline_check(check: Check) -> bool:
    """Whether a check is cheap enough for the event loop."""
    if check.beside:
        return all(map(is_inline_check, (replace(check, beside=()), *check.beside)))
    if check.subject is None:
        return True
    length = len(check.subject)
    match check.program:
        case ExactVerification():
            return length + len(str(check.expected)) <= INLINE_CHARACTERS
        case ContainsVerification(all_of=all_of, any_of=any_of):
            needles = (*all_of, *any_of)
            return length * len(needles) + sum(map(len, needles)) <= INLINE_CHARACTERS
        case NumericVerification():
            return length + len(str(check.expected)) <= INLINE_NUMBER_CHARACTERS
        case TurnsVerification() | ToolCallVerification(arguments=None):
            return True
        case MathVerification() | RegexVerification() | JsonSchemaVerification() | ToolCallVerification():
            return False
        case unknown:
            assert_never(unknown)
