"""The clients' methods for long-running operations, and the requests they send."""

import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from functools import partial
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from trainer_client.client.answers import PreparedRequest, error_for, require_match, typed_errors
from trainer_client.client.calls import invalid_request_error, new_idempotency_header, send_options, to_json_bytes
from trainer_client.client.connection import AsyncConnection
from trainer_client.client.matching import unequal
from trainer_client.errors import AdjudgeError, ConnectionFailed, InvalidRequest, ServerError, TimedOut
from trainer_client.wire.operations import (
    DiscriminateOperation,
    EvaluateOperation,
    GenerateOperation,
    Operation,
    OperationList,
    OperationRequest,
    ResultPage,
    ScoreOperation,
    ValidateOperation,
)

OperationMessage = ScoreOperation | GenerateOperation | ValidateOperation | EvaluateOperation | DiscriminateOperation
OperationLike = OperationMessage | Mapping[str, Any]

EVENT_STREAM_TYPE = "text/event-stream"
_PATH = "/v1/operations"
_PAGE_SIZE = 500
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REQUEST: TypeAdapter[OperationMessage] = TypeAdapter(OperationRequest)


def submit_request(request: OperationLike, run: str | None, idempotency_key: str | None) -> PreparedRequest[Operation]:
    """Build `POST /v1/operations`, with a new idempotency key unless one is given, so that it can be retried.

    Raises:
        InvalidRequest: the request breaks the wire contract.
    """
    try:
        valid = _REQUEST.validate_python(request)
    except ValidationError as error:
        raise invalid_request_error(error) from error
    changes: dict[str, Any] = {"kind": valid.kind}
    if run is not None and "run" in type(valid).model_fields and getattr(valid, "run", None) is None:
        changes["run"] = run
    key = {"Idempotency-Key": idempotency_key} if idempotency_key else new_idempotency_header()
    body, mismatch = to_json_bytes(valid.model_copy(update=changes)), partial(unequal, {"kind": valid.kind})
    return PreparedRequest("POST", _PATH, Operation, body, headers=key, mismatch=mismatch)


def list_request(after: str | None) -> PreparedRequest[OperationList]:
    """Build `GET /v1/operations` for the page after a cursor."""
    return PreparedRequest("GET", _PATH, OperationList, params={"after": after} if after else {})


def operation_request(operation_id: str, method: str = "GET", part: str = "") -> PreparedRequest[Operation]:
    """Build a request about one operation; a POST gets a new idempotency key.

    Raises:
        InvalidRequest: `operation_id` is not a valid id.
    """
    headers = new_idempotency_header() if method == "POST" else {}
    mismatch = partial(unequal, {"id": operation_id})
    return PreparedRequest(method, _path(operation_id) + part, Operation, headers=headers, mismatch=mismatch)


def results_request(operation_id: str, after: int) -> PreparedRequest[ResultPage]:
    """Build `GET /v1/operations/{id}/results` for the page after the first `after` results."""

    def mismatch(page: ResultPage) -> str | None:
        end = after + len(page.results)
        if len(page.results) > _PAGE_SIZE or page.next_cursor not in (None, str(end)):
            return (
                f"it has {len(page.results)} results up to {page.next_cursor}, and those after {after} were asked for"
            )
        return None

    params = {"after": str(after), "limit": str(_PAGE_SIZE)}
    return PreparedRequest("GET", f"{_path(operation_id)}/results", ResultPage, params=params, mismatch=mismatch)


def events_request(operation_id: str, after: int) -> PreparedRequest[Operation]:
    """Build `GET /v1/operations/{id}/events`, resuming after a revision."""
    headers = {"Last-Event-ID": str(after)} if after else {}
    path, mismatch = f"{_path(operation_id)}/events", partial(unequal, {"id": operation_id})
    return PreparedRequest("GET", path, Operation, accept=EVENT_STREAM_TYPE, headers=headers, mismatch=mismatch)


class OperationEventParser:
    """Parser of one event stream, fed with bytes as they arrive."""

    def __init__(self, request: PreparedRequest[Operation]) -> None:
        self._request = request
        self._buffer = b""
        self._started = False

    def feed(self, piece: bytes) -> Iterable[Operation | None]:
        """Yield the operations whose events end in this piece, and None for each keepalive comment.

        A comment at the start of the stream is skipped: it does not show that the stream stays alive.

        Raises:
            ServerError: an event does not hold an operation.
            MismatchedAnswer: an event is about another operation.
        """
        *events, self._buffer = (self._buffer + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            data = b"\n".join(line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                try:
                    operation = Operation.model_validate_json(data)
                except ValidationError as error:
                    raise ServerError("an event of the stream is not a valid Operation", status=200) from error
                require_match(self._request.mismatch(operation), f"{self._request.method} {self._request.path}", None)
                yield operation
            elif not event.startswith(b":"):
                continue
            elif self._started:
                yield None
            self._started = True


def _path(operation_id: str) -> str:
    if not _ID.fullmatch(operation_id):
        raise InvalidRequest(f"{operation_id!r} is not an operation id; ids look like op-0123456789abcdef")
    return f"{_PATH}/{operation_id}"


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
        return await self.send(submit_request(request, self.run, idempotency_key))

    async def operations(self) -> AsyncGenerator[Operation, None]:
        """Iterate over the operations, newest first, fetching a page at a time."""
        after: str | None = None
        while True:
            page = await self.send(list_request(after))
            for operation in page.operations:
                yield operation
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def operation(self, operation_id: str) -> Operation:
        """Fetch an operation and its current state."""
        return await self.send(operation_request(operation_id))

    async def cancel_operation(self, operation_id: str) -> Operation:
        """Cancel an operation; finished chunks keep their results."""
        return await self.send(operation_request(operation_id, "DELETE"))

    async def retry_operation(self, operation_id: str) -> Operation:
        """Resume an operation that failed or was cancelled."""
        return await self.send(operation_request(operation_id, "POST", "/retry"))

    async def operation_results(self, operation_id: str, after: int = 0) -> AsyncGenerator[dict[str, JsonValue], None]:
        """Iterate over the results available so far, in the order in which they were produced."""
        while True:
            page = await self.send(results_request(operation_id, after))
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
            try:
                async for operation in self._events(operation_id, after):
                    retry_state = self._policy.start()
                    if operation is not None:
                        after = operation.revision
                        yield operation
                        if operation.ended:
                            return
            except AdjudgeError as error:
                wait = retry_state.wait_after(make_retryable(error))
                if wait is None:
                    raise
                await self._sleep(wait)

    async def _events(self, operation_id: str, after: int) -> AsyncGenerator[Operation | None, None]:
        """Yield the events of one stream, and None for each keepalive comment; see `OperationEventParser.feed`."""
        request = events_request(operation_id, after)
        events = OperationEventParser(request)
        with typed_errors(self.base_url):
            async with self._http.stream(**send_options(request, self.settings.timeout_s)) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_for(response)
                async for piece in response.aiter_bytes():
                    for operation in events.feed(piece):
                        yield operation
        raise stream_ended_error(self.base_url)


def stream_ended_error(base_url: str) -> ConnectionFailed:
    """The error of a stream of events that ends before its operation; it can be retried."""
    return ConnectionFailed(f"{base_url} ended the events before the end of the operation", retryable=True)


def make_retryable(error: AdjudgeError) -> AdjudgeError:
    """Make a timeout retryable: requesting the events again repeats no work."""
    if isinstance(error, TimedOut):
        error.retryable = True
    return error
