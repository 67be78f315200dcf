"""Long work that leaves requests room: slices on the event loop, one thread, and throttled background threads.

Slices of several requests would add up if all of them ran in one iteration of the event loop, and a short request needs
dozens of iterations. So one slice runs at a time, after an iteration without other work or, if the loop is never idle,
after a few. Threads that compute share the interpreter lock with the event loop, which would wait for each of them in
turn. So one computes at a time, and rests in between while other projects have requests. Projects take turns at both,
so that the long requests of one project do not delay those of another. The first slices of any work come before those
of work that is longer, so that a request of ordinary size does not wait behind one of thousands of responses.

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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from judge_server.auth.keys import current_identity
from judge_server.errors import NotReady, TooLarge

P = ParamSpec("P")
T = TypeVar("T")

SLICE_S = 0.001
"""Seconds of work on the event loop before it yields to other tasks."""

IDLE_ITERATION_S = 0.0001
"""An iteration of the event loop that takes less had no other work."""

MAX_BUSY_ITERATIONS = 8
"""After so many iterations with other work, a slice runs nevertheless."""

FIRST_SLICES = 8
"""So many slices of each piece of work wait only for each other, and not for iterations without other work."""


_RECENT_S = 1.0
"""A project has requests if the last one came within so many seconds."""

_PROJECTS_NOTED = 64

LONG_WORK_SHARE = 1 / 3
"""The share of the time that the thread for long work computes while other projects have requests."""

LONG_WORK_TIMEOUT_S = 30.0
"""The seconds after which the thread for long work gives up a function; each should take well below a second."""

LARGE_CHARACTERS = 2**16
"""Texts with more characters than this are worked on in the thread for long work."""

BACKGROUND_SHARE = 0.25
"""The share of the time that a throttled thread computes; it sleeps for the rest."""

BACKGROUND_SLICE_S = 0.001
"""Processor seconds that a throttled thread works before it sleeps."""


def _rest_s(worked_s: float, share: float) -> float:
    """Return how long to rest after some work, so that it takes this share of the time."""
    return worked_s * (1 / share - 1)


class TimeSlicer:
    """Yields to other tasks during long work on the event loop. `deadline` is in loop time.

    Work of less than a slice does not yield at all.
    """

    def __init__(self, deadline: float = math.inf) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._began = time.perf_counter()
        self._first_left = FIRST_SLICES
        _of_loop().projects.note()

    async def yield_if_due(self) -> None:
        """Yield if the current slice has lasted long enough; raises `NotReady` if the deadline has passed."""
        if time.perf_counter() - self._began < SLICE_S:
            return
        await _of_loop().slices.wait(first=self._first_left > 0)
        self._first_left -= 1
        if self._loop.time() >= self._deadline:
            raise NotReady(
                "The request's deadline passed before it was planned, so nothing was judged; send fewer responses at "
                "once, or raise deadline_s.",
                retry_after_s=1,
            )
        self._began = time.perf_counter()

    def resume(self) -> None:
        """Begin a new slice after waiting for something else, such as a cache, which was no work on the event loop."""
        self._began = time.perf_counter()


async def next_slice() -> None:
    """Wait until this task may run another slice, one iteration of the event loop later at the earliest."""
    await _of_loop().slices.wait()


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


class _Waiting:
    """Tasks that wait for their turn. Projects take turns; the tasks of a project go in order."""

    def __init__(self) -> None:
        self._by_project: dict[str, deque[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_project)

    def add(self) -> "asyncio.Future[None]":
        """Add the current task; the future is done when its turn has come."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._by_project.setdefault(current_identity().project_id, deque()).append(future)
        return future

    def release_next(self) -> bool:
        """Give the next task its turn; False if no task waits."""
        while self._by_project:
            project = next(iter(self._by_project))
            waiting = self._by_project.pop(project)
            future = waiting.popleft()
            if waiting:
                self._by_project[project] = waiting  # behind all other projects
            if not future.done():
                future.set_result(None)
                return True
        return False


class _Slices:
    """Runs one slice per iteration of the event loop: first slices at once, later ones after other work.

    A later slice waits for an iteration without other work, for `MAX_BUSY_ITERATIONS` at most, whatever first slices
    wait meanwhile.
    """

    def __init__(self) -> None:
        self._first = _Waiting()
        self._later = _Waiting()
        self._scheduled = False
        self._iteration_began = 0.0
        self._busy_iterations = 0

    async def wait(self, *, first: bool = False) -> None:
        future = (self._first if first else self._later).add()
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._release)
        await future

    def _release(self) -> None:
        """Release the next task, if it need not wait for other work. A slice counts as work, too."""
        now = time.perf_counter()
        is_idle = now - self._iteration_began < IDLE_ITERATION_S
        self._iteration_began = now
        self._busy_iterations += 1
        is_later_due = self._busy_iterations > MAX_BUSY_ITERATIONS
        released = not is_later_due and self._first.release_next()
        if not released and (is_idle or is_later_due):
            self._busy_iterations = 0
            if not self._later.release_next():
                self._first.release_next()
        self._scheduled = bool(self._first) or bool(self._later)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._release)


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
        self._waiting = _Waiting()
        self._busy = False
        self._executor = ThreadPoolExecutor(1, "adjudge-long-work")

    async def run(self, make: Callable[[], T]) -> T:
        """Call a function when its turn has come; a caller that is cancelled before that leaves the queue.

        Raises:
            TooLarge: the function took too long, and was given up.
        """
        if self._busy:
            turn = self._waiting.add()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._release()
                raise
        self._busy = True
        loop, project, executor = asyncio.get_running_loop(), current_identity().project_id, self._executor
        outcome: asyncio.Future[T] = loop.create_future()

        def end(finished: Future[T], worked_s: float) -> None:
            if executor is not self._executor:
                return
            overdue.cancel()
            if not outcome.done():
                if (error := finished.exception()) is not None:
                    outcome.set_exception(error)
                else:
                    outcome.set_result(finished.result())
            self._rest(project, worked_s)

        def give_up() -> None:
            self._executor = ThreadPoolExecutor(1, "adjudge-long-work")
            executor.shutdown(wait=False)
            if not outcome.done():
                outcome.set_exception(
                    TooLarge(f"the texts take more than {self._timeout_s:g} s to read; send shorter ones")
                )
            self._release()

        def work() -> None:
            finished: Future[T] = Future()
            began = time.thread_time()
            try:
                finished.set_result(make())
            except BaseException as error:  # noqa: BLE001 - it is raised where the function was called
                finished.set_exception(error)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, finished, time.thread_time() - began)

        overdue = loop.call_later(self._timeout_s, give_up)
        executor.submit(contextvars.copy_context().run, work)
        return await outcome

    def _rest(self, project: str, worked_s: float) -> None:
        if worked_s >= SLICE_S and self._projects.has_others(project):
            asyncio.get_running_loop().call_later(_rest_s(worked_s, LONG_WORK_SHARE), self._release)
        else:
            self._release()

    def _release(self) -> None:
        self._busy = self._waiting.release_next()


class _OfLoop:
    """What the tasks of one event loop share."""

    def __init__(self) -> None:
        self.projects = Projects()
        self.slices = _Slices()
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
