"""How operations go, as metrics: what this process did of their chunks, and what the store holds of them.

Knows no store and no runner: the one says what it holds when somebody looks, the other what became of its chunks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainer_client.wire.operation_rows import OperationCounts
from trainer_client.wire.operations import OperationKind

ChunkStatus = Literal["done", "failed", "retry", "unavailable", "lost", "stopped"]
"""What became of a chunk that was begun: done; cannot be done; to be tried again; to be tried again when what it needs
is back; taken away, since its lease ran out or somebody cancelled; given back, since its process stops."""

COUNTS_TTL_S = 10.0
"""Seconds for which what the store holds is taken to stand, however often somebody looks."""

COUNTS_TIMEOUT_S = 2.0
"""Seconds that a look may wait for the store; then the page goes without."""

_SECONDS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_WHOLE_STORE_NOTE = "; of the whole store, the same from every process that serves the API"

log = logging.getLogger("adjudge")


class OperationMetrics(Collector):
    """The metrics of operations in one process.

    Call `watch` to have those of the store too, and then `read` before each `collect`.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._store: Callable[[datetime], Awaitable[OperationCounts]] | None = None
        self._counts: OperationCounts | None = None
        self._read_at: datetime | None = None
        self._reading = asyncio.Lock()
        self._registry = registry = CollectorRegistry()
        self._attempts = Counter(
            "adjudge_chunk_attempts",
            "Chunks of operations that this process began and that came to an end, by what became of them",
            ["kind", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "adjudge_chunk_seconds",
            "Seconds that this process worked on a chunk, whatever became of it",
            ["kind"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._in_progress = Gauge("adjudge_chunks_in_work", "Chunks that this process works on", registry=registry)

    def watch(self, counts: Callable[[datetime], Awaitable[OperationCounts]]) -> None:
        """Show what this store holds from now on; `counts` may raise `ConnectionError`."""
        self._store = counts

    def chunk_started(self) -> None:
        """This process works on one more chunk."""
        self._in_progress.inc()

    def chunk_ended(self, kind: OperationKind, outcome: ChunkStatus, seconds: float) -> None:
        """It no longer does, after so many seconds."""
        self._in_progress.dec()
        self._attempts.labels(kind, outcome).inc()
        self._seconds.labels(kind).observe(seconds)

    async def read(self) -> None:
        """Ask the store, unless it was asked a moment ago. One that is away, or slow, leaves its metrics out."""
        if self._store is None:
            return
        async with self._reading:
            now = self._now()
            if self._read_at is not None and (now - self._read_at).total_seconds() < COUNTS_TTL_S:
                return
            self._read_at = now
            self._counts = None
            try:
                async with asyncio.timeout(COUNTS_TIMEOUT_S):
                    self._counts = await self._store(now)
            except (ConnectionError, TimeoutError) as error:
                log.warning("operations cannot be counted now: %s", error or "the store does not answer")

    def collect(self) -> Iterator[Metric]:
        """All of them at this moment."""
        yield from self._registry.collect()
        if self._counts is None or self._read_at is None:
            return
        operations, chunks, oldest_due_at = self._counts
        kept = GaugeMetricFamily(
            "adjudge_operations",
            f"Operations by kind and state, those that are kept after their end included{_WHOLE_STORE_NOTE}",
            labels=["kind", "state"],
        )
        for (kind, state), number in operations.items():
            kept.add_metric([kind, state], number)
        yield kept
        parts = GaugeMetricFamily(
            "adjudge_operation_chunks",
            f"Chunks of operations that have not ended, by kind and state{_WHOLE_STORE_NOTE}",
            labels=["kind", "state"],
        )
        for (of_kind, chunk_state), number in chunks.items():
            parts.add_metric([of_kind, chunk_state], number)
        yield parts
        waited = 0.0 if oldest_due_at is None else (self._read_at - oldest_due_at).total_seconds()
        yield GaugeMetricFamily(
            "adjudge_operation_chunks_oldest_seconds",
            f"Seconds that a chunk has waited which could be begun; 0 where none waits{_WHOLE_STORE_NOTE}",
            value=waited,
        )
