"""The `Operations` port over a store and a queue: submit, follow, dispatch chunks.

The `Operations` port over a store and a queue: operations in chunks, which any process may work on.

Announces chunks that are to be done: those of new operations, and those whose worker or announcement was lost.

Any number of processes may do this at once, for the store gives each chunk to one of them. Nothing is ever forgotten:
what a broker lost with its memory is announced again as soon as its queue is seen to be empty, and what was lost out of
a queue that never is, after some minutes.
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

from judge_server.operations.handlers.base import InvalidOperationError, OperationHandler
from judge_server.ports.operations import ChunkQueue, OperationStore, UnknownOperation
from trainer_client.wire.operations import (
    MAX_PAGE_RESULTS,
    TERMINAL_STATES,
    NewOperation,
    Operation,
    OperationKind,
    OperationRequest,
    ResultPage,
    Submission,
)
from trainer_client.wire.problems import field_errors

log = logging.getLogger("adjudge")

MAX_QUEUED_CHUNKS = 256
"""Announcements that may wait: enough for any number of workers, and few enough to repeat all of them. More come
once half of them are taken, since the store has to look at all that waits to see whose turn it is."""

DISPATCH_INTERVAL_S = 2.0
REENQUEUE_AFTER_S = 5.0
"""How long a chunk may be announced and taken by nobody, while the queue is empty, before it is announced again."""

LOST_AFTER_S = 300.0
"""The same while the queue is not empty. What only waited for its turn is then announced twice, and refused once: at
most `MAX_QUEUED_CHUNKS` times in so long."""

PURGE_INTERVAL_S = 3600.0


def _now() -> datetime:
    return datetime.now(UTC)


class Dispatcher:
    """Keeps a queue fed from a store."""

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
        """There is something to announce: have what runs look at once. Nobody waits for the queue by this."""
        self._wakeup.set()

    async def dispatch(self) -> int:
        """Announce what there is room for; how many chunks. What cannot be reached now is left for the next time."""
        try:
            waiting = await self._queue.waiting()
            if waiting > MAX_QUEUED_CHUNKS // 2:
                return 0
            lost_after_s = LOST_AFTER_S if waiting else self._reenqueue_after_s
            refs = await self._store.take_due(MAX_QUEUED_CHUNKS - waiting, lost_after_s=lost_after_s)
            await self._queue.put(refs)
        except ConnectionError as error:
            log.warning("operations wait, for their queue or store cannot be reached: %s", error)
            return 0
        return len(refs)

    async def run(self, interval_s: float = DISPATCH_INTERVAL_S) -> None:
        """Feed when woken and every so often, until cancelled; now and then have the store forget what has expired.

        Nothing else ends it.
        """
        while True:
            self._wakeup.clear()
            try:
                await self.dispatch()
                await self._purge()
            except Exception:
                log.exception("operations could not be announced; looking again")
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wakeup.wait()

    async def _purge(self) -> None:
        elapsed = monotonic()
        if self._purged_at is not None and elapsed - self._purged_at < PURGE_INTERVAL_S:
            return
        self._purged_at = elapsed
        try:
            if purged := await self._store.purge(self._now()):
                log.info("%d operations have expired and are deleted", purged)
        except ConnectionError as error:
            log.warning("expired operations cannot be deleted now: %s", error)


POLL_INTERVAL_S = 0.5
"""Seconds between looks at an operation that is followed."""

MAX_LISTED_OPERATIONS = 500

MAX_STORED_REQUEST_BYTES = 2**20
"""Of JSON, what is asked of all inputs may have: it goes to a worker with each chunk, and out with each change."""

T = TypeVar("T")

_REQUEST: TypeAdapter[Any] = TypeAdapter(OperationRequest)


class ChunkedOperations:
    """Keeps operations and has them announced; whoever takes chunks from the queue does the work."""

    def __init__(
        self,
        store: OperationStore,
        handlers: Mapping[OperationKind, OperationHandler],
        dispatcher: Dispatcher,
        *,
        poll_interval_s: float = POLL_INTERVAL_S,
        now: Callable[[], datetime] = _now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._dispatcher = dispatcher
        self._poll_interval_s = poll_interval_s
        self._now = now
        self._sleep = sleep

    async def submit(
        self, project_id: str, kind: OperationKind, request: Mapping[str, JsonValue], *, submission: str | None = None
    ) -> Operation:
        """Keep an operation, split into chunks; it is kept when this returns, and begins when a worker is free.

        What the same submission made before is given as it stands, whatever references stand for by now.

        Raises:
            ValueError: the request is none of its kind, or cannot be run here; the submission asked for something else.
            ConnectionError: the store cannot be reached.
        """
        identified = None
        if submission is not None:
            identified = Submission(submission, await asyncio.to_thread(_digest, kind, request))
            if (made := await self._store.find_submission(project_id, identified)) is not None:
                return made
        handler = self._handlers.get(kind)
        if handler is None:
            raise InvalidOperationError(f"{kind} cannot be run here; there are {', '.join(self._handlers)}")
        try:
            read = await asyncio.to_thread(_REQUEST.validate_python, {**request, "kind": kind})
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise ValueError(f"{first.field}: {first.message}") from None
        kept, chunks = await handler.split(project_id, read)
        if (size := await asyncio.to_thread(_size, kept)) > MAX_STORED_REQUEST_BYTES:
            raise InvalidOperationError(
                f"what is asked of all inputs has {size:,} bytes as JSON, and {MAX_STORED_REQUEST_BYTES:,} are kept; publish a "
                "rubric that is so large, and name its reference"
            )
        new = NewOperation(
            id=f"op-{secrets.token_hex(8)}",
            project_id=project_id,
            kind=kind,
            request=kept,
            chunks=chunks,
            created_at=self._now(),
            submission=identified,
            has_final_chunk=handler.has_final_chunk,
        )
        operation = await self._store.create(new)
        self._dispatcher.wake()
        return operation

    async def get(self, project_id: str, operation_id: str) -> Operation:
        """The operation as it stands."""
        return _require_found(await self._store.get(project_id, operation_id), operation_id)

    async def list(self, project_id: str) -> tuple[Operation, ...]:
        """The project's newest operations, the newest first."""
        return await self._store.list(project_id, MAX_LISTED_OPERATIONS)

    async def events(self, project_id: str, operation_id: str, *, after: int = 0) -> AsyncIterator[Operation]:
        """The operation each time it is seen to have changed, until it has ended."""
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
        """A page of what was made so far."""
        if not 1 <= limit <= MAX_PAGE_RESULTS or after < 0:
            raise ValueError(f"a page holds 1 to {MAX_PAGE_RESULTS} results, after 0 or more")
        return _require_found(
            await self._store.results(project_id, operation_id, after=after, limit=limit), operation_id
        )

    async def cancel(self, project_id: str, operation_id: str) -> Operation:
        """End it where it is; workers learn of it when they next renew their leases."""
        return _require_found(await self._store.cancel(project_id, operation_id, self._now()), operation_id)

    async def retry(self, project_id: str, operation_id: str) -> Operation:
        """Go on with what failed or was cancelled."""
        operation = _require_found(await self._store.retry(project_id, operation_id), operation_id)
        self._dispatcher.wake()
        return operation


def _digest(kind: OperationKind, request: Mapping[str, JsonValue]) -> bytes:
    return hashlib.sha256(json.dumps([kind, dict(request)], sort_keys=True).encode()).digest()


def _size(kept: Mapping[str, JsonValue]) -> int:
    return len(json.dumps(kept, separators=(",", ":")))


def _require_found(found: T | None, operation_id: str) -> T:
    if found is None:
        raise UnknownOperation(f"there is no operation {operation_id}")
    return found
