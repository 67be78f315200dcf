"""Runs checks: at once where that takes no time, else in a worker process that is killed when it takes too long.

What is compared and how is not known here.
"""

import asyncio
import multiprocessing
import signal
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import assert_never

from pebble import ProcessExpired, ProcessPool

from judge_server.checks.check import Check
from judge_server.checks.deciding import decide
from judge_server.checks.worker import LOADED_FIRST, decide_within, prepare, warm
from judge_server.ports import CallFailed, Finding
from trainer_client.wire.verification import ByMath, Contains, Exact, JsonSchema, Numeric, Regex

INLINE_CHARACTERS = 2**20
"""How much text a plain comparison may go through on the event loop."""


STUCK_S = 15.0
"""How much longer than its seconds a check may go unanswered before its whole pool is given up; starting takes less."""

JOIN_S = 5.0
"""How long a pool that is given up may take to end."""


class Checker:
    """Decides checks. Processes start with the first check that needs one."""

    def __init__(self, *, workers: int = 2, seconds: float = 5.0, memory_mb: int = 1024) -> None:
        """Let `workers` processes decide, each check for `seconds` at most, each process in `memory_mb` at most."""
        self._workers = workers
        self._seconds = seconds
        self._memory_mb = memory_mb
        self._free = asyncio.Semaphore(workers)
        self._starting = asyncio.Lock()
        self._pool: ProcessPool | None = None
        self._running: set[Future[Finding | CallFailed]] = set()
        self._closed = False

    async def run(self, check: Check, deadline: float) -> Finding | CallFailed:
        """Decide a check before `deadline`, in the running loop's time. It raises nothing.

        Failures: `parse`, what it compares with cannot be read; `timeout`, its seconds or the deadline are over;
        `engine`, its worker died. Cancelling the task ends the work.
        """
        if check.subject is None or _at_once(check):
            return decide(check)
        method = check.program.method
        try:
            async with asyncio.timeout_at(deadline), self._free:
                return await self._decide(check) or await self._decide(check) or self._gone(method)
        except TimeoutError:
            return CallFailed("timeout", f"the {method} check was not done by the deadline; give the request longer")

    async def close(self) -> None:
        """End every worker; checks under way fail."""
        self._closed = True
        for future in list(self._running):
            future.cancel()
        await self._discard(self._pool)

    async def _decide(self, check: Check) -> Finding | CallFailed | None:
        """Have a worker decide; None where the whole pool broke down, which is no fault of this check."""
        if self._closed:
            return self._gone(check.program.method)
        pool = await self._started()
        try:
            future = pool.schedule(decide_within, args=(check, self._seconds, self._memory_mb), timeout=self._seconds)
        except RuntimeError:
            await self._discard(pool)
            return None
        self._running.add(future)
        answer = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({answer}, timeout=self._seconds + STUCK_S)
            if not done:  # no process took it, though one is free: the pool itself is stuck
                await self._discard(pool)
                return None
            return await answer
        except BrokenProcessPool:
            await self._discard(pool)
            return None
        except (TimeoutError, ProcessExpired) as error:
            return self._ended(check.program.method, error)
        except asyncio.CancelledError:
            if self._closed and not _cancelled():
                return self._gone(check.program.method)
            raise
        finally:
            answer.cancel()
            self._running.discard(future)

    async def _started(self) -> ProcessPool:
        """The pool, its processes running. Starting them takes seconds, so a thread does."""
        async with self._starting:
            if self._pool is None:
                context = multiprocessing.get_context("forkserver")
                context.set_forkserver_preload(list(LOADED_FIRST))
                self._pool = ProcessPool(
                    max_workers=self._workers,
                    initializer=prepare,
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
            await asyncio.to_thread(pool.join, JOIN_S)

    def _ended(self, method: str, error: Exception) -> CallFailed:
        if isinstance(error, TimeoutError) or getattr(error, "exitcode", None) == -signal.SIGALRM:
            return CallFailed("timeout", f"the {method} check took longer than its {self._seconds:g} s")
        return CallFailed(
            "engine", f"the process of the {method} check died, perhaps of its limit of {self._memory_mb} MB of memory"
        )

    def _gone(self, method: str) -> CallFailed:
        if self._closed:
            return CallFailed("engine", f"the {method} check was not done: the service is stopping")
        return CallFailed(
            "engine",
            f"the {method} check was not done: its processes ended before they could begin; see the service's log, and "
            f"whether {self._memory_mb} MB of memory are enough for one",
        )


def _at_once(check: Check) -> bool:
    """Whether a check takes no longer than reading a bounded text a few times."""
    length = len(check.subject or "")
    match check.program:
        case Exact():
            return length <= INLINE_CHARACTERS
        case Contains(all_of=all_of, any_of=any_of):
            return length * (len(all_of) + len(any_of)) <= INLINE_CHARACTERS
        case Numeric():
            return True
        case ByMath() | Regex() | JsonSchema():
            return False
        case unknown:
            assert_never(unknown)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
