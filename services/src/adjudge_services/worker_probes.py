"""What a worker says of itself over HTTP: whether it works, whether all that it needs is there, and what it did."""

import asyncio
import socket
from collections.abc import Awaitable, Mapping

import httpx2
import uvicorn

from adjudge_services.guarded_http import guarded
from adjudge_services.process import raise_descriptor_limit
from adjudge_services.settings import Settings
from judge_server.metrics import OperationMetrics
from judge_server.operations.queue_watch import QueueWatch
from judge_server.web.worker import create_worker_app
from rubric_store import RubricStore

LOOK_S = 2.0
"""Seconds that one look at the store or the service may take: less than a probe waits."""


class WorkerProbes:
    """Serves `/healthz`, `/readyz` and `/metrics` on the event loop that does the work, so that they tell of it."""

    def __init__(self, settings: Settings, queue: QueueWatch, rubrics: RubricStore, metrics: OperationMetrics) -> None:
        self._queue = queue
        self._rubrics = rubrics
        self._service = httpx2.AsyncClient(base_url=settings.url, timeout=LOOK_S)
        app = create_worker_app(metrics, self._checks, lambda: queue.deaf)
        options = guarded(settings.client_patience_s, settings.drain_s, raise_descriptor_limit())
        config = uvicorn.Config(
            app, settings.host, log_level="warning", log_config=None, access_log=False, lifespan="off", **options
        )
        self._server = uvicorn.Server(config)
        self._serving: asyncio.Task[None] | None = None

    def start(self, listening: socket.socket) -> None:
        """Begin to answer at an address that was taken; call it on the event loop."""
        self._serving = asyncio.create_task(self._server.serve([listening]))

    async def close(self) -> None:
        """Answer no more."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._service.aclose()

    async def _checks(self) -> Mapping[str, bool]:
        store, service = await asyncio.gather(_within(self._rubrics.ready()), _within(self._reachable()))
        return {"store": store, "broker": self._queue.answers, "service": service}

    async def _reachable(self) -> bool:
        try:
            return (await self._service.get("/healthz")).is_success
        except httpx2.HTTPError:
            return False


async def _within(look: Awaitable[bool]) -> bool:
    try:
        async with asyncio.timeout(LOOK_S):
            return await look
    except TimeoutError:
        return False
