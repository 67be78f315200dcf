"""One chunk, from its lease to its end: the same for tasks of this process and for workers of a queue.

Knows leases, attempts and pauses. Refuses to know what a kind does, and how chunks are announced.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from opentelemetry.trace import SpanKind

from judge_server.access.identity import Identity, acting_for
from judge_server.metrics.operations import ChunkEnd, OperationMetrics
from judge_server.operations.kind import ChunkFailed, ChunkUndone, Kind, ServiceAway
from judge_server.ports.operations import OperationStore
from judge_server.telemetry.about import telling
from judge_server.telemetry.carrying import link_to
from judge_server.telemetry.spans import failed, note, span
from trainer_client.wire.operation_rows import ChunkOutcome, ChunkRef, ChunkWork
from trainer_client.wire.operations import OperationKind

log = logging.getLogger("adjudge")

LEASE_S = 60.0
"""Seconds after which the chunk of a worker that died is given to another."""

LONGEST_PAUSE_S = 60.0
AWAY_PAUSE_S = 5.0
STORE_PAUSE_S = 1.0

T = TypeVar("T")

NOWHERE: Mapping[str, str] = {}
"""The headers of an announcement that names no span."""


class ChunkRunner:
    """Works on chunks, any number at a time. A lease is renewed three times in `lease_s`."""

    def __init__(
        self,
        store: OperationStore,
        kinds: Mapping[OperationKind, Kind],
        *,
        lease_s: float = LEASE_S,
        metrics: OperationMetrics | None = None,
        pause_s: float = 1.0,
        away_pause_s: float = AWAY_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._lease_s = lease_s
        self._metrics = metrics or OperationMetrics()
        self._pause_s = pause_s
        self._away_pause_s = away_pause_s
        self._clock = clock
        self._sleep = sleep

    async def run(self, ref: ChunkRef, announced: Mapping[str, str] = NOWHERE) -> None:
        """Work on a chunk, if it is to be had. Cancelling this gives it back at once.

        Its span is the first of a trace of its own, with a link to the one that `announced` names: an operation has
        too many chunks for one trace.
        """
        try:
            work = await self._store.claim(ref, secrets.token_hex(16), self._lease_s)
        except ConnectionError as error:
            log.warning("operation %s: the store cannot be reached: %s", ref.operation_id, error)
            return
        if work is None:
            return
        began = self._clock()
        self._metrics.begun()
        ended: ChunkEnd = "stopped"
        about = {"operation_id": ref.operation_id, "chunk": str(ref.chunk), "project": ref.project_id}
        of = {"kind": work.kind, "attempt": work.attempt, **about}
        with telling(**about), span("chunk", SpanKind.CONSUMER, links=link_to(announced), **of) as at:
            try:
                ended = await self._work(work)
            finally:
                self._metrics.ended(work.kind, ended, self._clock() - began)
                note(at, ended=ended)
                if ended not in ("done", "stopped"):
                    failed(at, ended)

    async def _work(self, work: ChunkWork) -> ChunkEnd:
        doing = asyncio.ensure_future(self._do(work))
        keeping = asyncio.ensure_future(self._keep(work))
        try:
            await asyncio.wait({doing, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return await self._end(work, doing)
            log.info("operation %s: chunk %d was taken away", work.ref.operation_id, work.ref.chunk)
            return "lost"
        except asyncio.CancelledError:
            await self._stop(doing)
            with suppress(ConnectionError):  # then its lease runs out
                await self._store.give_back(work, None, after_s=0.0, outcome=ChunkOutcome(), counts=False)
            raise
        finally:
            await self._stop(doing, keeping)

    async def _do(self, work: ChunkWork) -> ChunkOutcome:
        kind = self._kinds.get(work.kind)
        if kind is None:
            raise ServiceAway(f"this worker cannot run {work.kind}; the chunk waits for one of a newer version")
        actor = f"operation {work.ref.operation_id}"
        with acting_for(Identity(work.ref.project_id, actor, frozenset())):
            return await kind.run(work)

    async def _keep(self, work: ChunkWork) -> None:
        """Renew the lease until it is taken away. While the store cannot be reached, the work goes on.

        A renewal that failed is tried again soon, since one that hung has used up most of the lease.
        """
        pause_s = self._lease_s / 3
        while True:
            await self._sleep(pause_s)
            try:
                if not await self._store.renew(work, self._lease_s):
                    return
                pause_s = self._lease_s / 3
            except ConnectionError as error:
                pause_s = min(STORE_PAUSE_S, self._lease_s / 3)
                log.warning("operation %s: the lease cannot be renewed: %s", work.ref.operation_id, error)

    async def _end(self, work: ChunkWork, done: asyncio.Future[ChunkOutcome]) -> ChunkEnd:
        error = done.exception()
        if error is None:
            kept = await self._kept(lambda: self._store.complete(work, done.result()))
            return "done" if kept else "lost"
        if isinstance(error, ChunkFailed):
            await self._kept(lambda: self._store.give_up(work, str(error)))
            return "failed"
        if isinstance(error, ServiceAway):
            await self._give_back(work, str(error), error.outcome, after_s=self._away_pause_s, counts=False)
            return "away"
        if isinstance(error, ChunkUndone):
            await self._give_back(work, str(error), error.outcome, after_s=self._pause(work), counts=True)
            return "undone"
        log.error("operation %s: chunk %d failed", work.ref.operation_id, work.ref.chunk, exc_info=error)
        problem = f"{type(error).__name__}: {error}"
        await self._give_back(work, problem, ChunkOutcome(), after_s=self._pause(work), counts=True)
        return "undone"

    def _pause(self, work: ChunkWork) -> float:
        return min(LONGEST_PAUSE_S, self._pause_s * 2.0 ** (work.attempt - 1))

    async def _give_back(
        self, work: ChunkWork, problem: str | None, outcome: ChunkOutcome, *, after_s: float, counts: bool
    ) -> None:
        await self._kept(lambda: self._store.give_back(work, problem, after_s=after_s, outcome=outcome, counts=counts))

    async def _kept(self, keep: Callable[[], Awaitable[T]]) -> T:
        """Have the store keep something, once it can be reached; what is kept twice is refused by the store."""
        while True:
            try:
                return await keep()
            except ConnectionError as error:
                log.warning("an operation's chunk cannot be kept now: %s", error)
                await self._sleep(STORE_PAUSE_S)

    async def _stop(self, *tasks: "asyncio.Future[Any]") -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
