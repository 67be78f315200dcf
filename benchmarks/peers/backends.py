"""The OpenAI API server that all contenders use, and its counters: the scripted server, or llama.cpp's."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psutil

from benchmarks.peers.driving import cpu_seconds
from benchmarks.peers.scripted_server import control
from benchmarks.server import running_module
from judge_server.engines.llamacpp.process import locate_weights

SLOTS = 4
SLOT_TOKENS = 4096
AWAY_TENTHS = 600
"""Maximum downtime of the scripted server, in tenths of a second."""


@dataclass
class ServerCounters:
    """The server's counters for a pass; `answered` contains the pairs on which it gave a true verdict."""

    calls: int = 0
    computed: int = 0
    written: int = 0
    again: int = 0
    cpu_s: float = 0.0
    answered: set[str] = field(default_factory=set)


class Backend(ABC):
    """A running server; `root` is its URL without `/v1`."""

    def __init__(self, root: str, process: psutil.Process, http: httpx2.AsyncClient) -> None:
        self.root = root
        self._pids = [process.pid]
        self._http = http
        self._before = ServerCounters()

    async def begin(self, **faults: float) -> None:
        """Reset the counters and set the faults."""
        self._before = await self._totals()

    async def counts(self) -> ServerCounters:
        """Return the counters since `begin`."""
        now, before = await self._totals(), self._before
        return ServerCounters(
            now.calls - before.calls,
            now.computed - before.computed,
            now.written - before.written,
            now.again - before.again,
            now.cpu_s - before.cpu_s,
            now.answered,
        )

    @abstractmethod
    async def _totals(self) -> ServerCounters:
        """Return the server's current counters."""

    async def _get(self, path: str) -> httpx2.Response:
        return (await self._http.get(f"{self.root}{path}")).raise_for_status()


class ScriptedBackend(Backend):
    """The scripted server."""

    async def begin(self, **faults: float) -> None:
        """Reset the counters and set the faults."""
        (await self._http.post(f"{self.root}/control", content=control(**faults))).raise_for_status()
        self._before = ServerCounters(cpu_s=cpu_seconds(self._pids))

    async def _totals(self) -> ServerCounters:
        for _ in range(AWAY_TENTHS):
            try:
                totals: dict[str, Any] = (await self._get("/counts")).json()
                break
            except httpx2.TransportError:  # the simulated downtime
                await asyncio.sleep(0.1)
        else:
            raise RuntimeError("the scripted server went down and did not come back")
        cpu_s = cpu_seconds(self._pids)
        return ServerCounters(
            totals["calls"], totals["computed"], totals["written"], totals["again"], cpu_s, set(totals["answered"])
        )


class LlamaCppBackend(Backend):
    """llama.cpp's server, which does not count calls."""

    async def _totals(self) -> ServerCounters:
        page = (await self._get("/metrics")).text
        metrics = dict(line.split(" ")[:2] for line in page.splitlines() if line.startswith("llamacpp:"))
        return ServerCounters(
            computed=int(float(metrics["llamacpp:prompt_tokens_total"])),
            written=int(float(metrics["llamacpp:tokens_predicted_total"])),
            cpu_s=cpu_seconds(self._pids),
        )


@asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedBackend]:
    """Run the scripted server on a free port."""
    with running_module("benchmarks.peers.scripted_server") as (root, process):
        async with httpx2.AsyncClient(timeout=10.0) as http:
            yield ScriptedBackend(root, process, http)


@asynccontextmanager
async def llamacpp(model: str) -> AsyncIterator[LlamaCppBackend]:
    """Run a llama.cpp server with four slots on a free port."""
    given = (locate_weights(model).path, SLOTS * SLOT_TOKENS, "counts")
    with running_module("benchmarks.bare_engine.llamacpp_server", *given) as (root, process):
        async with httpx2.AsyncClient(timeout=10.0) as http:
            yield LlamaCppBackend(root, process, http)
