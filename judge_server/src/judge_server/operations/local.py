"""Operations whose chunks this process works on itself: `adjudge serve` without a broker, and commands.

A command works on one operation in a SQLite file of its own and ends with it. It tries each chunk once: the model's
calls have been retried already, and what is left undone is done by the next command.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel

from judge_server.observability.metrics import OperationMetrics
from judge_server.operations.handlers.base import FatalChunkError, OperationHandler, RetryableChunkError
from judge_server.operations.queues import LocalQueue
from judge_server.operations.runner import LEASE_S, ChunkRunner
from judge_server.operations.service import (
    DISPATCH_INTERVAL_S,
    POLL_INTERVAL_S,
    Dispatcher,
    OperationHandlers,
    Operations,
)
from judge_server.ports import ChunkQueue, Operation, OperationStore
from trainer_client.wire.operations import ChunkOutcome, LeasedChunk, NewChunk

log = logging.getLogger("adjudge")

MAX_CONSECUTIVE_FAILURES = 8
"""How many chunks in a row, besides those in work, may fail before a command stops."""


@asynccontextmanager
async def dispatch_to(
    queue: ChunkQueue, store: OperationStore, handlers: OperationHandlers, *, interval_s: float = DISPATCH_INTERVAL_S
) -> AsyncIterator[Operations]:
    """Dispatch the chunks of a store to a queue for the duration of the block."""
    dispatcher = Dispatcher(store, queue)
    dispatching = asyncio.create_task(dispatcher.run(interval_s))
    try:
        yield Operations(store, handlers, dispatcher)
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
) -> AsyncIterator[Operations]:
    """Work on the chunks of a store, `concurrency` at a time, for the duration of the block."""
    queue = LocalQueue(ChunkRunner(store, handlers, lease_s=lease_s, metrics=metrics).run, concurrency=concurrency)
    queue.start()
    try:
        async with dispatch_to(queue, store, handlers, interval_s=interval_s) as operations:
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
        self, operations: Operations, operation: Operation, *, interval_s: float = POLL_INTERVAL_S
    ) -> AsyncIterator[Operation]:
        """Yield the operation every `interval_s` seconds until it has ended, or until this has stopped."""
        while True:
            has_stopped = self.problem is not None
            operation = await operations.get(operation.project_id, operation.id)
            yield operation
            if operation.ended or has_stopped:
                return
            await asyncio.sleep(interval_s)
