"""Run checks: cheap ones at once, others in worker processes, fairly between projects and runs.

Runs checks: at once where that takes no time, else in a worker process that is killed when it takes too long.

What is compared and how is not known here, and whose turn it is stands in `turns`.

Whose check is next at the workers: fair over projects, over their runs, and over the groups of a run.

Every check has a short try first. One that is not done by then waits among the long ones, which take turns of their own
and never have all workers: so a check that is quick waits only for quick ones, whatever others send. Knows no process.
"""

import asyncio
import multiprocessing
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, assert_never

from pebble import ProcessExpired, ProcessPool

from judge_server.ports import CallFailure, JudgeResult
from judge_server.queueing import FairQueue, FairQueueItem, QueueLimits
from judge_server.verifiers.check import Check
from judge_server.verifiers.worker import PRELOADED_MODULES, compile_within, decide, decide_within, init_worker, warm
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


INLINE_CHARACTERS = 2**14
"""How much text a plain comparison may go through on the event loop: less than a millisecond's work."""

INLINE_NUMBER_CHARACTERS = 1000
"""How long a text may be that is read as a number there."""

FIRST_TRY_S = 0.5
"""Seconds of the processor that a check has in its first try. One that needs more waits among the long ones."""

MAX_QUEUED_CHECKS = 50_000
"""How many checks may wait or run before requests are refused; see `QueueLimits` for what a run has of them."""

COMPILE_S = 0.5
"""Seconds of the processor that a request's regular expressions may take to compile, together."""

MAX_PATTERN_CHARACTERS = 1_000_000
"""What a request's different regular expressions may have together."""

STUCK_TIMEOUT_S = 15.0
"""How much longer than its seconds a check may go unanswered before its whole pool is given up; starting takes less."""

JOIN_TIMEOUT_S = 5.0
"""How long a pool that is given up may take to end."""

_REMEMBERED_BYTES = 4 * 2**20


class _WorkerTask(NamedTuple):
    """What a worker is to do: a function, what it is given, the seconds until it is killed, and what it is called."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    seconds: float
    name: str


class _WorkerExited(Exception):
    """The worker ended in the middle of its work."""

    def __init__(self, failure: CallFailure, *, timed_out: bool) -> None:
        super().__init__(failure.detail)
        self.failure = failure
        self.timed_out = timed_out


class Checker:
    """Decides checks. Processes start with the first check that needs one.

    Attributes:
        room: how many checks are waiting or running; who has many decided enters them there first.
    """

    def __init__(self, *, workers: int = 2, seconds: float = 5.0, memory_mb: int = 1024) -> None:
        """Let `workers` processes decide, each check for `seconds` at most, each process in `memory_mb` at most."""
        self._seconds = seconds
        self._memory_mb = memory_mb
        self._workers = workers
        self._scheduler = CheckScheduler(workers)
        self._starting = asyncio.Lock()
        self._pool: ProcessPool | None = None
        self._running: set[Future[Any]] = set()
        self._closed = False
        self._slow_checks: ByteCache[bytes, bool] = ByteCache(_REMEMBERED_BYTES)
        self._compiled: ByteCache[bytes, bool] = ByteCache(_REMEMBERED_BYTES)
        self.limits = QueueLimits(MAX_QUEUED_CHECKS, None, time.monotonic)

    async def run(self, check: Check, deadline: float, owner: CheckOwner = CheckOwner()) -> JudgeResult | CallFailure:  # noqa: B008
        """Decide a check before `deadline`, in the running loop's time. It raises nothing.

        Its seconds count from when a worker begins, not while it waits for one. Failures: `parse`, what it compares
        with cannot be read; `timeout`, its seconds or the deadline are over; `engine`, its worker died. Cancelling the
        task ends the work.
        """
        if is_inline_check(check):
            return decide(check)
        method, known = check.program.method, check.digest
        try:
            async with asyncio.timeout_at(deadline):
                if not self._slow_checks.get(known):
                    found = await self._try(check, owner, FIRST_TRY_S)
                    if found is not None:
                        return found
                    self._slow_checks.put(known, True)
                found = await self._try(check, owner, None)
                return found or self._pool_failure(method)
        except TimeoutError:
            return CallFailure("timeout", f"the {method} check was not done by the deadline; give the request longer")

    async def first_unusable(
        self,
        patterns: Sequence[str],
        deadline: float,
        owner: CheckOwner = CheckOwner(),  # noqa: B008
    ) -> tuple[int, str] | None:
        """Compile regular expressions in a worker.

        Returns:
            The place of the first that cannot be used, and why; None where all can.

        Raises:
            TimeoutError: no worker was free before `deadline`, in the running loop's time.
        """
        places: dict[str, int] = {}
        for place, pattern in enumerate(patterns):
            if not self._compiled.get(sha256(pattern.encode("utf-8", "surrogatepass")).digest()):
                places.setdefault(pattern, place)
        if not places:
            return None
        if sum(map(len, places)) > MAX_PATTERN_CHARACTERS:
            return 0, f"the regular expressions have more than {MAX_PATTERN_CHARACTERS:,} characters together"
        work = _WorkerTask(compile_within, (tuple(places), self._seconds, COMPILE_S), self._seconds, "regex")
        try:
            async with asyncio.timeout_at(deadline), self._scheduler.acquire(owner, long=False):
                found = await self._execute(work) or await self._execute(work)
        except _WorkerExited:
            return 0, "the regular expressions take too long to compile; write simpler ones"
        if found is None:
            return 0, self._pool_failure("regex").detail
        (unusable,) = found
        if unusable is None:
            for pattern in places:
                self._compiled.put(sha256(pattern.encode("utf-8", "surrogatepass")).digest(), True)
            return None
        place, why = unusable
        return places[list(places)[place]], why

    async def _try(
        self, check: Check, owner: CheckOwner, first_try_s: float | None
    ) -> JudgeResult | CallFailure | None:
        """Have a worker decide; None where that takes longer than a first try, or where pools broke down twice."""
        seconds = self._seconds if first_try_s is None else min(self._seconds, 2 * first_try_s)
        if check.program.of == "final_answer":
            check = replace(check, text="", steps=())  # which it does not read, and which may be long
        given = (check, self._seconds, self._memory_mb, first_try_s)
        work = _WorkerTask(decide_within, given, seconds, check.program.method)
        async with self._scheduler.acquire(owner, long=first_try_s is None):
            try:
                found = await self._execute(work) or await self._execute(work)
            except _WorkerExited as ended:
                return None if ended.timed_out and first_try_s is not None else ended.failure
        if found is None:
            return self._pool_failure(work.name)
        (decided,) = found
        return decided  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End every worker; checks under way fail."""
        self._closed = True
        for future in list(self._running):
            future.cancel()
        await self._discard(self._pool)

    async def _execute(self, work: _WorkerTask) -> tuple[Any] | None:
        """Have a worker do it; None where the whole pool broke down, which is not this work's fault.

        Raises:
            _Ended: the worker ended, of too much time or of too much memory.
        """
        if self._closed:
            return None
        pool = await self._get_pool()
        try:
            future = pool.schedule(work.function, args=work.given, timeout=work.seconds)
        except RuntimeError:
            await self._discard(pool)
            return None
        self._running.add(future)
        answer = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({answer}, timeout=work.seconds + STUCK_TIMEOUT_S)
            if not done:  # no process took it, though one is free: the pool itself is stuck
                await self._discard(pool)
                return None
            return (await answer,)
        except BrokenProcessPool:
            await self._discard(pool)
            return None
        except (TimeoutError, ProcessExpired) as error:
            raise self._exit_failure(work.name, error) from None
        except asyncio.CancelledError:
            if self._closed and not _cancelled():
                return None
            raise
        finally:
            answer.cancel()
            self._running.discard(future)

    async def _get_pool(self) -> ProcessPool:
        """The pool, its processes running. Starting them takes seconds, so a thread does."""
        async with self._starting:
            if self._pool is None:
                context = multiprocessing.get_context("forkserver")
                context.set_forkserver_preload(list(PRELOADED_MODULES))
                self._pool = ProcessPool(
                    max_workers=self._workers,
                    initializer=init_worker,
                    initargs=(self._memory_mb,),
                    context=context,
                )
                with suppress(RuntimeError):  # closed meanwhile, which the caller finds out
                    await asyncio.to_thread(self._pool.schedule, warm)
            return self._pool

    async def _discard(self, pool: ProcessPool | None) -> None:
        """End a pool's processes, unless that is being done already."""
        if pool is None or pool is not self._pool:
            return
        self._pool = None
        pool.stop()  # type: ignore[no-untyped-call]
        with suppress(TimeoutError):
            await asyncio.to_thread(pool.join, JOIN_TIMEOUT_S)

    def _exit_failure(self, method: str, error: Exception) -> _WorkerExited:
        if isinstance(error, TimeoutError) or getattr(error, "exitcode", None) == -signal.SIGALRM:
            detail = f"the {method} check took longer than its {self._seconds:g} s"
            return _WorkerExited(CallFailure("timeout", detail), timed_out=True)
        detail = f"the process of the {method} check died, perhaps of its limit of {self._memory_mb} MB of memory"
        return _WorkerExited(CallFailure("engine", detail), timed_out=False)

    def _pool_failure(self, method: str) -> CallFailure:
        if self._closed:
            return CallFailure("engine", f"the {method} check was not done: the service is stopping")
        return CallFailure(
            "engine",
            f"the {method} check was not done: its processes ended before they could begin; see the service's log, and "
            f"whether {self._memory_mb} MB of memory are enough for one",
        )


def is_inline_check(check: Check) -> bool:
    """Whether a check takes no longer than reading a short text a few times."""
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


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
