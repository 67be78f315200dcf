"""Long work that leaves requests room: slices on the event loop, one thread, and throttled background threads.

Slices of several requests would add up if all of them ran in one iteration of the event loop, and a short request needs
dozens of iterations. So one slice runs at a time. Threads that compute share the interpreter lock with the event loop,
which would wait for each of them in turn. So one computes at a time, and rests in between while other projects have
requests. Projects take turns at both (`Turns`), so that the long requests of one project do not delay those of another.

The threads of the ledger work for all requests. Beside two threads that compute, the event loop gets a third of the
interpreter, so everything on it takes three times as long. A throttled thread sleeps after each millisecond of work.
"""

import asyncio
import contextvars
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from judge_server.errors import NotReady, TooLarge
from judge_server.ports import current_identity

P = ParamSpec("P")
T = TypeVar("T")

SLICE_S = 0.001
"""Seconds of work on the event loop before it yields to other tasks. If it is longer, short requests take longer
beside long ones; if it is much shorter, long ones do."""

_RECENT_S = 1.0
"""A project has requests if the last one came within so many seconds."""

_PROJECTS_NOTED = 64

LONG_WORK_SHARE = 1 / 3
"""The share of the time that the thread for long work computes while other projects have requests."""

LONG_WORK_TIMEOUT_S = 30.0
"""The seconds after which the thread for long work gives up a function, and the request gets 413. Each should take
well below a second. If it is higher, other requests with long texts wait longer behind one that takes too long; if it
is lower, a busy machine refuses texts that it could read."""

LARGE_CHARACTERS = 2**16
"""Texts with more characters than this are worked on in the thread for long work."""

BACKGROUND_SHARE = 0.25
"""The share of the time that a throttled thread computes; it sleeps for the rest. If it is larger, requests are slower
while many verdicts are written; if it is smaller, these reach the database later."""

BACKGROUND_SLICE_S = 0.001
"""Processor seconds that a throttled thread works before it sleeps. If it is longer, requests wait longer at a time;
if it is much shorter, waking up costs more than the work."""


def _rest_s(worked_s: float, share: float) -> float:
    """Return how long to rest after some work, so that it takes this share of the time."""
    return worked_s * (1 / share - 1)


class TimeSlicer:
    """Yields to other tasks during long work on the event loop. `deadline` is in loop time, `clock` returns seconds.

    Work of less than a slice does not yield at all.
    """

    def __init__(
        self, deadline: float = math.inf, *, slice_s: float = SLICE_S, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.deadline = deadline
        self._slice_s = slice_s
        self._clock = clock
        self._began = clock()
        _of_loop().projects.note()

    async def yield_if_due(self) -> None:
        """Yield if the current slice has lasted long enough; raises `NotReady` if the deadline has passed."""
        if self._clock() - self._began < self._slice_s:
            return
        await next_slice()
        if self._loop.time() >= self.deadline:
            raise NotReady(
                "The request's deadline passed before it was planned, so nothing was judged; send fewer responses at "
                "once, or raise deadline_s.",
                retry_after_s=1,
            )
        self._began = self._clock()

    def resume(self) -> None:
        """Begin a new slice after waiting for something else, such as a cache, which was no work on the event loop."""
        self._began = self._clock()


async def next_slice() -> None:
    """Wait until this task may run another slice, one iteration of the event loop later at the earliest."""
    slices = _of_loop().slices
    await slices.acquire()
    try:
        await asyncio.sleep(0)
    finally:
        slices.release()


async def run_in_thread(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in the thread for long work, after the calls that are before it.

    The function should take well below a second, since all others wait for it, and time linear in its input.

    Raises:
        TooLarge: it took more than `LONG_WORK_TIMEOUT_S`.
    """
    return await _of_loop().thread.run(partial(make, *args, **kwargs))


async def run_inline_or_in_thread(large: bool, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function on the event loop, or in the thread for long work if its texts are large."""
    return await run_in_thread(make, *args, **kwargs) if large else make(*args, **kwargs)


class Turns:
    """One task at a time. Projects take turns; the tasks of a project go in order."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._taken = False

    async def acquire(self) -> None:
        """Wait until it is the current task's turn, which lasts until `release`."""
        if not self._taken:
            self._taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(current_identity().project_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """End the turn, and begin that of the next task."""
        while self._waiting:
            project = next(iter(self._waiting))
            waiting = self._waiting.pop(project)
            turn = waiting.popleft()
            if waiting:
                self._waiting[project] = waiting  # behind all other projects
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class Projects:
    """Which projects have had requests lately."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def note(self) -> None:
        """Note a request of the current project."""
        project = current_identity().project_id
        self._seen.pop(project, None)
        self._seen[project] = time.monotonic()
        if len(self._seen) > _PROJECTS_NOTED:
            del self._seen[next(iter(self._seen))]

    def has_others(self, project: str) -> bool:
        """Whether another project has had a request within the last `_RECENT_S` seconds."""
        since = time.monotonic() - _RECENT_S
        return any(seen >= since and other != project for other, seen in self._seen.items())


class LongWorkThread:
    """One function at a time, in the thread for long work.

    While other projects have requests, it rests after each function for twice as long as that has computed, so that
    the event loop has the interpreter to itself for two thirds of the time. A function that takes more than `timeout_s`
    is given up: nothing can stop it, but another thread does the work that waits behind it.
    """

    def __init__(self, projects: Projects, timeout_s: float = LONG_WORK_TIMEOUT_S) -> None:
        self._projects = projects
        self._timeout_s = timeout_s
        self._turns = Turns()
        self._executor = ThreadPoolExecutor(1, "adjudge-long-work")

    async def run(self, make: Callable[[], T]) -> T:
        """Call a function when its turn has come; a caller that is cancelled before that leaves the queue.

        Raises:
            TooLarge: the function took too long, and was given up.
        """
        await self._turns.acquire()
        return await asyncio.shield(asyncio.create_task(self._run(make)))  # a turn lasts as long as the function runs

    async def _run(self, make: Callable[[], T]) -> T:
        loop, worked_s = asyncio.get_running_loop(), 0.0

        def work() -> T:
            nonlocal worked_s
            began = time.thread_time()
            try:
                return make()
            finally:
                worked_s = time.thread_time() - began

        running = loop.run_in_executor(self._executor, contextvars.copy_context().run, work)
        try:
            done, _ = await asyncio.wait({running}, timeout=self._timeout_s)
            if done:
                return running.result()
            running.cancel()
            self._executor.shutdown(wait=False)
            self._executor = ThreadPoolExecutor(1, "adjudge-long-work")
            raise TooLarge(f"the texts take more than {self._timeout_s:g} s to read; send shorter ones")
        finally:
            if worked_s >= SLICE_S and self._projects.has_others(current_identity().project_id):
                loop.call_later(_rest_s(worked_s, LONG_WORK_SHARE), self._turns.release)
            else:
                self._turns.release()


class _OfLoop:
    """What the tasks of one event loop share."""

    def __init__(self) -> None:
        self.projects = Projects()
        self.slices = Turns()
        self.thread = LongWorkThread(self.projects)


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()


def _of_loop() -> _OfLoop:
    loop = asyncio.get_running_loop()
    if (found := _OF_LOOPS.get(loop)) is None:
        found = _OF_LOOPS[loop] = _OfLoop()
    return found


class _Throttle(threading.local):
    """The throttle of the current thread; `suspended` is None in a thread without one."""

    suspended: Callable[[], bool] | None = None
    rested_at_s: float = 0.0


_THROTTLE = _Throttle()


def throttle_thread(suspended: Callable[[], bool]) -> None:
    """Throttle the current thread until it ends, except while `suspended` returns true, such as with a long backlog."""
    _THROTTLE.suspended = suspended
    _THROTTLE.rested_at_s = time.thread_time()


def rest_if_due() -> None:
    """Sleep if this thread is throttled and has computed for a slice since it last slept; otherwise do nothing."""
    suspended = _THROTTLE.suspended
    if suspended is None:
        return
    worked_s = time.thread_time() - _THROTTLE.rested_at_s
    if worked_s < BACKGROUND_SLICE_S:
        return
    if not suspended():
        time.sleep(_rest_s(worked_s, BACKGROUND_SHARE))
    _THROTTLE.rested_at_s = time.thread_time()


def in_chunks(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the rows in sequences of at most `size`; a throttled thread rests between them."""
    for start in range(0, len(rows), size):
        rest_if_due()
        yield rows[start : start + size]
