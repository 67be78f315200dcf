"""One engine of a pool: started again until it is up, and held to be the same judge as the others.

An engine that was away is made anew and asked again what it is: it may have come back as something else.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from judge_server.errors import EngineNotReady, EngineStartError
from judge_server.pools import CircuitBreaker
from judge_server.ports import Engine, EngineIdentity


def difference(one: EngineIdentity, other: EngineIdentity) -> str:
    """The first thing in which `one` differs from `other`, in words; empty where they are the same judge.

    How many batches they take at a time makes no difference.
    """
    theirs = dict(_fields(asdict(other)))
    for name, value in _fields(asdict(one)):
        if name != "concurrent_batches" and value != theirs[name]:
            return f"its {name} is {value!r}, not {theirs[name]!r}"
    return ""


class PooledEngine:
    """An engine, and the start that is under way.

    Attributes:
        name: what it is called; it holds no credentials.
        engine: the engine in force, another one after each start.
        up: it has started and is the judge that the pool is.
        why: why it is not up, where it is not.
        away: its last start failed in a way that may pass.
        batches: how many batches it takes at a time, once it has been up.
    """

    def __init__(self, name: str, make: Callable[[], Engine], start_breaker: CircuitBreaker) -> None:
        self.name = name
        self.engine = make()
        self.up = False
        self.why = "it has not started yet"
        self.may_recover = False
        self.batches = 0
        self._make = make
        self._used = False
        self._start_breaker = start_breaker
        self._starting: asyncio.Task[EngineIdentity | None] | None = None

    async def start(self) -> EngineIdentity | None:
        """What it is, once it has started; None where it cannot start now, or is to be left alone for a while.

        A start goes on where the wait for it is cancelled; the next call waits for the same one.
        """
        if self._starting is None:
            if not self._start_breaker.try_acquire():
                return None
            self._starting = asyncio.create_task(self._start())
        starting = self._starting
        await asyncio.wait({starting})
        self._starting = None
        identity = starting.result()
        if identity is None:
            self._start_breaker.failed()
        return identity

    def accept(self, identity: EngineIdentity) -> None:
        """It is the judge that the pool is."""
        self.up, self.why, self.batches = True, "", identity.concurrent_batches
        self._start_breaker.succeeded()

    def reject(self, why: str) -> None:
        """It has started as something else, and is tried again after a pause."""
        self.up, self.why = False, why
        self._start_breaker.failed()

    async def close(self) -> None:
        """Start no more, and release the engine."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self.engine.close()

    async def _start(self) -> EngineIdentity | None:
        if self._used:
            await self.engine.close()
            self.engine = self._make()
        self._used = True
        try:
            return await self.engine.start()
        except (EngineStartError, OSError) as error:
            self.why, self.may_recover = str(error), isinstance(error, EngineNotReady)
            return None


def _fields(parts: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{of}{name}.")
        else:
            yield f"{of}{name}", value
