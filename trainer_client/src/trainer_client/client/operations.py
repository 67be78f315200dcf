"""The clients' methods for long-running operations, and the requests they send.

Makes the requests of `/v1/operations`, and reads the events of one. Sends none itself.

What clients do with operations: submit, follow, read, cancel, try again.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from trainer_client.client.answers import AnswerT, error_for, typed_errors
from trainer_client.client.calls import (
    ANSWER_MARGIN_S,
    PreparedRequest,
    invalid_request_error,
    new_idempotency_header,
    send_options,
    to_json_bytes,
)
from trainer_client.client.connection import AsyncConnection, Connection
from trainer_client.errors import AdjudgeError, ConnectionFailed, InvalidRequest, ServerError, TimedOut
from trainer_client.wire import RewardAnswer, RewardRequest, VerdictAnswer, VerdictRequest
from trainer_client.wire.operations import (
    WILL_RETRY_HEADER,
    EvaluateOperation,
    GenerateOperation,
    LeasedChunk,
    Operation,
    OperationList,
    OperationRequest,
    ResultPage,
    ScoreOperation,
    ValidateOperation,
)

OperationLike = ScoreOperation | GenerateOperation | ValidateOperation | EvaluateOperation | Mapping[str, Any]

EVENT_STREAM_TYPE = "text/event-stream"
_PATH = "/v1/operations"
_PAGE_SIZE = 500
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REQUEST: TypeAdapter[ScoreOperation | GenerateOperation | ValidateOperation | EvaluateOperation] = TypeAdapter(
    OperationRequest
)


def submit_request(request: OperationLike, run: str | None, idempotency_key: str | None) -> PreparedRequest[Operation]:
    """Make `POST /v1/operations`, under a key of its own unless one is given, so that it may be sent again.

    Raises:
        InvalidRequest: it breaks the wire contract.
    """
    try:
        read = _REQUEST.validate_python(request)
    except ValidationError as error:
        raise invalid_request_error(error) from error
    changes: dict[str, Any] = {"kind": read.kind}
    if run is not None and "run" in type(read).model_fields and getattr(read, "run", None) is None:
        changes["run"] = run
    key = {"Idempotency-Key": idempotency_key} if idempotency_key else new_idempotency_header()
    return PreparedRequest("POST", _PATH, Operation, to_json_bytes(read.model_copy(update=changes)), headers=key)


def list_request() -> PreparedRequest[OperationList]:
    """Make `GET /v1/operations`."""
    return PreparedRequest("GET", _PATH, OperationList)


def operation_request(operation_id: str, method: str = "GET", part: str = "") -> PreparedRequest[Operation]:
    """Make a request about one operation, a POST under a key of its own.

    Raises:
        InvalidRequest: that cannot be an operation's id.
    """
    headers = new_idempotency_header() if method == "POST" else {}
    return PreparedRequest(method, _path(operation_id) + part, Operation, headers=headers)


def results_request(operation_id: str, after: int) -> PreparedRequest[ResultPage]:
    """Make `GET /v1/operations/{id}/results`, the page after some results."""
    return PreparedRequest(
        "GET", f"{_path(operation_id)}/results", ResultPage, params={"after": str(after), "limit": str(_PAGE_SIZE)}
    )


def events_request(operation_id: str, after: int) -> PreparedRequest[Operation]:
    """Make `GET /v1/operations/{id}/events`, going on after a revision."""
    headers = {"Last-Event-ID": str(after)} if after else {}
    return PreparedRequest("GET", f"{_path(operation_id)}/events", Operation, accept=EVENT_STREAM_TYPE, headers=headers)


def chunk_rewards_request(request: RewardRequest, chunk: LeasedChunk | None) -> PreparedRequest[RewardAnswer]:
    """Make `POST /v1/rewards` of a request that is whole, for a chunk where there is one."""
    return _chunk_request("/v1/rewards", request, RewardAnswer, chunk)


def chunk_verdicts_request(request: VerdictRequest, chunk: LeasedChunk | None) -> PreparedRequest[VerdictAnswer]:
    """Make `POST /v1/verdicts` of a request that is whole, for a chunk where there is one."""
    return _chunk_request("/v1/verdicts", request, VerdictAnswer, chunk)


class OperationEventParser:
    """The events of one stream, read from bytes as they come, and None for each comment later than at its beginning."""

    def __init__(self) -> None:
        self._buffer = b""
        self._started = False

    def feed(self, piece: bytes) -> Iterable[Operation | None]:
        """Give the operations and signs of life that end in this piece; raises `ServerError` for what is none."""
        *whole, self._buffer = (self._buffer + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            data = b"\n".join(line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                try:
                    yield Operation.model_validate_json(data)
                except ValidationError as error:
                    raise ServerError("an event of the operation is no Operation", status=200) from error
            elif not event.startswith(b":"):
                continue
            elif self._started:
                yield None
            self._started = True


def _chunk_request(
    path: str, request: RewardRequest | VerdictRequest, answer: type[AnswerT], chunk: LeasedChunk | None
) -> PreparedRequest[AnswerT]:
    body, read_timeout_s = to_json_bytes(request), request.deadline_s + ANSWER_MARGIN_S
    headers = {} if chunk is None else _attempt_headers(chunk, body)
    return PreparedRequest("POST", path, answer, body, min_timeout_s=read_timeout_s, headers=headers)


def _attempt_headers(chunk: LeasedChunk, body: bytes) -> dict[str, str]:
    """The headers by which the tries of a chunk are recorded once.

    The body's digest is in the key, since a client of another release may write the same request in another way.
    """
    key = f"{chunk.ref.operation_id} {chunk.ref.chunk} {sha256(body).hexdigest()[:32]}"
    return {"Idempotency-Key": key, WILL_RETRY_HEADER: "false" if chunk.last_attempt else "true"}


def _path(operation_id: str) -> str:
    if not _ID.fullmatch(operation_id):
        raise InvalidRequest(f"{operation_id!r} cannot be an operation's id; they look like op-0123456789abcdef")
    return f"{_PATH}/{operation_id}"


class OperationMethods(Connection):
    """Long work: `submit` it, `follow` it, read its `results`.

    Every method raises `AdjudgeError` as `Client.rewards` does, and `NotFound` for operations that are not there.
    """

    def submit(self, request: OperationLike, *, idempotency_key: str | None = None) -> Operation:
        """Submit an operation; it is kept when this returns, and goes on whatever happens to who submitted it.

        Args:
            request: a `wire.operations` request or a mapping of its fields; `kind` says which.
            idempotency_key: submissions with the same key are one; a new key unless given.
        """
        return self._send(submit_request(request, self.run, idempotency_key))

    def operations(self) -> tuple[Operation, ...]:
        """The newest operations, the newest first."""
        return self._send(list_request()).operations

    def operation(self, operation_id: str) -> Operation:
        """An operation as it stands."""
        return self._send(operation_request(operation_id))

    def cancel_operation(self, operation_id: str) -> Operation:
        """End an operation where it is; what is done stays done."""
        return self._send(operation_request(operation_id, "DELETE"))

    def retry_operation(self, operation_id: str) -> Operation:
        """Go on with an operation that failed or was cancelled."""
        return self._send(operation_request(operation_id, "POST", "/retry"))

    def operation_results(self, operation_id: str, after: int = 0) -> Iterator[dict[str, JsonValue]]:
        """Go through the results that an operation has so far, in the order in which they were made."""
        while True:
            page = self._send(results_request(operation_id, after))
            yield from page.results
            if page.next_after is None or not page.results:
                return
            after = page.next_after

    def follow(self, operation_id: str, after: int = 0) -> Iterator[Operation]:
        """Give the operation whenever it changed, until it has ended; a connection that breaks is made again.

        Args:
            operation_id: the operation.
            after: the revision that was seen last.
        """
        retry_state = self._policy.start()
        while True:
            try:
                for operation in self._events(operation_id, after):
                    retry_state = self._policy.start()
                    if operation is not None:
                        after = operation.revision
                        yield operation
                        if operation.ended:
                            return
            except AdjudgeError as error:
                wait = retry_state.wait_after(_make_retryable(error))
                if wait is None:
                    raise
                self.settings.sleep(wait)

    def send_rewards(self, request: RewardRequest, chunk: LeasedChunk | None = None) -> RewardAnswer:
        """Send `POST /v1/rewards` of a request that is whole, for a chunk of an operation if so; see `rewards`."""
        return self._send(chunk_rewards_request(request, chunk))

    def send_verdicts(self, request: VerdictRequest, chunk: LeasedChunk | None = None) -> VerdictAnswer:
        """Send `POST /v1/verdicts` of a request that is whole, for a chunk of an operation if so; see `verdicts`."""
        return self._send(chunk_verdicts_request(request, chunk))

    def _events(self, operation_id: str, after: int) -> Generator[Operation | None, None, None]:
        """The events of one stream, and None where it says that it lives, later than at its beginning."""
        events, request = OperationEventParser(), events_request(operation_id, after)
        options = send_options(request, self.settings.timeout_s)
        with typed_errors(self.base_url), self._http.stream(**options) as response:
            if not response.is_success:
                response.read()
                raise error_for(response)
            for piece in response.iter_bytes():
                yield from events.feed(piece)
        raise _stream_ended_error(self.base_url)


class AsyncOperationMethods(AsyncConnection):
    """Long work; see `OperationMethods`."""

    async def submit(self, request: OperationLike, *, idempotency_key: str | None = None) -> Operation:
        """Submit an operation; see `Client.submit`."""
        return await self._send(submit_request(request, self.run, idempotency_key))

    async def operations(self) -> tuple[Operation, ...]:
        """The newest operations, the newest first."""
        return (await self._send(list_request())).operations

    async def operation(self, operation_id: str) -> Operation:
        """An operation as it stands."""
        return await self._send(operation_request(operation_id))

    async def cancel_operation(self, operation_id: str) -> Operation:
        """End an operation where it is; what is done stays done."""
        return await self._send(operation_request(operation_id, "DELETE"))

    async def retry_operation(self, operation_id: str) -> Operation:
        """Go on with an operation that failed or was cancelled."""
        return await self._send(operation_request(operation_id, "POST", "/retry"))

    async def operation_results(self, operation_id: str, after: int = 0) -> AsyncIterator[dict[str, JsonValue]]:
        """Go through the results that an operation has so far; see `Client.operation_results`."""
        while True:
            page = await self._send(results_request(operation_id, after))
            for result in page.results:
                yield result
            if page.next_after is None or not page.results:
                return
            after = page.next_after

    async def follow(self, operation_id: str, after: int = 0) -> AsyncIterator[Operation]:
        """Give the operation whenever it changed, until it has ended; see `Client.follow`."""
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
                wait = retry_state.wait_after(_make_retryable(error))
                if wait is None:
                    raise
                await self.settings.sleep(wait)

    async def send_rewards(self, request: RewardRequest, chunk: LeasedChunk | None = None) -> RewardAnswer:
        """Send `POST /v1/rewards` of a request that is whole, for a chunk of an operation if so; see `rewards`."""
        return await self._send(chunk_rewards_request(request, chunk))

    async def send_verdicts(self, request: VerdictRequest, chunk: LeasedChunk | None = None) -> VerdictAnswer:
        """Send `POST /v1/verdicts` of a request that is whole, for a chunk of an operation if so; see `verdicts`."""
        return await self._send(chunk_verdicts_request(request, chunk))

    async def _events(self, operation_id: str, after: int) -> AsyncGenerator[Operation | None, None]:
        """The same as of `OperationMethods`."""
        events, request = OperationEventParser(), events_request(operation_id, after)
        with typed_errors(self.base_url):
            async with self._http.stream(**send_options(request, self.settings.timeout_s)) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_for(response)
                async for piece in response.aiter_bytes():
                    for operation in events.feed(piece):
                        yield operation
        raise _stream_ended_error(self.base_url)


def _stream_ended_error(base_url: str) -> ConnectionFailed:
    return ConnectionFailed(f"{base_url} ended the events before the operation has ended", retryable=True)


def _make_retryable(error: AdjudgeError) -> AdjudgeError:
    """Events that stop coming are asked for again: nothing is done twice by that."""
    if isinstance(error, TimedOut):
        error.retryable = True
    return error
