"""The operations of a process: their store, their handlers, and the queue that the settings name.

A process that serves the API submits operations and shows them. With `memory://` it does the work too; with `redis://`
it only enqueues chunks, and workers do the work.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import httpx2
from fastapi import FastAPI
from pydantic import JsonValue
from sqlalchemy.exc import SQLAlchemyError

from adjudge_services.judges import build_engine
from adjudge_services.settings import Settings
from judge_server.observability.metrics import OperationMetrics
from judge_server.observability.tracing import TracingTransport
from judge_server.operations.handlers import (
    DiscriminateHandler,
    EvaluateHandler,
    GenerateHandler,
    ScoreHandler,
    ValidateHandler,
)
from judge_server.operations.handlers.base import OperationHandler
from judge_server.operations.handlers.generate import WriterFactory, WriterProvider
from judge_server.operations.handlers.judging import ClientFactory
from judge_server.operations.local import dispatch_to, work_on
from judge_server.operations.queues import CeleryQueue, celery_app
from judge_server.operations.service import Operations
from judge_server.operations.worker_tokens import WorkerTokens
from judge_server.ports import OperationKind
from rubric_store import RubricStore, SQLOperations, migrations
from rubric_store.database import SQLITE
from rubric_store.lint import lint
from trainer_client import AsyncClient
from trainer_client.client.connection import transport_options
from trainer_client.wire import Criterion

_REDIS = ("redis://", "rediss://")
_NO_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100)


@asynccontextmanager
async def run_operations(
    settings: Settings, rubrics: RubricStore, app: FastAPI, metrics: OperationMetrics
) -> AsyncIterator[Operations]:
    """Run the operations of a process that serves the API, for the duration of the block."""
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    make_client = client_factory("http://adjudge.local", settings, transport=transport)
    async with AsyncExitStack() as closing:
        store = operation_store(settings)
        closing.push_async_callback(store.close)
        metrics.watch(store.counts)
        writers = writer_source(settings)
        closing.push_async_callback(writers.close)
        handlers = build_handlers(make_client, rubrics, store, writers.writer)
        if settings.queue_url.startswith(_REDIS):
            running = dispatch_to(CeleryQueue(celery_app(settings.queue_url)), store, handlers)
        else:
            running = work_on(store, handlers, lease_s=settings.chunk_lease_s, metrics=metrics)
        yield await closing.enter_async_context(running)


@asynccontextmanager
async def command_store(database: Path) -> AsyncIterator[SQLOperations]:
    """Open the store of a command's own operations: a SQLite file, on which no service works.

    Raises:
        ValueError: the file is not a database that this release can use.
    """
    url = f"{SQLITE}:///{database}"
    try:
        await asyncio.to_thread(migrations.upgrade, url)
    except (migrations.UnknownRevisionError, SQLAlchemyError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise ValueError(f"{database} cannot be used: {reason}; use another folder") from error
    store = SQLOperations(url)
    try:
        yield store
    finally:
        await store.close()


def check_queue(settings: Settings) -> None:
    """Raise `ValueError` if the queue URL is invalid."""
    if settings.queue_url != "memory://" and not settings.queue_url.startswith(_REDIS):
        raise ValueError("ADJUDGE_QUEUE_URL is invalid; set it to memory:// or redis://HOST:PORT/DB")


def operation_store(settings: Settings) -> SQLOperations:
    """Open the store of operations; the caller closes it."""
    return SQLOperations(settings.store_url, keep_days=settings.operation_days)


def writer_source(settings: Settings) -> WriterProvider:
    """The model that writes rubrics, if the settings name one; the caller closes it."""
    url = settings.writer_url
    return WriterProvider(None if url is None else lambda: build_engine(settings, url))


def build_handlers(
    client_factory: ClientFactory, rubrics: RubricStore, store: SQLOperations, writer: WriterFactory
) -> Mapping[OperationKind, OperationHandler]:
    """The handlers of operations, by kind."""
    return {
        "score": ScoreHandler(client_factory, rubrics),
        "evaluate_judge": EvaluateHandler(client_factory, rubrics, store),
        "discriminate_rubrics": DiscriminateHandler(client_factory, rubrics, store),
        "generate_rubrics": GenerateHandler(writer, rubrics, lint_findings),
        "validate_rubrics": ValidateHandler(writer, rubrics, rubrics),
    }


def lint_findings(criteria: Sequence[Criterion]) -> list[dict[str, JsonValue]]:
    """The lint findings about a rubric, as JSON."""
    return [asdict(finding) for finding in lint(criteria)]


def client_factory(
    url: str, settings: Settings, *, transport: httpx2.AsyncBaseTransport | None = None, retries: int = 0
) -> ClientFactory:
    """A factory of clients of the service at `url`, which authenticate as a given project with a worker token."""
    worker_tokens, transport_kwargs = WorkerTokens(settings.fencing_secret()), transport_options(httpx2.URL(url))

    def make_client(project_id: str) -> AsyncClient:
        headers = {"Authorization": f"Bearer {worker_tokens.sign(project_id)}"}
        traced_transport = TracingTransport(
            transport or httpx2.AsyncHTTPTransport(limits=_NO_LIMITS, **transport_kwargs)
        )
        return AsyncClient(
            url, api_key="", headers=headers, retries=retries, retry_budget_s=10.0, transport=traced_transport
        )

    return make_client
