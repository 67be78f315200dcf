"""A pool of worker processes that starts while its callers come and go."""

import asyncio
import threading
from typing import Any

import pytest

from judge_server.scheduling.worker_pool import WorkerPool


class HeldUp:
    """An argument of the workers' initializer that holds the start of the first up until `go` is set."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.was_let_go: list[bool] = []

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        self.reached.set()
        self.was_let_go.append(self.go.wait(10))
        return dict, ()


def ignore(_: object) -> None:
    """Set up nothing."""


async def test_a_caller_who_leaves_while_the_processes_start_blocks_no_other() -> None:
    held_up = HeldUp()
    pool = WorkerPool(1, ignore, (held_up,))
    first = asyncio.create_task(pool.execute(abs, (-3,), 60))
    await asyncio.to_thread(held_up.reached.wait)
    first.cancel()
    second = asyncio.create_task(pool.execute(abs, (-4,), 60))
    await asyncio.sleep(0.05)
    held_up.go.set()
    assert await second == (4,)
    assert held_up.was_let_go == [True]
    with pytest.raises(asyncio.CancelledError):
        await first
    await pool.close()


async def test_a_pool_that_is_closed_while_it_starts_does_no_work_and_ends() -> None:
    held_up = HeldUp()
    pool = WorkerPool(1, ignore, (held_up,))
    waiting = asyncio.create_task(pool.execute(abs, (-3,), 3600))
    await asyncio.to_thread(held_up.reached.wait)
    closing = asyncio.create_task(pool.close())
    held_up.go.set()
    await closing
    assert await asyncio.wait_for(waiting, 30) is None  # not only when its time is up
    assert await pool.execute(abs, (-3,), 60) is None
