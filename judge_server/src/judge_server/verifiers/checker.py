"""Run checks: cheap ones on the event loop, others in worker processes that are killed when they take too long.

Worker places are shared fairly over projects, their runs, and the groups of a run. Every check first gets a short try.
One that does not finish in it moves to the queue of long checks, which are scheduled separately and never occupy all
workers. So quick checks wait only for quick ones, whatever others send.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple, assert_never

from judge_server.ports import CallFailure, JudgeResult
from judge_server.queueing import FairQueue, FairQueueItem, QueueLimits
from judge_server.verifiers.check import Check
from judge_server.verifiers.worker import WALL_CLOCK_FACTOR, compile_within, decide, decide_within, init_worker
from judge_server.worker_pool import WorkerExited, WorkerPool
from trainer_client.byte_cache import ByteCache
from trainer_client.wire import Priority
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JsonSchemaVerification,
    MathVerification,
    NumericVerification,
    RegexVerification,
)


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


INLINE_CHARACTERS = 2**14
"""The most characters that a plain comparison may process on the event loop: less than a millisecond of work."""

INLINE_NUMBER_CHARACTERS = 1000
"""The most characters of a text that is read as a number on the event loop."""

FIRST_TRY_S = 0.5
"""CPU seconds of a check's first try. A check that needs more moves to the long queue."""

MAX_QUEUED_CHECKS = 50_000
"""How many checks may wait or run before requests are refused; see `QueueLimits` for the share of a run."""

COMPILE_S = 0.5
"""CPU seconds to compile all regular expressions of a request."""

MAX_PATTERN_CHARACTERS = 1_000_000
"""The most characters of all distinct regular expressions of a request."""

_REMEMBERED_BYTES = 4 * 2**20


class Checker:
    """Decides checks. Worker processes start with the first check that needs one.

    Attributes:
        limits: the limits on checks waiting or running. Callers with many checks acquire from it first.
    """

    def __init__(self, *, workers: int = 2, seconds: float = 5.0, memory_mb: int = 1024) -> None:
        """Use `workers` processes of at most `memory_mb` each, and at most `seconds` of CPU time for each check."""
        self._seconds = seconds
        self._memory_mb = memory_mb
        self._scheduler = CheckScheduler(workers)
        self._pool = WorkerPool(workers, init_worker, (memory_mb,))
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
            async with asyncio.timeout_at(deadline), self._scheduler.acquire(owner, long=False):
                outcome = await self._pool.execute(compile_within, args, WALL_CLOCK_FACTOR * self._seconds)
        except WorkerExited:
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
        if check.program.of == "final_answer":
            check = replace(check, text="", steps=())  # not read, and possibly long
        args = (check, seconds, self._memory_mb, first_try_s)
        method = check.program.method
        async with self._scheduler.acquire(owner, long=first_try_s is None):
            try:
                outcome = await self._pool.execute(decide_within, args, WALL_CLOCK_FACTOR * seconds)
            except WorkerExited as exited:
                timed_out = exited.timed_out or exited.exit_code in (-signal.SIGPROF, -signal.SIGALRM)
                return None if timed_out and first_try_s is not None else self._exit_failure(method, timed_out)
        if outcome is None:
            return self._pool_failure(method)
        (decided,) = outcome
        return decided  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End every worker; running checks fail."""
        await self._pool.close()

    def _exit_failure(self, method: str, timed_out: bool) -> CallFailure:
        if timed_out:
            return CallFailure("timeout", f"the {method} check exceeded its limit of {self._seconds:g} CPU seconds")
        detail = f"the process of the {method} check died, perhaps from its memory limit of {self._memory_mb} MB"
        return CallFailure("engine", detail)

    def _pool_failure(self, method: str) -> CallFailure:
        if self._pool.closed:
            return CallFailure("engine", f"the {method} check was not done: the service is stopping")
        return CallFailure(
            "engine",
            f"the {method} check was not done: its processes ended before they could begin; see the service's log, and "
            f"check whether {self._memory_mb} MB of memory are enough for one process",
        )


def is_inline_check(check: Check) -> bool:
    """Whether a check is cheap enough for the event loop."""
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
        case MathVerification() | RegexVerification() | JsonSchemaVerification():
            return False
        case unknown:
            assert_never(unknown)


class _CheckQueue:
    """Waiting checks: a fair queue that holds each run once, and a fair queue of groups for each run."""

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
    """Assigns `workers` places to checks. Long checks get at most all but one of them, if there are two or more."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._max_long = max(1, workers - 1)
        self._short, self._long = _CheckQueue(), _CheckQueue()
        self._running = self._long_running = 0

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    @asynccontextmanager
    async def acquire(self, owner: CheckOwner, *, long: bool) -> AsyncIterator[None]:
        """Wait for a worker and hold it inside the block. Cancelling the wait leaves the queue."""
        queue = self._long if long else self._short
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = queue.push(owner, granted)
        self._dispatch()
        try:
            await granted
            yield
        finally:
            queue.remove(owner, entry)
            if granted.done() and not granted.cancelled():
                self._running -= 1
                self._long_running -= long
                self._dispatch()

    def _dispatch(self) -> None:
        while self._running < self._workers:
            can_run_long = self._long_running < self._max_long and len(self._long) > 0
            long = can_run_long and (self._long_running == 0 or not len(self._short))
            granted = (self._long if long else self._short).pop()
            if granted is None:
                return
            if not granted.done():
                granted.set_result(None)
                self._running += 1
                self._long_running += long
