"""Waiting for an engine that went away: calls that failed with it are held until it is back, and not failed at once.

An engine that is started anew takes seconds; a training step's verdicts are worth that. One watch serves all that wait.
"""

import asyncio

from judge_server.ports import Engine

MAX_HOLD_S = 30.0
"""How long after it went away calls are held for an engine; one that takes longer is away for good, or for long."""

_MAX_PAUSE_S = 1.0


class EngineRecovery:
    """Watches one engine while somebody waits for it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch_task: asyncio.Task[None] | None = None
        self._down_since: float | None = None

    async def wait(self, pause_s: float, deadline: float) -> bool | None:
        """Wait for a pause (seconds), then until the engine is ready; says whether it was away.

        None where it is not ready by the deadline (loop time), or has been away for too long to be waited for.
        """
        loop = asyncio.get_running_loop()
        if loop.time() + pause_s >= deadline:
            return None
        await asyncio.sleep(pause_s)
        if await self._engine.ready():
            self._down_since = None
            return False
        if self._down_since is None:
            self._down_since = loop.time()
        until = min(deadline, self._down_since + MAX_HOLD_S)
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.create_task(self._watch(pause_s))
        await asyncio.wait({self._watch_task}, timeout=max(0.0, until - loop.time()))
        return True if self._watch_task.done() and loop.time() < deadline else None

    def close(self) -> None:
        """Watch no more."""
        if self._watch_task is not None:
            self._watch_task.cancel()

    async def _watch(self, pause_s: float) -> None:
        while not await self._engine.ready():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        self._down_since = None
