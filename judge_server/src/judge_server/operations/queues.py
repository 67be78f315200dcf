"""Queues of chunks: in memory, or Celery on Redis, and the health of their broker.

`LocalQueue` passes chunks to tasks of this event loop; `CeleryQueue` sends messages that `adjudge worker` consumes.
Celery is imported when a queue is created, so that other processes do not pay for it.

`BrokerHealth` detects a worker whose connection to the broker has silently died. Such a worker seems healthy but
receives no chunk, although chunks wait and it has free capacity.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from judge_server.observability.tracing import span, span_headers
from judge_server.ports import ChunkQueue
from rubric_store.operations.rows import ChunkRef

if TYPE_CHECKING:
    from celery import Celery  # type: ignore[import-untyped]

log = logging.getLogger("adjudge")

QUEUE = "adjudge"
TASK = "adjudge.run_chunk"

VISIBILITY_TIMEOUT_S = 2 * 3600
"""The seconds until Redis delivers a message to another worker: longer than any chunk, which has at most 3,600. A dead
worker is detected by its lease, long before this. If it is shorter than the longest chunk, Redis hands chunks out
twice, and the lease refuses the second."""

BROKER_CONNECT_TIMEOUT_S = 5.0
"""Timeout to connect to the broker."""

BROKER_SOCKET_TIMEOUT_S = 10.0
"""The seconds in which the broker must answer. Without a limit, a broker that hangs would block the dispatcher, and
submissions, forever."""

RESPONDING_WINDOW_S = 30.0
"""The seconds for which an answer of the broker counts as recent: several dispatch intervals, with their timeouts."""

STALLED_AFTER_S = 60.0
"""The seconds that chunks may wait for a worker with free capacity before the worker counts as stalled. If it is
shorter than a broker's recovery, Kubernetes kills healthy workers."""

_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""TCP keepalive, since an idle worker sends nothing: it detects after 40 s that the broker's host is gone. Celery's own
checks detect it within 51 s."""


def celery_app(url: str) -> "Celery":
    """Create a Celery application over the broker at a `redis://` URL; it connects when first used."""
    from celery import Celery

    app = Celery("adjudge", broker=url, set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "socket_connect_timeout": BROKER_CONNECT_TIMEOUT_S,
            "socket_timeout": BROKER_SOCKET_TIMEOUT_S,
            "socket_keepalive": True,
            "socket_keepalive_options": {
                getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
            },
        },
    )
    return app


class CeleryQueue:
    """Sends chunks to the workers of a broker. Each call opens its own connection, since brokers may restart."""

    def __init__(self, app: "Celery") -> None:
        self._app = app

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Send a message for each chunk."""
        if refs:
            with span("enqueue", SpanKind.PRODUCER, chunks=len(refs)):
                await asyncio.to_thread(self._with_connection, lambda connection: self._send(connection, refs))

    async def waiting(self) -> int:
        """The number of messages that no worker has taken."""
        return int(await asyncio.to_thread(self._with_connection, self._count_waiting))

    def _with_connection(self, use: Callable[[Any], Any]) -> Any:
        from kombu.exceptions import OperationalError

        with self._app.connection_for_write() as connection:
            unavailable_errors = (OSError, OperationalError, *connection.connection_errors, *connection.channel_errors)
            try:
                # Without limits, this would wait forever.
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_CONNECT_TIMEOUT_S)
                return use(connection)
            except unavailable_errors as error:
                raise ConnectionError(f"{type(error).__name__}: {error}") from error

    def _send(self, connection: Any, refs: Sequence[ChunkRef]) -> None:
        producer = self._app.amqp.Producer(connection)
        headers = span_headers()
        for ref in refs:
            self._app.send_task(TASK, args=list(ref), producer=producer, headers=headers)

    def _count_waiting(self, connection: Any) -> int:
        queue = connection.default_channel.queue_declare(QUEUE, passive=False, durable=True)
        return int(queue.message_count)


class LocalQueue:
    """The queue `memory://`: passes chunks to `run`, at most `concurrency` at a time, from `start` to `close`."""

    def __init__(self, run: Callable[[ChunkRef], Awaitable[None]], *, concurrency: int = 2) -> None:
        self._run = run
        self._concurrency = concurrency
        self._refs: asyncio.Queue[ChunkRef] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Enqueue chunks."""
        for ref in refs:
            self._refs.put_nowait(ref)

    async def waiting(self) -> int:
        """The number of queued chunks."""
        return self._refs.qsize()

    def start(self) -> None:
        """Start the tasks that work on chunks."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]

    async def close(self) -> None:
        """Stop the tasks; chunks in progress are given back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            ref = await self._refs.get()
            try:
                await self._run(ref)
            except Exception:
                log.exception("operation %s: chunk %d failed with an unexpected error", ref.operation_id, ref.chunk)


class BrokerHealth:
    """A `ChunkQueue` that tracks whether the broker responds, and whether this process receives chunks.

    `slots` is the number of chunks that this process works on at a time. `clock` returns seconds.
    """

    def __init__(
        self,
        queue: ChunkQueue,
        slots: int,
        *,
        stalled_after_s: float = STALLED_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._slots = slots
        self._stalled_after_s = stalled_after_s
        self._clock = clock
        self._in_progress = 0
        self._answered_at: float | None = None
        self._stalled_since: float | None = None
        self._draining = False

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Enqueue chunks."""
        await self._queue.put(refs)

    async def waiting(self) -> int:
        """The number of queued chunks."""
        try:
            number = await self._queue.waiting()
        except ConnectionError:
            self._answered_at = self._stalled_since = None
            raise
        self._answered_at = self._clock()
        if not number or self._in_progress >= self._slots or self._draining:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = self._answered_at
        return number

    @contextmanager
    def processing(self) -> Iterator[None]:
        """Count a received chunk as in progress for the duration of the block."""
        self._stalled_since = None
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1

    def drain(self) -> None:
        """Stop expecting chunks, because this process is stopping."""
        self._draining = True
        self._stalled_since = None

    @property
    def idle(self) -> bool:
        """Whether this process works on no chunk."""
        return not self._in_progress

    @property
    def responding(self) -> bool:
        """Whether the broker answered recently."""
        return self._answered_at is not None and self._clock() - self._answered_at <= RESPONDING_WINDOW_S

    @property
    def stalled(self) -> bool:
        """Whether this process receives no chunks although chunks wait and it has free capacity."""
        return self._stalled_since is not None and self._clock() - self._stalled_since > self._stalled_after_s
