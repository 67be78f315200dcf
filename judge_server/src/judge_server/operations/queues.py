"""Queues of chunks: in memory, or Celery on Redis, and the health of their broker.

A queue on Redis by Celery: announcements of chunks, which `adjudge worker` takes.

Celery is imported when a queue is made, so that a process without one does not pay for it.

A queue of this process: announcements in memory, and tasks of this event loop that work on them.

A queue that is watched: whether its broker answers, and whether this process takes what waits in it.

A worker whose connection to the broker died without a word hears of no chunk any more, and looks well otherwise. What
gives it away is that chunks wait while it has room, at every look, and that none is handed to it.
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
from trainer_client.wire.operations import ChunkRef

if TYPE_CHECKING:
    from celery import Celery  # type: ignore[import-untyped]

log = logging.getLogger("adjudge")

QUEUE = "adjudge"
TASK = "adjudge.run_chunk"

VISIBILITY_TIMEOUT_S = 2 * 3600
"""Seconds until Redis gives a message to another worker: above the longest chunk, whose judge has at most 3,600.

A worker that dies is found by its lease, long before this.
"""

BROKER_CONNECT_TIMEOUT_S = 5.0

BROKER_SOCKET_TIMEOUT_S = 10.0
"""Seconds in which a broker answers, or is taken for one that is away: one that hangs would hold its asker up for good.
"""

_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""A worker that waits for work sends nothing. This tells it after 40 s that the broker's host is gone; so do looks of
Celery's own, within 51 s."""


def celery_app(url: str) -> "Celery":
    """An application of Celery over the broker at a `redis://` URL; it connects when first used."""
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
    """Announces chunks to the workers of a broker. Each call has a connection of its own: brokers come and go."""

    def __init__(self, app: "Celery") -> None:
        self._app = app

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Send a message for each chunk."""
        if refs:
            with span("enqueue", SpanKind.PRODUCER, chunks=len(refs)):
                await asyncio.to_thread(self._with_connection, lambda connection: self._send(connection, refs))

    async def waiting(self) -> int:
        """How many messages no worker has taken."""
        return int(await asyncio.to_thread(self._with_connection, self._count_waiting))

    def _with_connection(self, use: Callable[[Any], Any]) -> Any:
        from kombu.exceptions import OperationalError

        with self._app.connection_for_write() as connection:
            unavailable_errors = (OSError, OperationalError, *connection.connection_errors, *connection.channel_errors)
            try:
                connection.ensure_connection(
                    max_retries=1, interval_start=0, timeout=BROKER_CONNECT_TIMEOUT_S
                )  # else it waits for good
                return use(connection)
            except unavailable_errors as error:
                raise ConnectionError(f"{type(error).__name__}: {error}") from error

    def _send(self, connection: Any, refs: Sequence[ChunkRef]) -> None:
        producer = self._app.amqp.Producer(connection)
        headers = span_headers()
        for ref in refs:
            self._app.send_task(TASK, args=list(ref), producer=producer, headers=headers)

    def _count_waiting(self, connection: Any) -> int:
        found = connection.default_channel.queue_declare(QUEUE, passive=False, durable=True)
        return int(found.message_count)


class LocalQueue:
    """`memory://`: hands chunks to `run`, at most `at_once` at a time, between `start` and `close`."""

    def __init__(self, run: Callable[[ChunkRef], Awaitable[None]], *, concurrency: int = 2) -> None:
        self._run = run
        self._concurrency = concurrency
        self._refs: asyncio.Queue[ChunkRef] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def put(self, refs: Sequence[ChunkRef]) -> None:
        """Announce chunks."""
        for ref in refs:
            self._refs.put_nowait(ref)

    async def waiting(self) -> int:
        """How many announcements wait."""
        return self._refs.qsize()

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]

    async def close(self) -> None:
        """Stop; chunks in work are given back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            ref = await self._refs.get()
            try:
                await self._run(ref)
            except Exception:
                log.exception("operation %s: chunk %d broke its worker", ref.operation_id, ref.chunk)


RESPONDING_WINDOW_S = 30.0
"""How long a look at the queue tells that its broker answers: some looks of the feeder, each with its timeouts."""

STALLED_AFTER_S = 60.0
"""How long chunks may wait for a worker that has room before it is taken for one that hears nothing."""


class BrokerHealth:
    """A `ChunkQueue` that notes what is seen of it. `slots` is how many chunks this process works on at a time."""

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
        """Announce chunks."""
        await self._queue.put(refs)

    async def waiting(self) -> int:
        """How many announcements wait."""
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
        """This process was handed an announcement, and deals with it for as long as the block runs."""
        self._stalled_since = None
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1

    def drain(self) -> None:
        """From now on no more are taken, since this process stops."""
        self._draining = True
        self._stalled_since = None

    @property
    def responding(self) -> bool:
        """Whether the broker answered a moment ago."""
        return self._answered_at is not None and self._clock() - self._answered_at <= RESPONDING_WINDOW_S

    @property
    def stalled(self) -> bool:
        """Whether what waits is not handed to this process, although it has room."""
        return self._stalled_since is not None and self._clock() - self._stalled_since > self._stalled_after_s
