"""Makes the requests of `/v1/operations`, and reads the events of one. Sends none itself."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainer_client._answers import AnswerT
from trainer_client._requests import ANSWER_MARGIN_S, Call, as_json, fresh_key, invalid
from trainer_client.errors import InvalidRequest, ServerError
from trainer_client.wire import RewardAnswer, RewardRequest, VerdictAnswer, VerdictRequest
from trainer_client.wire.operation_rows import WILL_TRY_AGAIN, ChunkWork
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

EVENTS = "text/event-stream"
_PATH = "/v1/operations"
_PAGE = 500
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REQUEST: TypeAdapter[ScoreOperation | GenerateOperation | ValidateOperation | EvaluateOperation] = TypeAdapter(
    OperationRequest
)


def submit_call(request: OperationLike, run: str | None, idempotency_key: str | None) -> Call[Operation]:
    """Make `POST /v1/operations`, under a key of its own unless one is given, so that it may be sent again.

    Raises:
        InvalidRequest: it breaks the wire contract.
    """
    try:
        read = _REQUEST.validate_python(request)
    except ValidationError as error:
        raise invalid(error) from error
    changes: dict[str, Any] = {"kind": read.kind}
    if run is not None and "run" in type(read).model_fields and getattr(read, "run", None) is None:
        changes["run"] = run
    key = {"Idempotency-Key": idempotency_key} if idempotency_key else fresh_key()
    return Call("POST", _PATH, Operation, as_json(read.model_copy(update=changes)), conditions=key)


def list_call() -> Call[OperationList]:
    """Make `GET /v1/operations`."""
    return Call("GET", _PATH, OperationList)


def operation_call(operation_id: str, method: str = "GET", part: str = "") -> Call[Operation]:
    """Make a request about one operation, a POST under a key of its own.

    Raises:
        InvalidRequest: that cannot be an operation's id.
    """
    conditions = fresh_key() if method == "POST" else {}
    return Call(method, _path(operation_id) + part, Operation, conditions=conditions)


def results_call(operation_id: str, after: int) -> Call[ResultPage]:
    """Make `GET /v1/operations/{id}/results`, the page after some results."""
    return Call("GET", f"{_path(operation_id)}/results", ResultPage, params={"after": str(after), "limit": str(_PAGE)})


def events_call(operation_id: str, after: int) -> Call[Operation]:
    """Make `GET /v1/operations/{id}/events`, going on after a revision."""
    conditions = {"Last-Event-ID": str(after)} if after else {}
    return Call("GET", f"{_path(operation_id)}/events", Operation, accept=EVENTS, conditions=conditions)


def whole_rewards_call(request: RewardRequest, chunk: ChunkWork | None) -> Call[RewardAnswer]:
    """Make `POST /v1/rewards` of a request that is whole, for a chunk where there is one."""
    return _whole_call("/v1/rewards", request, RewardAnswer, chunk)


def whole_verdicts_call(request: VerdictRequest, chunk: ChunkWork | None) -> Call[VerdictAnswer]:
    """Make `POST /v1/verdicts` of a request that is whole, for a chunk where there is one."""
    return _whole_call("/v1/verdicts", request, VerdictAnswer, chunk)


class Events:
    """The events of one stream, read from bytes as they come, and None for each comment later than at its beginning."""

    def __init__(self) -> None:
        self._half = b""
        self._begun = False

    def feed(self, piece: bytes) -> Iterable[Operation | None]:
        """Give the operations and signs of life that end in this piece; raises `ServerError` for what is none."""
        *whole, self._half = (self._half + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            data = b"\n".join(line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                try:
                    yield Operation.model_validate_json(data)
                except ValidationError as error:
                    raise ServerError("an event of the operation is no Operation", status=200) from error
            elif not event.startswith(b":"):
                continue
            elif self._begun:
                yield None
            self._begun = True


def _whole_call(
    path: str, request: RewardRequest | VerdictRequest, answer: type[AnswerT], chunk: ChunkWork | None
) -> Call[AnswerT]:
    body, patience_s = as_json(request), request.deadline_s + ANSWER_MARGIN_S
    headers = {} if chunk is None else _tried(chunk, body)
    return Call("POST", path, answer, body, at_least_s=patience_s, conditions=headers)


def _tried(chunk: ChunkWork, body: bytes) -> dict[str, str]:
    """The headers by which the tries of a chunk are recorded once.

    The body's digest is in the key, since a client of another release may write the same request in another way.
    """
    key = f"{chunk.ref.operation_id} {chunk.ref.chunk} {sha256(body).hexdigest()[:32]}"
    return {"Idempotency-Key": key, WILL_TRY_AGAIN: "false" if chunk.last_attempt else "true"}


def _path(operation_id: str) -> str:
    if not _ID.fullmatch(operation_id):
        raise InvalidRequest(f"{operation_id!r} cannot be an operation's id; they look like op-0123456789abcdef")
    return f"{_PATH}/{operation_id}"
