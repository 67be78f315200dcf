"""What engines share: URL options, concurrent calls that can be cancelled, and chat templates split at marks."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl

from judge_server.ports import CallFailure, Reply


class UrlOptions:
    """Reads the `?name=value` options of an engine URL. `reject_unknown` refuses options that were not read."""

    def __init__(self, url: SplitResult) -> None:
        self._url = url.geturl()
        self._values = dict(parse_qsl(url.query))
        self._known: list[str] = []

    def number(self, name: str, default: float) -> float:
        """Read a number of at least 0."""
        self._known.append(name)
        text = self._values.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise ValueError(f"{self._url}: {name}={text} should be a number of at least 0")
        return value

    def integer(self, name: str, default: int) -> int:
        """Read a whole number of at least 1."""
        self._known.append(name)
        text = self._values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise ValueError(f"{self._url}: {name}={text} should be a whole number of at least 1")
        return int(text)

    def flag(self, name: str) -> bool:
        """Read `true` or `false`; False if the option is not given."""
        self._known.append(name)
        text = self._values.get(name, "false")
        if text not in ("true", "false"):
            raise ValueError(f"{self._url}: {name}={text} should be true or false")
        return text == "true"

    def text(self, name: str) -> str | None:
        """Read a text; None if the option is not given."""
        self._known.append(name)
        return self._values.get(name)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Read all options whose names begin with a prefix, by the rest of their names."""
        found = {name: text for name, text in self._values.items() if name.startswith(prefix)}
        self._known += [*found] or [f"{prefix}NAME"]
        return {name.removeprefix(prefix): text for name, text in found.items()}

    def reject_unknown(self) -> None:
        """Raise `ValueError` for an option that was not read."""
        unknown = sorted(set(self._values) - set(self._known))
        if unknown:
            raise ValueError(f"{self._url}: unknown option {unknown[0]!r}; it takes {', '.join(self._known)}")


_CLOSED = CallFailure("engine", "the engine was closed")


class RunningCalls:
    """The running calls of any number of batches."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Reply | CallFailure]] = set()

    async def answers(
        self, calls: Mapping[int, Coroutine[Any, Any, Reply | CallFailure]]
    ) -> AsyncGenerator[tuple[int, Reply | CallFailure], None]:
        """Start all calls in order, and yield (index, outcome) as each is done. Closing cancels those not done."""
        tasks = {asyncio.create_task(call): index for index, call in calls.items()}
        self._tasks |= tasks.keys()
        done: asyncio.Queue[asyncio.Task[Reply | CallFailure]] = asyncio.Queue()
        for task in tasks:
            task.add_done_callback(done.put_nowait)
        try:
            for _ in range(len(tasks)):
                task = await done.get()
                yield tasks[task], _CLOSED if task.cancelled() else task.result()
        finally:
            await _cancel_tasks(tasks)
            self._tasks -= tasks.keys()

    async def cancel_all(self) -> None:
        """Cancel all running calls and wait for them; their outcome says that the engine was closed."""
        await _cancel_tasks(self._tasks.copy())


async def _cancel_tasks(tasks: Collection[asyncio.Task[Reply | CallFailure]]) -> None:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)


def split_at_marks(text: str, *marks: str) -> list[str] | None:
    """Return the pieces before, between and after the marks; None unless each occurs once, in this order."""
    if any(text.count(mark) != 1 for mark in marks):
        return None
    pieces = []
    for mark in marks:
        piece, found, text = text.partition(mark)
        if not found:
            return None
        pieces.append(piece)
    return [*pieces, text]
