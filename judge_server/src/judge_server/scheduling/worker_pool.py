"""Worker processes that are killed when their work takes too long or too much memory.

Programs that read what a caller or a policy wrote run here, because nothing else can end native code. The processes
start with the first work, and are replaced when they die.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

from pebble import ProcessExpired, ProcessPool

NICENESS = 10
"""How much lower than the service's own the workers' priority is, so that they never delay ordinary requests."""

STUCK_TIMEOUT_S = 15.0
"""How long after its time limit work may be unanswered before its pool is replaced; starting takes less."""

JOIN_TIMEOUT_S = 5.0
"""How long a discarded pool may take to end."""

PRELOADED_MODULES = (
    "__main__",
    "judge_server.verifiers.formulas",
    "judge_server.verifiers.schemas",
    "judge_server.verifiers.worker",
    "judge_server.api.http.bodies",
)
"""Modules that the fork server imports, so that the replacement of a killed worker is ready at once."""


class WorkerExited(Exception):
    """The worker exceeded its time, or died with `exit_code` (None if unknown), before it finished its work."""

    def __init__(self, *, timed_out: bool, exit_code: int | None = None) -> None:
        super().__init__("the worker process exited before it finished its work")
        self.timed_out = timed_out
        self.exit_code = exit_code


class WorkerPool:
    """Up to `workers` processes, each set up by `initializer(*initargs)`.

    With `tasks_per_worker`, a process is replaced after so many pieces of work.
    """

    def __init__(
        self,
        workers: int,
        initializer: Callable[..., None],
        initargs: Sequence[Any] = (),
        *,
        tasks_per_worker: int | None = None,
    ) -> None:
        self._workers = workers
        self._initializer = initializer
        self._initargs = tuple(initargs)
        self._tasks_per_worker = tasks_per_worker or 0
        self._pool: ProcessPool | None = None
        self._starting: asyncio.Future[Any]
        self._running: set[Future[Any]] = set()
        self.closed = False

    async def execute(self, function: Callable[..., Any], args: Sequence[Any], seconds: float) -> tuple[Any] | None:
        """Run a function in a worker for at most `seconds`. Cancelling the task ends the work.

        Returns:
            The function's result, in a tuple; None if the pool is closed or broke down twice, which may not be caused
            by this work.

        Raises:
            WorkerExited: the worker exceeded its time or died, perhaps of its memory limit.
            Exception: what the function raised.
        """
        return await self._execute(function, args, seconds) or await self._execute(function, args, seconds)

    async def close(self) -> None:
        """End every worker; running work returns None."""
        self.closed = True
        if self._pool is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        for future in list(self._running):  # also of a caller who waited for the start
            future.cancel()
        await self._discard(self._pool)

    async def _execute(self, function: Callable[..., Any], args: Sequence[Any], seconds: float) -> tuple[Any] | None:
        if self.closed:
            return None
        pool = await self._get_pool()
        try:
            future = pool.schedule(function, args=args, timeout=seconds)
        except RuntimeError:
            await self._discard(pool)
            return None
        self._running.add(future)
        answer = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({answer}, timeout=seconds + STUCK_TIMEOUT_S)
            if not done:  # no process took it although one is free: the pool is stuck
                await self._discard(pool)
                return None
            return (await answer,)
        except BrokenProcessPool:
            await self._discard(pool)
            return None
        except TimeoutError:
            raise WorkerExited(timed_out=True) from None
        except ProcessExpired as error:
            raise WorkerExited(timed_out=False, exit_code=error.exitcode) from None
        except asyncio.CancelledError:
            if self.closed and not _cancelled():
                return None
            raise
        finally:
            answer.cancel()
            self._running.discard(future)

    async def _get_pool(self) -> ProcessPool:
        """Return the pool with running processes. They are started in a thread, because that takes seconds.

        A caller that is cancelled meanwhile does not end the start: the next one waits for it too.
        """
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(list(PRELOADED_MODULES))
            self._pool = ProcessPool(
                max_workers=self._workers,
                max_tasks=self._tasks_per_worker,
                initializer=_set_up_worker,
                initargs=(self._initializer, self._initargs),
                context=context,
            )
            self._starting = asyncio.ensure_future(asyncio.to_thread(self._pool.schedule, warm))
        pool = self._pool
        try:
            await asyncio.shield(self._starting)
        except (RuntimeError, OSError):  # the caller notices, since a discarded pool takes no work
            await self._discard(pool)
        return pool

    async def _discard(self, pool: ProcessPool | None) -> None:
        """End a pool's processes, unless that has been started already."""
        if pool is None or pool is not self._pool:
            return
        self._pool = None
        pool.stop()  # type: ignore[no-untyped-call]
        with suppress(TimeoutError):
            await asyncio.to_thread(pool.join, JOIN_TIMEOUT_S)


def _set_up_worker(initializer: Callable[..., None], initargs: Sequence[Any]) -> None:
    """Lower the priority of this worker, and initialize it."""
    os.nice(NICENESS)
    initializer(*initargs)


def warm() -> None:
    """Do nothing. A pool runs this first, so that its processes start."""


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
