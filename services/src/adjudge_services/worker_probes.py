"""What a worker says of itself over HTTP: whether it works, whether all that it needs is there, and what it did."""

import asyncio
import socket
from collections.abc import Awaitable, Mapping

import httpx2
import uvicorn

from adjudge_services.guarded_http import uvicorn_options
from adjudge_services.process import raise_descriptor_limit
from adjudge_services.settings import Settings
from judge_server.metrics import OperationMetrics
from judge_server.operations.queue_watch import BrokerHealth
from judge_server.web.worker import create_worker_app
from rubric_store import RubricStore

CHECK_TIMEOUT_S = 2.0
"""Seconds that one look at the store or the service may take: less than a probe waits."""


class WorkerProbes:
    """Serves `/healthz`, `/readyz` and `/metrics` on the event loop that does the work, so that they tell of it."""

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
        """Begin to answer at an address that was taken; call it on the event loop."""
        self._serving = asyncio.create_task(self._server.serve([listening]))

    async def close(self) -> None:
        """Answer no more."""
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
