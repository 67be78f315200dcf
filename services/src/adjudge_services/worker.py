"""The process `adjudge worker`: Celery takes announcements, threads of its pool wait, one event loop does the work."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from adjudge_services.operations import clients, kinds_of, operation_store, writer_source
from adjudge_services.settings import Settings
from judge_server.access import acting
from judge_server.operations.celery_queue import TASK, CeleryQueue, celery_app
from judge_server.operations.feeder import Feeder
from judge_server.operations.runner import ChunkRunner
from rubric_store import RubricStore
from trainer_client.wire.operation_rows import ChunkRef

T = TypeVar("T")


class Worker:
    """Does chunks on an event loop that runs in another thread."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._app = celery_app(settings.queue_url)
        self._store = operation_store(settings)
        self._rubrics = RubricStore(settings.store_url, actor=lambda: acting().actor)
        self._writers = writer_source(settings)
        kinds = kinds_of(clients(settings.url, settings, retries=2), self._rubrics, self._store, self._writers)
        self._runner = ChunkRunner(self._store, kinds, lease_s=settings.chunk_lease_s)
        self._feeder = Feeder(self._store, CeleryQueue(self._app))
        self._feeding: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begin to announce what is to be done, and what other workers or the broker lost."""

        async def begin() -> None:
            self._feeding = asyncio.ensure_future(self._feeder.run())

        self._on_loop(begin())

    def serve(self, concurrency: int) -> int:
        """Work until a signal says otherwise; the exit status."""

        def run_chunk(project_id: str, operation_id: str, chunk: int) -> None:
            self._on_loop(self._runner.run(ChunkRef(project_id, operation_id, chunk)))

        self._app.task(name=TASK, shared=False)(run_chunk)
        celery = self._app.Worker(
            pool="threads",
            concurrency=concurrency,
            loglevel="WARNING",
            quiet=True,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        celery.start()
        return int(celery.exitcode or 0)

    def close(self) -> None:
        """Stop announcing, and close the stores."""

        async def end() -> None:
            if self._feeding is not None:
                self._feeding.cancel()
                await asyncio.gather(self._feeding, return_exceptions=True)
            await self._writers.close()
            await self._store.close()
            await self._rubrics.close()

        self._on_loop(end())

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
