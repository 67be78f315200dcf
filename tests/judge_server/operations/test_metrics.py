"""Metrics of operations: the chunks that a process worked on, and the contents of the store."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from judge_server.api.probes import create_worker_app, metrics_page
from judge_server.observability import metrics as operation_metrics
from judge_server.observability.metrics import OperationMetrics
from judge_server.operations.handlers.base import FatalChunkError, RetryableChunkError, ServiceUnavailableError
from judge_server.operations.runner import ChunkRunner
from rubric_store.operations.rows import ChunkOutcome, OperationCounts
from tests.fixtures.virtual_time import run_in_virtual_time
from tests.judge_server.operations.harness import PROJECT, OperationsHarness, request
from tests.judge_server.operations.test_runner_and_dispatcher import REF, Kind, Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COUNTS = OperationCounts(
    {("score", "running"): 2, ("generate_rubrics", "done"): 5},
    {("score", "queued"): 7, ("score", "done"): 1},
    NOW - timedelta(seconds=90),
)


def page(metrics: OperationMetrics) -> list[str]:
    """The lines of a metrics page without comments."""
    return [line for line in metrics_page({}, [metrics]).decode().splitlines() if not line.startswith("#")]


class SlowHandler(Kind):
    """Works for 2.5 seconds, and then raises the given error."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    async def run(self, work: Any) -> ChunkOutcome:
        await asyncio.sleep(2.5)
        if self._error is not None:
            raise self._error
        return ChunkOutcome()


class FailingChunkStore(Store):
    """A store in which a chunk can also fail."""

    async def fail(self, *_: Any) -> None:
        self._next("fail", None)


@pytest.mark.parametrize(
    ("error", "answers", "outcome"),
    [
        (None, {}, "done"),
        (None, {"complete": [False]}, "lost"),
        (FatalChunkError("no"), {}, "failed"),
        (ServiceUnavailableError("away"), {}, "unavailable"),
        (RetryableChunkError("not yet"), {}, "retry"),
        (RuntimeError("a mistake"), {}, "retry"),
    ],
)
def test_a_chunk_is_counted_once_by_its_outcome(
    error: Exception | None, answers: dict[str, list[Any]], outcome: str
) -> None:
    metrics, store = OperationMetrics(), FailingChunkStore(**answers)
    run_in_virtual_time(ChunkRunner(store, {"score": SlowHandler(error)}, metrics=metrics).run(REF))  # type: ignore[arg-type,dict-item]
    shown = page(metrics)
    assert [line for line in shown if "chunk_attempts" in line] == [
        f'adjudge_chunk_attempts_total{{kind="score",outcome="{outcome}"}} 1.0'
    ]
    assert 'adjudge_chunk_seconds_sum{kind="score"} 2.5' in shown
    assert "adjudge_chunks_in_work 0.0" in shown


async def test_a_lost_lease_and_a_stopped_process_are_counted_separately() -> None:
    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    metrics = OperationMetrics()
    lost = ChunkRunner(Store(renew=[False]), {"score": Kind()}, metrics=metrics, sleep=sleep)  # type: ignore[arg-type,dict-item]
    await lost.run(REF)
    kind = Kind()
    running = asyncio.create_task(ChunkRunner(Store(), {"score": kind}, metrics=metrics).run(REF))  # type: ignore[arg-type,dict-item]
    await kind.begun.wait()
    assert "adjudge_chunks_in_work 1.0" in page(metrics)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    attempts = [line.partition("outcome=")[2] for line in page(metrics) if "chunk_attempts" in line]
    assert attempts == ['"lost"} 1.0', '"stopped"} 1.0']


async def test_the_contents_of_the_store_are_shown_by_kind_and_state() -> None:
    async def counts(_: datetime) -> OperationCounts:
        return COUNTS

    metrics = OperationMetrics(now=lambda: NOW)
    metrics.watch(counts)
    await metrics.read()
    assert set(page(metrics)) >= {
        'adjudge_operations{kind="score",state="running"} 2.0',
        'adjudge_operations{kind="generate_rubrics",state="done"} 5.0',
        'adjudge_operation_chunks{kind="score",state="queued"} 7.0',
        'adjudge_operation_chunks{kind="score",state="done"} 1.0',
        "adjudge_operation_chunks_oldest_seconds 90.0",
    }


async def test_the_store_is_asked_once_per_cache_period_however_many_read() -> None:
    asked: list[datetime] = []
    now = NOW

    async def counts(at: datetime) -> OperationCounts:
        asked.append(at)
        await asyncio.sleep(0)
        return COUNTS

    metrics = OperationMetrics(now=lambda: now)
    metrics.watch(counts)
    await asyncio.gather(*(metrics.read() for _ in range(5)))
    now += timedelta(seconds=operation_metrics.COUNTS_TTL_S - 0.1)
    await metrics.read()
    assert asked == [NOW]
    now += timedelta(seconds=0.1)
    await metrics.read()
    assert len(asked) == 2


@pytest.mark.parametrize("away", [True, False])
async def test_an_unreachable_or_hanging_store_leaves_its_metrics_out_and_blocks_nothing(away: bool) -> None:
    now = NOW
    works = True

    async def counts(_: datetime) -> OperationCounts:
        if works:
            return COUNTS
        if away:
            raise ConnectionError("away")
        await asyncio.Event().wait()
        raise AssertionError

    metrics = OperationMetrics(now=lambda: now, counts_timeout_s=0.01)
    metrics.watch(counts)
    await metrics.read()
    works = False
    now += timedelta(seconds=60)
    await metrics.read()
    assert not [line for line in page(metrics) if line.startswith("adjudge_operation")]


async def test_a_store_counts_operations_of_all_projects(harness: OperationsHarness) -> None:
    async def counted() -> OperationCounts:
        return await harness.operations._store.counts(datetime.now(UTC))

    assert await counted() == OperationCounts({}, {}, None)
    first = await harness.submitted(3)
    await harness.begun(0, 1)
    second = (await harness.operations.submit("another", "score", request(2))).id
    operations, chunks, oldest = await counted()
    assert sum(operations.values()) == 2
    assert sum(chunks.values()) == 5
    assert chunks["score", "running"] == 2
    assert oldest is not None
    assert timedelta(0) <= datetime.now(UTC) - oldest < timedelta(seconds=30)
    await harness.operations.cancel(PROJECT, first)
    harness.kind.release(50)
    async with asyncio.timeout(30):
        _ = [one async for one in harness.operations.events("another", second)]
    assert await counted() == OperationCounts({("score", "cancelled"): 1, ("score", "done"): 1}, {}, None)


def worker_app(*, store: bool = True, stalled: bool = False) -> FastAPI:
    """The application of a worker, with or without its store, stalled or not."""

    async def checks() -> dict[str, bool]:
        return {"store": store, "broker": True}

    metrics = OperationMetrics()
    metrics.chunk_started()
    metrics.chunk_ended("score", "done", 1.0)
    return create_worker_app(metrics, checks, lambda: stalled)


def test_a_worker_is_alive_unless_stalled_and_ready_only_with_everything_it_needs() -> None:
    found = {}
    for name, app in {
        "well": worker_app(),
        "no store": worker_app(store=False),
        "stalled": worker_app(stalled=True),
    }.items():
        client = TestClient(app)
        found[name] = (client.get("/healthz").status_code, client.get("/readyz").status_code)
    assert found == {"well": (200, 200), "no store": (200, 503), "stalled": (503, 200)}
    assert TestClient(worker_app(store=False)).get("/readyz").json()["detail"] == "not ready: store"


def test_a_worker_shows_its_chunks_and_the_resources_it_uses() -> None:
    shown = TestClient(worker_app()).get("/metrics").text
    assert 'adjudge_chunk_attempts_total{kind="score",outcome="done"} 1.0' in shown
    assert "process_resident_memory_bytes" in shown
