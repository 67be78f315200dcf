"""Operations of a process: their store, their kinds, and the queue that the settings name.

A process that serves the API submits and shows them. With `memory://` it does the work too; with `redis://` workers do,
and this process only announces what there is to do.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict

import httpx2
from fastapi import FastAPI
from pydantic import JsonValue

from adjudge_services.judges import engine_of
from adjudge_services.settings import Settings
from judge_server.metrics import OperationMetrics
from judge_server.operations.celery_queue import CeleryQueue, celery_app
from judge_server.operations.chunked import ChunkedOperations
from judge_server.operations.feeder import Feeder
from judge_server.operations.kind import Kind
from judge_server.operations.kinds import EvaluateKind, GenerateKind, ScoreKind, ValidateKind
from judge_server.operations.kinds.asking import ClientFor
from judge_server.operations.kinds.writing import WriterSource
from judge_server.operations.local_queue import LocalQueue
from judge_server.operations.passes import Passes
from judge_server.operations.runner import ChunkRunner
from judge_server.ports import ChunkQueue, OperationKind, Operations
from judge_server.telemetry.carrying import Carrying
from rubric_store import RubricStore, SQLOperations
from rubric_store.lint import lint
from trainer_client import AsyncClient
from trainer_client.sockets import transport_options
from trainer_client.wire import Criterion

_REDIS = ("redis://", "rediss://")
_NO_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100)


@asynccontextmanager
async def serving_operations(
    settings: Settings, rubrics: RubricStore, app: FastAPI, metrics: OperationMetrics
) -> AsyncIterator[Operations]:
    """The operations of a process that serves the API, for as long as the block runs.

    Raises `ValueError` where the settings name no queue.
    """
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    client_for = clients("http://adjudge.local", settings, transport=transport)
    async with AsyncExitStack() as closing:
        store = operation_store(settings)
        closing.push_async_callback(store.close)
        metrics.watch(store.counts)
        writers = writer_source(settings)
        closing.push_async_callback(writers.close)
        kinds = kinds_of(client_for, rubrics, store, writers)
        if settings.queue_url.startswith(_REDIS):
            queue: ChunkQueue = CeleryQueue(celery_app(settings.queue_url))
        else:
            runner = ChunkRunner(store, kinds, lease_s=settings.chunk_lease_s, metrics=metrics)
            queue = local = LocalQueue(runner.run)
            local.start()
            closing.push_async_callback(local.close)
        feeder = Feeder(store, queue)
        feeding = asyncio.create_task(feeder.run())
        closing.push_async_callback(_stopped, feeding)
        yield ChunkedOperations(store, kinds, feeder)


def check_queue(settings: Settings) -> None:
    """Raise `ValueError` where the settings name no queue that there is."""
    if settings.queue_url != "memory://" and not settings.queue_url.startswith(_REDIS):
        raise ValueError("ADJUDGE_QUEUE_URL names no queue; write memory:// or redis://HOST:PORT/DB")


def operation_store(settings: Settings) -> SQLOperations:
    """Where operations are kept; the caller closes it."""
    return SQLOperations(settings.store_url, keep_days=settings.operation_days)


def writer_source(settings: Settings) -> WriterSource:
    """The model that rubrics are written by, where the settings name one; the caller closes it."""
    url = settings.writer_url
    return WriterSource(None if url is None else lambda: engine_of(settings, url))


def kinds_of(
    client_for: ClientFor, rubrics: RubricStore, store: SQLOperations, writers: WriterSource
) -> Mapping[OperationKind, Kind]:
    """What can be run as an operation."""
    return {
        "score": ScoreKind(client_for, rubrics),
        "evaluate_judge": EvaluateKind(client_for, rubrics, store),
        "generate_rubrics": GenerateKind(writers, rubrics, lint_findings),
        "validate_rubrics": ValidateKind(writers, rubrics, rubrics),
    }


def lint_findings(criteria: Sequence[Criterion]) -> list[dict[str, JsonValue]]:
    """Give what lint finds in a rubric, as JSON."""
    return [asdict(finding) for finding in lint(criteria)]


def clients(
    url: str, settings: Settings, *, transport: httpx2.AsyncBaseTransport | None = None, retries: int = 0
) -> ClientFor:
    """Clients of the service at an address, which ask on behalf of the project that their work is for."""
    passes, directly = Passes(settings.fencing_secret()), transport_options(httpx2.URL(url))

    def client_for(project_id: str) -> AsyncClient:
        headers = {"Authorization": f"Bearer {passes.sign(project_id)}"}
        through = Carrying(transport or httpx2.AsyncHTTPTransport(limits=_NO_LIMITS, **directly))
        return AsyncClient(url, api_key="", headers=headers, retries=retries, retry_budget_s=10.0, transport=through)

    return client_for


async def _stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
