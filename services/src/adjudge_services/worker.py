"""The process `adjudge worker`, and its probes.

Celery's threads take queued chunks and wait, while one event loop in another thread does the work and answers probes.
"""

import asyncio
import logging
import socket
import threading
import warnings
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any, TypeVar

import httpx2
import uvicorn

from adjudge_services.cli.output import exit_with_error
from adjudge_services.http_server import bind_socket, uvicorn_options
from adjudge_services.process import configure_logging, log_startup, raise_descriptor_limit, start_tracing
from adjudge_services.settings import Settings
from adjudge_services.store import StartError, operation_store, prepare_store
from adjudge_services.wiring import build_handlers, client_factory, writer_source
from judge_server.api.probes import create_worker_app
from judge_server.observability.metrics import OperationMetrics
from judge_server.operations.queues import TASK, BrokerHealth, CeleryQueue, celery_app
from judge_server.operations.runner import ChunkRunner
from judge_server.operations.service import Dispatcher
from judge_server.ports import current_identity
from rubric_store import RubricStore, SQLLedger
from rubric_store.operations.rows import ChunkRef

CHECK_TIMEOUT_S = 2.0
"""Seconds that a check of the store or the service may take; less than a probe's own timeout."""


class WorkerProbes:
    """Serves `/healthz`, `/readyz` and `/metrics` on the event loop that does the work, so that they reflect it."""

    def __init__(
        self, settings: Settings, queue: BrokerHealth, rubrics: RubricStore, metrics: OperationMetrics
    ) -> None:
        self._queue = queue
        self._rubrics = rubrics
        self._service = httpx2.AsyncClient(base_url=settings.url, timeout=CHECK_TIMEOUT_S)
        app = create_worker_app(metrics, self._checks, lambda: queue.stalled)
        options = uvicorn_options(settings.client_timeout_s, settings.drain_s, raise_descriptor_limit())
        config = uvicorn.Config(
            app, settings.host, log_level="warning", log_config=None, access_log=False, lifespan="off", **options
        )
        self._server = uvicorn.Server(config)
        self._serving: asyncio.Task[None] | None = None

    def start(self, listening: socket.socket) -> None:
        """Start serving on a bound socket; call it on the event loop."""
        self._serving = asyncio.create_task(self._server.serve([listening]))

    async def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._service.aclose()

    async def _checks(self) -> Mapping[str, bool]:
        store, service = await asyncio.gather(_with_timeout(self._rubrics.ready()), _with_timeout(self._reachable()))
        return {"store": store, "broker": self._queue.responding, "service": service}

    async def _reachable(self) -> bool:
        try:
            return (await self._service.get("/healthz")).is_success
        except httpx2.HTTPError:
            return False


async def _with_timeout(check: Awaitable[bool]) -> bool:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check
    except TimeoutError:
        return False


log = logging.getLogger("adjudge")

T = TypeVar("T")


class Worker:
    """Processes up to `concurrency` chunks at a time on an event loop that runs in another thread."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, concurrency: int) -> None:
        self._loop = loop
        self._concurrency = concurrency
        self._app = celery_app(settings.queue_url)
        self._store = operation_store(settings)
        self._rubrics = RubricStore(settings.store_url, actor=lambda: current_identity().actor)
        self._ledger = SQLLedger(settings.store_url)
        self._writers = writer_source(settings)
        metrics = OperationMetrics()
        handlers = build_handlers(
            client_factory(settings.url, settings, retries=2),
            self._rubrics,
            self._store,
            self._ledger,
            self._writers.writer,
        )
        self._runner = ChunkRunner(self._store, handlers, lease_s=settings.chunk_lease_s, metrics=metrics)
        self._queue = BrokerHealth(CeleryQueue(self._app), concurrency)
        self._dispatcher = Dispatcher(self._store, self._queue)
        self._probes = WorkerProbes(settings, self._queue, self._rubrics, metrics)
        self._dispatching: asyncio.Future[None] | None = None

    def start(self, listening: socket.socket | None = None) -> None:
        """Start enqueueing due and lost chunks, and answering probes on a bound socket."""

        async def begin() -> None:
            self._dispatching = asyncio.ensure_future(self._dispatcher.run())
            if listening is not None:
                self._probes.start(listening)

        self._on_loop(begin())

    def serve(self) -> int:
        """Work until stopped by a signal; return the exit status."""
        from celery.signals import worker_shutting_down  # type: ignore[import-untyped]

        def run_chunk(task: Any, project_id: str, operation_id: str, chunk: int) -> None:
            ref, headers = ChunkRef(project_id, operation_id, chunk), dict(task.request.headers or {})
            try:
                self._on_loop(self._run(ref, headers))
            except Exception:  # Celery would log the message, which may quote texts
                log.exception("operation %s: chunk %d broke its worker", operation_id, chunk)

        def drain(**_: Any) -> None:
            self._loop.call_soon_threadsafe(self._queue.drain)

        self._app.task(name=TASK, shared=False, bind=True)(run_chunk)
        worker_shutting_down.connect(drain)
        celery = self._app.Worker(
            pool="threads",
            concurrency=self._concurrency,
            loglevel="WARNING",
            quiet=True,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        celery.start()
        return int(celery.exitcode or 0)

    def close(self) -> None:
        """Stop enqueueing, and close the stores."""

        async def end() -> None:
            if self._dispatching is not None:
                self._dispatching.cancel()
                await asyncio.gather(self._dispatching, return_exceptions=True)
            await self._probes.close()
            await self._writers.close()
            await self._store.close()
            await self._rubrics.close()
            await self._ledger.close()

        self._on_loop(end())

    async def _run(self, ref: ChunkRef, headers: Mapping[str, str]) -> None:
        with self._queue.processing():
            await self._runner.run(ref, headers)
        if self._queue.idle:  # the end of a chunk can make the last one of its operation due
            self._dispatcher.wake()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def run_worker(settings: Settings, concurrency: int) -> int:
    """Process operations until stopped by a signal; return the exit status. If it cannot start, exit with a message."""
    configure_logging(settings)
    warnings.filterwarnings("ignore", module="celery.platforms")  # warns about running as root, as in a container
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="operations", daemon=True)
    try:
        listening = None if settings.worker_port is None else bind_socket(settings.host, settings.worker_port)
        asyncio.run(prepare_store(settings, writes=True))
        send_last_spans = start_tracing("adjudge-worker")
        process = Worker(settings, loop, concurrency)
        thread.start()
        process.start(listening)
    except (StartError, ValueError) as error:
        exit_with_error(str(error), error=error)
    at = "" if listening is None else f"; probes on http://{settings.host}:{listening.getsockname()[1]}"
    log_startup(settings, f"Adjudge worker started, using {settings.url}{at}")
    try:
        return process.serve()
    finally:
        process.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        send_last_spans()
