"""A queue on Redis by Celery: announcements of chunks, which `adjudge worker` takes.

Celery is imported when a queue is made, so that a process without one does not pay for it.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from judge_server.telemetry.carrying import span_headers
from judge_server.telemetry.spans import span
from trainer_client.wire.operation_rows import ChunkRef

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
