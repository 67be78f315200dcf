"""The clients' methods for long-running operations."""

import re
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from functools import partial
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from trainer_client.client.answers import PreparedRequest
from trainer_client.client.calls import invalid_request_error, new_idempotency_header, query
from trainer_client.client.connection import AsyncConnection
from trainer_client.errors import AdjudgeError, ConnectionFailed, InvalidRequest, ServerError, TimedOut
from trainer_client.wire.operations import (
    DiscriminateOperation,
    EvaluateOperation,
    GenerateOperation,
    Operation,
    OperationList,
    OperationRequest,
    ResultPage,
    ReverifyOperation,
    ScoreOperation,
    ValidateOperation,
)

OperationMessage = (
    ScoreOperation
    | ReverifyOperation
    | GenerateOperation
    | ValidateOperation
    | EvaluateOperation
    | DiscriminateOperation
)
OperationLike = OperationMessage | Mapping[str, Any]

EVENT_STREAM_TYPE = "text/event-stream"
_PATH = "/v1/operations"
_PAGE_SIZE = 500
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REQUEST: TypeAdapter[OperationMessage] = TypeAdapter(OperationRequest)


class AsyncOperationMethods(AsyncConnection):
    """The methods of `AsyncClient` about operations: `submit` one, `follow` it, and read its `operation_results`.

    All methods raise `AdjudgeError` as `AsyncClient.rewards` does, and `NotFound` if there is no such operation.
    """

    async def submit(self, request: OperationLike, *, idempotency_key: str | None = None) -> Operation:
        """Submit an operation. When this returns, the operation is stored and runs without this client.

        Args:
            request: a request of `wire.operations`, or a mapping of its fields; `kind` selects which.
            idempotency_key: submissions with the same key create one operation; defaults to a new key.
        """
        try:
            valid = _REQUEST.validate_python(request)
        except ValidationError as error:
            raise invalid_request_error(error) from error
        changes: dict[str, Any] = {"kind": valid.kind}
        if self.run is not None and "run" in type(valid).model_fields and getattr(valid, "run", None) is None:
            changes["run"] = self.run
        key = {"Idempotency-Key": idempotency_key} if idempotency_key else new_idempotency_header()
        message, expected = valid.model_copy(update=changes), {"kind": valid.kind}
        return await self.send(PreparedRequest("POST", _PATH, Operation, message, headers=key, expected=expected))

    def operations(self) -> AsyncGenerator[Operation, None]:
        """Iterate over the operations, newest first, fetching a page at a time."""
        return self._items(PreparedRequest("GET", _PATH, OperationList), lambda page: page.operations)

    async def operation(self, operation_id: str) -> Operation:
        """Fetch an operation and its current state."""
        return await self.send(_request_of("GET", operation_id))

    async def cancel_operation(self, operation_id: str) -> Operation:
        """Cancel an operation; finished chunks keep their results."""
        return await self.send(_request_of("DELETE", operation_id))

    async def retry_operation(self, operation_id: str) -> Operation:
        """Resume an operation that failed or was cancelled."""
        return await self.send(_request_of("POST", operation_id, "/retry", headers=new_idempotency_header()))

    async def operation_results(self, operation_id: str, after: int = 0) -> AsyncGenerator[dict[str, JsonValue], None]:
        """Iterate over the results available so far, in the order in which they were produced."""
        path = f"{_path(operation_id)}/results"
        while True:
            params = query(after=after, limit=_PAGE_SIZE)
            mismatch = partial(_results_problem, after)
            page = await self.send(PreparedRequest("GET", path, ResultPage, params=params, mismatch=mismatch))
            for result in page.results:
                yield result
            if page.next_cursor is None or not page.results:
                return
            after = int(page.next_cursor)

    async def follow(self, operation_id: str, after: int = 0) -> AsyncGenerator[Operation, None]:
        """Yield the operation after each change until it has ended. Broken connections are reopened.

        Args:
            operation_id: the operation.
            after: the last revision that you have seen.
        """
        retry_state = self._policy.start()
        while True:
            seen = {"Last-Event-ID": str(after)} if after else {}
            request = _request_of("GET", operation_id, "/events", headers=seen, accept=EVENT_STREAM_TYPE)
            try:
                async with self._streamed(request) as response:
                    async for operation in _events(response.aiter_bytes(), request):
                        retry_state = self._policy.start()
                        if operation is not None:
                            after = operation.revision
                            yield operation
                            if operation.ended:
                                return
                raise ConnectionFailed(
                    f"{self.base_url} ended the events before the end of the operation", retryable=True
                )
            except AdjudgeError as error:
                if isinstance(error, TimedOut):
                    error.retryable = True  # requesting the events again repeats no work
                wait = retry_state.wait_after(error)
                if wait is None:
                    raise
                await self._sleep(wait)


async def _events(
    pieces: AsyncIterable[bytes], request: PreparedRequest[Operation]
) -> AsyncGenerator[Operation | None, None]:
    """Yield the operations of a stream of events as they arrive, and None for each keepalive comment.

    A comment at the start of the stream is skipped: it does not show that the stream stays alive.

    Raises:
        ServerError: an event does not hold an operation.
        MismatchedAnswer: an event is about another operation.
    """
    buffer, started = b"", False
    async for piece in pieces:
        *events, buffer = (buffer + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            data = b"\n".join(line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                try:
                    operation = Operation.model_validate_json(data)
                except ValidationError as error:
                    raise ServerError("an event of the stream is not a valid Operation", status=200) from error
                request.check(operation, None)
                yield operation
            elif not event.startswith(b":"):
                continue
            elif started:
                yield None
            started = True


def _request_of(method: str, operation_id: str, part: str = "", **more: Any) -> PreparedRequest[Operation]:
    """Build a request about one operation; raises `InvalidRequest` if `operation_id` is not a valid id."""
    return PreparedRequest(method, _path(operation_id) + part, Operation, expected={"id": operation_id}, **more)


def _path(operation_id: str) -> str:
    if not _ID.fullmatch(operation_id):
        raise InvalidRequest(f"{operation_id!r} is not an operation id; ids look like op-0123456789abcdef")
    return f"{_PATH}/{operation_id}"


def _results_problem(after: int, page: ResultPage) -> str | None:
    end = after + len(page.results)
    if len(page.results) > _PAGE_SIZE or page.next_cursor not in (None, str(end)):
        return f"it has {len(page.results)} results up to {page.next_cursor}, and those after {after} were asked for"
    return None
