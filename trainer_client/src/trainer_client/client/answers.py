"""What a request expects, and its HTTP answer, whole or streamed: a message of the wire contract, or a typed error.

This module does no I/O; `trainer_client.client.connection` sends the requests and reads the bytes.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from trainer_client.client.matching import ExpectedGroups, as_sent, summary_problem, unequal
from trainer_client.errors import (
    ERROR_CLASSES,
    AdjudgeError,
    ConnectionFailed,
    MismatchedAnswer,
    ServerError,
    TimedOut,
    error_class_for_status,
)
from trainer_client.wire import GroupRewards, RewardAnswer, RewardEvent, RewardRequest, RewardSummary
from trainer_client.wire.ledger import ExportEvent, RecomputeEvent
from trainer_client.wire.problems import Problem

AnswerT = TypeVar("AnswerT", bound=BaseModel)

_RETRYABLE_STATUSES = frozenset({429, 502, 503})
"""Retryable statuses of answers without a problem document: a proxy is overloaded, or the service restarts."""


@dataclass(frozen=True)
class PreparedRequest(Generic[AnswerT]):
    """A request ready to be sent, and the model of its answer.

    `content` is its message, or the bytes of one. `min_timeout_s` is the read timeout if that is longer than the
    client's own. `accept` is the requested media type if it is not JSON. `headers` are additional headers, such as
    conditions and idempotency keys. A request that is not `repeatable` is sent once: its first attempt may have
    succeeded though no answer came. `expected` are fields that the answer repeats, and `mismatch` says how it differs
    otherwise from what was asked for, None if it does not (`trainer_client.client.matching`). `rewards` is the request
    for rewards, whose answer may be read group by group.
    """

    method: str
    path: str
    answer: type[AnswerT]
    content: BaseModel | bytes | None = None
    params: Mapping[str, str | list[str]] = field(default_factory=dict)
    min_timeout_s: float = 0.0
    accept: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    expected: Mapping[str, object] = field(default_factory=dict)
    mismatch: Callable[[AnswerT], str | None] = field(default=lambda _: None)
    rewards: RewardRequest | None = None

    @property
    def body(self) -> bytes | None:
        """The bytes of the message."""
        return to_json_bytes(self.content) if isinstance(self.content, BaseModel) else self.content

    def check(self, answer: AnswerT, request_id: str | None) -> None:
        """Refuse an answer that does not belong to this request.

        Raises:
            MismatchedAnswer: it differs from what was asked for.
        """
        self.refuse(unequal(self.expected, answer) or self.mismatch(answer), request_id)

    def refuse(self, problem: str | None, request_id: str | None) -> None:
        """Raise `MismatchedAnswer` if there is a problem; `request_id` is the service's id of the answer."""
        if problem is not None:
            raise MismatchedAnswer(
                f"the answer to {self.method} {self.path} is not that of this request: {problem} (request "
                f"{request_id}). Nothing of it is used. Check what stands between client and service: a proxy, a "
                "cache, or a connection that two processes share",
                status=200,
                request_id=request_id,
            )


def to_json_bytes(message: BaseModel) -> bytes:
    """Encode only the fields that were set, so that an older service gets no field that it does not know.

    Half a surrogate pair, which JSON cannot carry, becomes U+FFFD. Both are one code point, so spans stay right.
    """
    try:
        return message.model_dump_json(exclude_unset=True, exclude_none=True).encode()
    except PydanticSerializationError:
        given = message.model_dump(exclude_unset=True, exclude_none=True)
        return as_sent(json.dumps(given, ensure_ascii=False)).encode()


def read_answer(response: httpx2.Response, request: PreparedRequest[AnswerT]) -> AnswerT:
    """Parse the answer to a request, ignoring unknown fields.

    Raises:
        AdjudgeError: the answer is an error, or not a valid message.
        MismatchedAnswer: the answer belongs to another request, or lacks a part of its own.
    """
    if not response.is_success:
        raise error_for(response)
    request_id = response.headers.get("X-Request-Id")
    try:
        answer = request.answer.model_validate_json(response.content)
    except ValidationError as error:
        raise ServerError(
            f"the answer is not a valid {request.answer.__name__}; check that base_url is an Adjudge service of this "
            f"version (status {response.status_code}: {_body_excerpt(response)})",
            status=response.status_code,
            request_id=request_id,
        ) from error
    request.check(answer, request_id)
    return answer


def readiness_error(response: httpx2.Response) -> AdjudgeError | None:
    """Return the error with which `/readyz` says that the service is not ready; None if it is ready.

    Raises:
        AdjudgeError: the status is neither a success nor a server error, so that waiting would not help.
    """
    if response.is_success:
        return None
    error = error_for(response)
    if response.status_code < 500:
        raise error
    return error


def error_for(response: httpx2.Response) -> AdjudgeError:
    """Return the typed error of an unsuccessful answer."""
    status = response.status_code
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return ServerError(
            f"status {status}, not from Adjudge: {_body_excerpt(response)}",
            status=status,
            request_id=response.headers.get("X-Request-Id"),
            retryable=status in _RETRYABLE_STATUSES,
            retry_after_s=_retry_after_s(response.headers),
        )
    return error_for_problem(problem, status, _retry_after_s(response.headers))


def error_for_problem(problem: Problem, status: int, retry_after_s: float | None = None) -> AdjudgeError:
    """Return the typed error of a problem document."""
    further = [error for error in problem.errors if error.message not in problem.detail]
    fields = "".join(f"; {error.field}: {error.message}" for error in further)
    error_class = ERROR_CLASSES.get(problem.type) or error_class_for_status(status)
    return error_class(
        f"{problem.detail}{fields} (status {status}, request {problem.request_id})",
        status=status,
        request_id=problem.request_id,
        problem=problem,
        errors=problem.errors,
        retryable=problem.retryable,
        retry_after_s=retry_after_s,
    )


@contextmanager
def typed_errors(base_url: str) -> Iterator[None]:
    """Convert the HTTP library's errors to the client's own.

    Failed and broken connections are retryable, since all requests are safe to repeat. Timeouts are not: the service
    may still be working on the request.
    """
    try:
        yield
    except httpx2.RequestError as error:
        raise _error_for_transport(error, base_url) from error
    except AttributeError as error:
        if "getpeername" not in str(error):
            raise
        # If a connection is reset while it is opened, httpx2 asks uvloop for a socket that no longer exists.
        message = f"the connection to {base_url} broke while it was opened; check that the service is up"
        raise ConnectionFailed(message, retryable=True) from error


def _error_for_transport(error: httpx2.RequestError, base_url: str) -> AdjudgeError:
    kind = type(error).__name__
    if isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
        return TimedOut(f"no answer from {base_url} in time ({kind}); use a larger timeout_s")
    if isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError):
        return ConnectionFailed(
            f"the connection to {base_url} broke ({kind}: {error}); check that the service is up", retryable=True
        )
    return ConnectionFailed(
        f"cannot reach {base_url} ({kind}: {error}); check the URL, and that the service is up",
        retryable=isinstance(error, httpx2.ConnectTimeout | httpx2.NetworkError | httpx2.ProxyError),
    )


def _retry_after_s(headers: httpx2.Headers) -> float | None:
    """Parse Retry-After: seconds, or an HTTP date, which is compared with the answer's `Date` if it has one."""
    given = headers.get("Retry-After", "").strip()
    if given.isascii() and given.isdigit():
        return float(given)
    try:
        until = parsedate_to_datetime(given)
        now = parsedate_to_datetime(headers["Date"]) if "Date" in headers else datetime.now(UTC)
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _body_excerpt(response: httpx2.Response) -> str:
    return response.text[:200].strip() or "an empty answer"


NDJSON = "application/x-ndjson"
"""JSON texts, each terminated by a line feed. No other character ends a line: a text may contain U+2028."""

_EXCERPT_BYTES = 200


EventT = TypeVar("EventT", RewardEvent, RecomputeEvent, ExportEvent)


async def lines_of(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the lines of an answer, without their line feeds, as they arrive."""
    begun: list[bytes] = []
    async for piece in pieces:
        end, *starts = piece.split(b"\n")
        begun.append(end)
        for start in starts:
            yield b"".join(begun)
            begun = [start]


def read_event(line: bytes, event: type[EventT], base_url: str, request_id: str | None) -> EventT:
    """Read a line of a streamed answer.

    Raises:
        AdjudgeError: the line holds a problem.
        ServerError: the line breaks the wire contract.
    """
    try:
        read = event.model_validate_json(line)
    except ValidationError as error:
        raise ServerError(
            f"a line of the answer of {base_url} is not a valid {event.__name__}; check that base_url is an Adjudge "
            f"service of this version ({line[:_EXCERPT_BYTES].decode(errors='replace')})",
            status=200,
            request_id=request_id,
        ) from error
    if read.problem is not None:
        raise error_for_problem(read.problem, read.problem.status)
    return read


def cut_off_error(base_url: str, request_id: str | None, remedy: str) -> ConnectionFailed:
    """The error of a streamed answer that ends before its summary."""
    return ConnectionFailed(
        f"the answer of {base_url} was cut off before its summary (request {request_id}); {remedy}",
        request_id=request_id,
        retryable=True,
    )


class RewardStreamParser:
    """Parser of one streamed answer, line by line.

    Args:
        base_url: the service's URL, for messages.
        request: the request for rewards.

    Attributes:
        started: whether a group has been read, after which the request cannot be retried.
        summary: the summary, once it has arrived.
        retried_error: the error after which the request is being sent again; None once the service answers.
    """

    def __init__(self, base_url: str, request: PreparedRequest[RewardAnswer]) -> None:
        assert request.rewards is not None
        self.started = False
        self.retried_error: AdjudgeError | None = None
        self.summary: RewardSummary | None = None
        self._base_url = base_url
        self._request = request
        self._asked: RewardRequest = request.rewards
        self._expected = ExpectedGroups(request.rewards)
        self._request_id: str | None = None

    def is_stream(self, response: httpx2.Response) -> bool:
        """Whether a successful answer is streamed in lines; if not, pass the whole answer to `parse_whole`."""
        self._request_id = response.headers.get("X-Request-Id")
        self._expected = ExpectedGroups(self._asked)
        self.retried_error = None
        return NDJSON in response.headers.get("Content-Type", "")

    def read(self, line: bytes) -> GroupRewards | None:
        """Return the group of a line; None if the line has none, or comes after the summary.

        Raises:
            AdjudgeError: the line holds a problem.
            ServerError: the line breaks the wire contract.
            MismatchedAnswer: a group was not asked for, or some are missing at the summary.
        """
        if self.summary is not None or not line.strip():
            return None
        event = read_event(line, RewardEvent, self._base_url, self._request_id)
        if event.summary is not None:
            problem = self._expected.missing() or summary_problem(self._asked, event.summary)
            self._request.refuse(problem, self._request_id)
            self.summary = event.summary
        if event.group is not None:
            self._request.refuse(self._expected.take(event.group), self._request_id)
            self.started = True
        return event.group

    def end(self) -> None:
        """Check that the answer is complete when the stream has ended.

        Raises:
            ConnectionFailed: it had no summary.
        """
        if self.summary is None:
            remedy = "the groups received are complete, request the others again"
            raise cut_off_error(self._base_url, self._request_id, remedy)

    def parse_whole(self, response: httpx2.Response) -> Iterator[GroupRewards]:
        """Yield the groups of an answer that is not streamed.

        Raises:
            AdjudgeError: the answer is an error, or not a valid message.
        """
        answer = read_answer(response, self._request)
        self.summary = RewardSummary.model_validate(answer.model_dump(exclude={"groups"}))
        yield from answer.groups


class AsyncRewardStream(AsyncIterator[GroupRewards]):
    """The groups of one request, in the order in which they finish.

    The request is sent when you request the first group. `aclose`, leaving an `async with` block, or cancelling the
    task that waits for a group closes the connection, and the service then cancels the groups that are not done.
    """

    def __init__(self, groups: AsyncGenerator[GroupRewards, None], parser: RewardStreamParser) -> None:
        self._groups = groups
        self._parser = parser

    @property
    def summary(self) -> RewardSummary:
        """The answer without its groups.

        Raises:
            RuntimeError: the stream has not been read to its end.
        """
        if self._parser.summary is None:
            raise RuntimeError("the stream has no summary before its end; read all of its groups first")
        return self._parser.summary

    @property
    def retried_error(self) -> AdjudgeError | None:
        """The error after which the request is being sent again; None once the service answers."""
        return self._parser.retried_error

    async def aclose(self) -> None:
        """Close the connection and end the stream. Closing it again has no effect."""
        await self._groups.aclose()

    async def __anext__(self) -> GroupRewards:
        return await anext(self._groups)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
