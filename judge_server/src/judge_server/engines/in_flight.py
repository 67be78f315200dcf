"""Calls of an engine that are under way at the same time: each yielded as it is done, all of them to be given up."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from typing import Any

from judge_server.ports import CallFailure, Reply

_CLOSED = CallFailure("engine", "the engine was closed")


class RunningCalls:
    """The calls under way, of any number of batches."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Reply | CallFailure]] = set()

    async def answers(
        self, calls: Mapping[int, Coroutine[Any, Any, Reply | CallFailure]]
    ) -> AsyncGenerator[tuple[int, Reply | CallFailure], None]:
        """Begin all calls, in order, and yield each one's index and outcome. Closing it gives up those not done."""
        tasks = {asyncio.create_task(call): index for index, call in calls.items()}
        self._tasks |= tasks.keys()
        waiting = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=tasks.__getitem__):
                    yield tasks[task], _CLOSED if task.cancelled() else task.result()
        finally:
            await _cancel_tasks(tasks)
            self._tasks -= tasks.keys()

    async def cancel_all(self) -> None:
        """Cancel every call under way and wait until it has ended; its outcome says that the engine was closed."""
        await _cancel_tasks(self._tasks.copy())


async def _cancel_tasks(tasks: Collection[asyncio.Task[Reply | CallFailure]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
