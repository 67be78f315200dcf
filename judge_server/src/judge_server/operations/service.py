"""Operations over a store and a queue: submit and follow them, and dispatch their chunks.

An operation is split into chunks, which any process may work on. `Dispatcher` enqueues chunks that are due: those of
new operations, and those whose worker or message was lost. Any number of processes may dispatch at once, since the
store gives each chunk to one of them. No chunk is lost for good: if a broker lost its memory, its chunks are enqueued
again as soon as the queue is empty; chunks lost from a queue that never becomes empty, after some minutes.
"""

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError

from judge_server.errors import NotFound
from judge_server.operations.handlers.base import InvalidOperationError, OperationHandler
from judge_server.ports.operations import MAX_PAGE_RESULTS, ChunkQueue, OperationStore
from rubric_store.operations.rows import NewOperation, Submission
from trainer_client.wire.operations import (
    TERMINAL_STATES,
    Operation,
    OperationKind,
    OperationList,
    OperationRequest,
    ResultPage,
)
from trainer_client.wire.problems import field_errors

log = logging.getLogger("adjudge")

MAX_QUEUED_CHUNKS = 256
"""The maximum number of queued chunks: enough for many workers, and few enough to enqueue all of them again. The queue
is refilled when half of it is taken, because the store has to read all waiting chunks to choose the next. If it is
higher, a project that comes later waits longer for workers."""

DISPATCH_INTERVAL_S = 2.0
"""Interval at which the dispatcher looks for chunks to enqueue."""

REENQUEUE_AFTER_S = 5.0
"""The seconds after which a queued chunk that no worker claimed is enqueued again, while the queue is empty."""

LOST_AFTER_S = 300.0
"""The same while the queue is not empty: long before the alert for stuck operations (900). A chunk that was merely
waiting is then queued twice and claimed once, at the cost of a database query. This happens at most
`MAX_QUEUED_CHUNKS` times in this period. If it is shorter, it happens more often."""

PURGE_INTERVAL_S = 3600.0
"""Interval between searches for expired operations."""

POLL_INTERVAL_S = 0.5
"""The seconds between two reads of an operation that is followed."""

MAX_LISTED_OPERATIONS = 500

MAX_STORED_REQUEST_BYTES = 2**20
"""The maximum JSON size of a request without its inputs, which is sent to a worker with each chunk and to clients with
each change."""

T = TypeVar("T")

OperationHandlers = Mapping[OperationKind, OperationHandler]

_REQUEST: TypeAdapter[Any] = TypeAdapter(OperationRequest)


def _now() -> datetime:
    return datetime.now(UTC)


class Dispatcher:
    """Moves due chunks from a store to a queue."""

    def __init__(
        self,
        store: OperationStore,
        queue: ChunkQueue,
        *,
        reenqueue_after_s: float = REENQUEUE_AFTER_S,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._store = store
        self._queue = queue
        self._reenqueue_after_s = reenqueue_after_s
        self._now = now
        self._wakeup = asyncio.Event()
        self._purged_at: float | None = None

    def wake(self) -> None:
        """Make `run` dispatch at once. Returns without waiting for the queue."""
        self._wakeup.set()

    async def dispatch(self) -> int:
        """Enqueue due chunks up to the limit, and return their number; 0 if store or queue cannot be reached."""
        try:
            waiting = await self._queue.waiting()
            if waiting > MAX_QUEUED_CHUNKS // 2:
                return 0
            lost_after_s = LOST_AFTER_S if waiting else self._reenqueue_after_s
            refs = await self._store.take_due(MAX_QUEUED_CHUNKS - waiting, lost_after_s=lost_after_s)
            await self._queue.put(refs)
        except ConnectionError as error:
            log.warning("operations wait because their queue or store cannot be reached: %s", error)
            return 0
        return len(refs)

    async def run(self, interval_s: float = DISPATCH_INTERVAL_S) -> None:
        """Dispatch when woken and every `interval_s` seconds, and purge expired operations every hour.

        Only cancellation ends it.
        """
        while True:
            self._wakeup.clear()
            try:
                await self.dispatch()
                await self._purge()
            except Exception:
                log.exception("chunks of operations could not be enqueued; trying again")
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wakeup.wait()

    async def _purge(self) -> None:
        now = monotonic()
        if self._purged_at is not None and now - self._purged_at < PURGE_INTERVAL_S:
            return
        self._purged_at = now
        try:
            if purged := await self._store.purge(self._now()):
                log.info("%d expired operations were deleted", purged)
        except ConnectionError as error:
            log.warning("expired operations cannot be deleted now: %s", error)


class Operations:
    """The operations of each project, isolated from those of other projects; the consumers of the queue do the work.

    Unknown ids raise `NotFound`. An operation that is followed is read every `poll_interval_s`. A request without its
    inputs may have `max_request_bytes` as JSON.
    """

    def __init__(
        self,
        store: OperationStore,
        handlers: OperationHandlers,
        dispatcher: Dispatcher,
        *,
        now: Callable[[], datetime] = _now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        poll_interval_s: float = POLL_INTERVAL_S,
        max_request_bytes: int = MAX_STORED_REQUEST_BYTES,
    ) -> None:
        self._poll_interval_s = poll_interval_s
        self._max_request_bytes = max_request_bytes
        self._store = store
        self._handlers = handlers
        self._dispatcher = dispatcher
        self._now = now
        self._sleep = sleep

    async def submit(
        self, project_id: str, kind: OperationKind, request: Mapping[str, JsonValue], *, submission: str | None = None
    ) -> Operation:
        """Split an operation into chunks and store it; it starts when a worker is free.

        If the same submission has created an operation before, that operation is returned, even if references have
        moved since.

        Raises:
            ValueError: the request is invalid or cannot be run here, or the submission was used for another request.
            ConnectionError: the store cannot be reached.
        """
        identified = None
        if submission is not None:
            encoded = await asyncio.to_thread(json.dumps, [kind, dict(request)], sort_keys=True)
            identified = Submission(submission, hashlib.sha256(encoded.encode()).digest())
            if (existing := await self._store.find_submission(project_id, identified)) is not None:
                return existing
        handler = self._handlers.get(kind)
        if handler is None:
            raise InvalidOperationError(f"{kind} cannot be run here; there are {', '.join(self._handlers)}")
        try:
            parsed = await asyncio.to_thread(_REQUEST.validate_python, {**request, "kind": kind})
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise ValueError(f"{first.field}: {first.message}") from None
        options, chunks = await handler.split(project_id, parsed)
        size = len(await asyncio.to_thread(json.dumps, options, separators=(",", ":")))
        if size > self._max_request_bytes:
            raise InvalidOperationError(
                f"the request without its inputs has {size:,} bytes as JSON, above the limit of "
                f"{self._max_request_bytes:,}; if its rubric is that large, publish it and send its reference"
            )
        new = NewOperation(
            id=f"op-{secrets.token_hex(8)}",
            project_id=project_id,
            kind=kind,
            request=options,
            chunks=chunks,
            created_at=self._now(),
            submission=identified,
            has_final_chunk=handler.has_final_chunk,
        )
        operation = await self._store.create(new)
        self._dispatcher.wake()
        return operation

    async def get(self, project_id: str, operation_id: str) -> Operation:
        """The current state of an operation."""
        return _require_found(await self._store.get(project_id, operation_id), operation_id)

    async def list(
        self, project_id: str, *, limit: int = MAX_LISTED_OPERATIONS, after: str | None = None
    ) -> OperationList:
        """List a page of the project's operations, newest first. A large `request` is left empty.

        Raises:
            ValueError: `after` is not the `next_cursor` of a page.
        """
        return await self._store.list(project_id, limit, after)

    async def events(self, project_id: str, operation_id: str, *, after: int = 0) -> AsyncIterator[Operation]:
        """Yield the operation each time it has changed, from revision `after + 1` until it has ended.

        Changes that come faster than they are read are merged into one.
        """
        while True:
            revision, state = _require_found(await self._store.get_state(project_id, operation_id), operation_id)
            if revision > after:
                operation = await self.get(project_id, operation_id)
                after, state = operation.revision, operation.state
                yield operation
            if state in TERMINAL_STATES:
                return
            await self._sleep(self._poll_interval_s)

    async def results(self, project_id: str, operation_id: str, *, after: int = 0, limit: int = 100) -> ResultPage:
        """Return results from index `after` on: at most `limit`, fewer if they are large."""
        if not 1 <= limit <= MAX_PAGE_RESULTS or after < 0:
            raise ValueError(f"a page holds 1 to {MAX_PAGE_RESULTS} results, after 0 or more")
        return _require_found(
            await self._store.results(project_id, operation_id, after=after, limit=limit), operation_id
        )

    async def cancel(self, project_id: str, operation_id: str) -> Operation:
        """Cancel an operation; workers notice when they next renew their leases."""
        return _require_found(await self._store.cancel(project_id, operation_id, self._now()), operation_id)

    async def retry(self, project_id: str, operation_id: str) -> Operation:
        """Resume an operation that failed or was cancelled."""
        operation = _require_found(await self._store.retry(project_id, operation_id), operation_id)
        self._dispatcher.wake()
        return operation


def _require_found(item: T | None, operation_id: str) -> T:
    if item is None:
        message = (
            f"there is no operation {operation_id} in this project; the list of operations has those that there are"
        )
        raise NotFound(message, title="Unknown operation")
    return item
