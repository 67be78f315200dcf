"""Makes the requests of `/v1/operations`, and reads the events of one. Sends none itself."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainer_client._answers import AnswerT
from trainer_client._requests import (
    ANSWER_MARGIN_S,
    PreparedRequest,
    invalid_request_error,
    new_idempotency_header,
    to_json_bytes,
)
from trainer_client.errors import InvalidRequest, ServerError
from trainer_client.wire import RewardAnswer, RewardRequest, VerdictAnswer, VerdictRequest
from trainer_client.wire.operation_rows import WILL_RETRY_HEADER, LeasedChunk
from trainer_client.wire.operations import (
    EvaluateOperation,
    GenerateOperation,
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
