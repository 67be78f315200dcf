"""The processing of one chunk, from its lease to its end, in this process or in a worker.

The runner handles leases, attempts and retry delays; handlers do the work of each kind of operation.

`dispatch_with` and `work_on` run operations in this process, for `adjudge serve` without a broker and for commands. A
command works on one operation in a SQLite file of its own and tries each chunk once: calls of the model were retried
already, and the next command does what is left undone.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from opentelemetry.trace import SpanKind
from pydantic import BaseModel

from judge_server.observability.logs import log_context
from judge_server.observability.metrics import ChunkStatus, OperationMetrics
from judge_server.observability.tracing import mark_span_failed, set_span_attributes, span, span_links
from judge_server.operations.handlers.base import (
    FatalChunkError,
    OperationHandler,
    RetryableChunkError,
    ServiceUnavailableError,
)
from judge_server.operations.queues import LocalQueue
from judge_server.operations.service import (
    DISPATCH_INTERVAL_S,
    POLL_INTERVAL_S,
    Dispatcher,
    OperationHandlers,
    Operations,
)
from judge_server.ports import Identity, OperationStore, identity_context
from judge_server.scoring.recorded import storable_text
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk, NewChunk
from trainer_client.wire.operations import Operation, OperationKind

log = logging.getLogger("adjudge")

LEASE_S = 60.0
"""The seconds after which the chunk of a dead worker is given to another."""

MAX_CHUNK_RETRY_DELAY_S = 60.0
"""Longest pause between attempts at a chunk. Pauses begin at one second and double."""

UNAVAILABLE_RETRY_DELAY_S = 5.0
"""Pause before the retry of a chunk whose service was unavailable."""

STORE_RETRY_DELAY_S = 1.0
"""Pause between attempts to reach an unavailable store, for results and for leases."""

NO_HEADERS: Mapping[str, str] = {}
"""The headers of a message without a span."""

T = TypeVar("T")


class ChunkRunner:
    """Works on any number of chunks at a time, renewing each lease three times in `lease_s` seconds."""

    def __init__(
        self,
        store: OperationStore,
        handlers: Mapping[OperationKind, OperationHandler],
        *,
        lease_s: float = LEASE_S,
        metrics: OperationMetrics | None = None,
        retry_delay_s: float = 1.0,
        unavailable_retry_delay_s: float = UNAVAILABLE_RETRY_DELAY_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._lease_s = lease_s
        self._metrics = metrics or OperationMetrics()
        self._retry_delay_s = retry_delay_s
        self._unavailable_retry_delay_s = unavailable_retry_delay_s
        self._sleep = sleep

    async def run(self, ref: ChunkRef, message_headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Claim a chunk and work on it; do nothing if it cannot be claimed. Cancellation gives it back at once.

        Its span starts a new trace, with a link to the span in `message_headers`, because an operation has too many
        chunks for one trace.
        """
        try:
            work = await self._store.claim(ref, secrets.token_hex(16), self._lease_s)
        except ConnectionError as error:
            log.warning("operation %s: the store cannot be reached: %s", ref.operation_id, error)
            return
        if work is None:
            return
        clock = asyncio.get_running_loop().time
        started_at = clock()
        self._metrics.chunk_started()
        status: ChunkStatus = "stopped"
        ids = {"operation_id": ref.operation_id, "chunk": str(ref.chunk), "project": ref.project_id}
        attributes = {"kind": work.kind, "attempt": work.attempt, **ids}
        links = span_links(message_headers)
        with log_context(**ids), span("chunk", SpanKind.CONSUMER, links=links, **attributes) as chunk_span:
            try:
                status = await self._work(work)
            finally:
                self._metrics.chunk_ended(work.kind, status, clock() - started_at)
                set_span_attributes(chunk_span, ended=status)
                if status not in ("done", "stopped"):
                    mark_span_failed(chunk_span, status)

    async def _work(self, work: LeasedChunk) -> ChunkStatus:
        execution = asyncio.ensure_future(self._execute(work))
        renewal = asyncio.ensure_future(self._renew_lease(work))
        try:
            await asyncio.wait({execution, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if execution.done():
                return await self._finish(work, execution)
            log.info("operation %s: chunk %d has lost its lease", work.ref.operation_id, work.ref.chunk)
            return "lost"
        except asyncio.CancelledError:
            await self._cancel(execution)
            with suppress(ConnectionError):  # in that case its lease expires
                await self._store.requeue(work, None, delay_s=0.0, outcome=ChunkOutcome(), counts=False)
            raise
        finally:
            await self._cancel(execution, renewal)

    async def _execute(self, work: LeasedChunk) -> ChunkOutcome:
        handler = self._handlers.get(work.kind)
        if handler is None:
            raise ServiceUnavailableError(
                f"this worker cannot run {work.kind}; the chunk waits for one of a newer version"
            )
        actor = f"operation {work.ref.operation_id}"
        with identity_context(Identity(work.ref.project_id, actor, frozenset())):
            return await handler.run(work)

    async def _renew_lease(self, work: LeasedChunk) -> None:
        """Renew the lease until it is lost. While the store cannot be reached, the work continues.

        A failed renewal is retried soon, since one that hung has used up most of the lease.
        """
        retry_delay_s = self._lease_s / 3
        while True:
            await self._sleep(retry_delay_s)
            try:
                if not await self._store.renew(work, self._lease_s):
                    return
                retry_delay_s = self._lease_s / 3
            except ConnectionError as error:
                retry_delay_s = min(STORE_RETRY_DELAY_S, self._lease_s / 3)
                log.warning("operation %s: the lease cannot be renewed: %s", work.ref.operation_id, error)

    async def _finish(self, work: LeasedChunk, execution: asyncio.Future[ChunkOutcome]) -> ChunkStatus:
        error = execution.exception()
        if error is None:
            accepted = await self._persist(lambda: self._store.complete(work, execution.result()))
            return "done" if accepted else "lost"
        is_expected = isinstance(error, FatalChunkError | RetryableChunkError)
        problem = storable_text(str(error) if is_expected else f"{type(error).__name__}: {error}")
        if isinstance(error, FatalChunkError):
            await self._persist(lambda: self._store.fail(work, problem))
            return "failed"
        delay_s = min(MAX_CHUNK_RETRY_DELAY_S, self._retry_delay_s * 2.0 ** (work.attempt - 1))
        counts = not isinstance(error, ServiceUnavailableError)
        if not counts:
            delay_s = self._unavailable_retry_delay_s
        outcome = error.outcome if isinstance(error, RetryableChunkError) else ChunkOutcome()
        if not is_expected:
            log.error("operation %s: chunk %d failed", work.ref.operation_id, work.ref.chunk, exc_info=error)
        await self._persist(lambda: self._store.requeue(work, problem, delay_s=delay_s, outcome=outcome, counts=counts))
        return "retry" if counts else "unavailable"

    async def _persist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write to the store, retrying until it can be reached; the store ignores a second write."""
        while True:
            try:
                return await write()
            except ConnectionError as error:
                log.warning("the outcome of a chunk cannot be stored now: %s", error)
                await self._sleep(STORE_RETRY_DELAY_S)

    async def _cancel(self, *tasks: "asyncio.Future[Any]") -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


MAX_CONSECUTIVE_FAILURES = 8
"""How many chunks in a row, besides those in work, may fail before a command stops."""


@asynccontextmanager
async def dispatch_with(
    dispatcher: Dispatcher,
    store: OperationStore,
    handlers: OperationHandlers,
    *,
    interval_s: float = DISPATCH_INTERVAL_S,
    poll_interval_s: float = POLL_INTERVAL_S,
) -> AsyncIterator[Operations]:
    """Dispatch the chunks of a store for the duration of the block. Operations are followed every `poll_interval_s`."""
    dispatching = asyncio.create_task(dispatcher.run(interval_s))
    try:
        yield Operations(store, handlers, dispatcher, poll_interval_s=poll_interval_s)
    finally:
        dispatching.cancel()
        await asyncio.gather(dispatching, return_exceptions=True)


@asynccontextmanager
async def work_on(
    store: OperationStore,
    handlers: OperationHandlers,
    *,
    concurrency: int = 2,
    lease_s: float = LEASE_S,
    metrics: OperationMetrics | None = None,
    interval_s: float = DISPATCH_INTERVAL_S,
    poll_interval_s: float = POLL_INTERVAL_S,
) -> AsyncIterator[Operations]:
    """Work on the chunks of a store, `concurrency` at a time, for the duration of the block."""
    runner = ChunkRunner(store, handlers, lease_s=lease_s, metrics=metrics)

    async def run(ref: ChunkRef) -> None:
        await runner.run(ref)
        if not await queue.waiting():  # the end of a chunk can make the last one of its operation due
            dispatcher.wake()

    queue = LocalQueue(run, concurrency=concurrency)
    dispatcher = Dispatcher(store, queue)
    queue.start()
    try:
        following = dispatch_with(dispatcher, store, handlers, interval_s=interval_s, poll_interval_s=poll_interval_s)
        async with following as operations:
            yield operations
    finally:
        await queue.close()


class SingleAttempts:
    """An `OperationHandler` that tries each chunk once, and stops working when too many fail in a row.

    `failures` has the body of each chunk that failed, and the error. `problem` says why it stopped.
    """

    def __init__(self, handler: OperationHandler, concurrency: int) -> None:
        self.has_final_chunk = handler.has_final_chunk
        self.failures: list[tuple[Any, Exception]] = []
        self.problem: str | None = None
        self._handler = handler
        self._most = MAX_CONSECUTIVE_FAILURES + concurrency
        self._in_a_row = 0

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Split a request as the handler does."""
        return await self._handler.split(project_id, request)

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Work on a chunk; after too many failures, wait to be cancelled, so that the chunk is given back."""
        if self.problem is not None:
            await asyncio.Event().wait()
        try:
            outcome = await self._handler.run(work)
        except Exception as error:
            if not isinstance(error, FatalChunkError | RetryableChunkError):
                log.exception("operation %s: chunk %d failed", work.ref.operation_id, work.ref.chunk)
            self.failures.append((work.body, error))
            self._in_a_row += 1
            if self._in_a_row >= self._most:
                self.problem = f"{self._in_a_row} inputs failed in a row; the last error: {error}"
            raise FatalChunkError(str(error)) from error
        self._in_a_row = 0
        return outcome

    async def follow(
        self, operations: Operations, operation: Operation, poll_interval_s: float = 0.1
    ) -> AsyncIterator[Operation]:
        """Yield the operation every `poll_interval_s` seconds until it has ended, or until this has stopped."""
        while True:
            has_stopped = self.problem is not None
            operation = await operations.get(operation.project_id, operation.id)
            yield operation
            if operation.ended or has_stopped:
                return
            await asyncio.sleep(poll_interval_s)
