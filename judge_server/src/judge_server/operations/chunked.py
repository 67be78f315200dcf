"""The `Operations` port over a store and a queue: operations in chunks, which any process may work on."""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError

from judge_server.operations.feeder import Dispatcher
from judge_server.operations.kind import InvalidOperationError, OperationHandler
from judge_server.ports.operations import OperationStore, UnknownOperation
from trainer_client.wire.operation_rows import NewOperation, Submission
from trainer_client.wire.operations import (
    MAX_PAGE_RESULTS,
    TERMINAL_STATES,
    Operation,
    OperationKind,
    OperationRequest,
    ResultPage,
)
from trainer_client.wire.problems import field_errors

POLL_INTERVAL_S = 0.5
"""Seconds between looks at an operation that is followed."""

MAX_LISTED_OPERATIONS = 500

MAX_STORED_REQUEST_BYTES = 2**20
"""Of JSON, what is asked of all inputs may have: it goes to a worker with each chunk, and out with each change."""

T = TypeVar("T")

_REQUEST: TypeAdapter[Any] = TypeAdapter(OperationRequest)


def _now() -> datetime:
    return datetime.now(UTC)


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
