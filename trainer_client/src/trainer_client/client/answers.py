"""Read HTTP answers, whole or streamed: a message of the wire contract, or a typed error.

Reads HTTP answers: a message of the wire contract, or the typed error that the answer stands for.

Streamed rewards: what the lines of a streamed answer stand for, and the streams that users go through.

Knows nothing of connections, which `_connection` opens, reads and closes.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from trainer_client.errors import (
    ERROR_CLASSES,
    AdjudgeError,
    ConnectionFailed,
    ServerError,
    TimedOut,
    error_class_for_status,
)
from trainer_client.wire import GroupRewards, RewardAnswer, RewardEvent, RewardSummary
from trainer_client.wire.problems import Problem

AnswerT = TypeVar("AnswerT", bound=BaseModel)

_RETRYABLE_STATUSES = frozenset({429, 502, 503})
"""Where the answer is no problem document: a proxy sheds load, or cannot reach a service that restarts."""


def read_answer(response: httpx2.Response, answer: type[AnswerT]) -> AnswerT:
    """Read an answer; fields that this version does not know are ignored.

    Raises:
        AdjudgeError: the answer is an error, or no such message.
    """
    if not response.is_success:
        raise error_for(response)
    try:
        return answer.model_validate_json(response.content)
    except ValidationError as error:
        raise ServerError(
            f"the answer is no {answer.__name__}; is this the address of an Adjudge of this version? "
            f"(status {response.status_code}: {_body_excerpt(response)})",
            status=response.status_code,
            request_id=response.headers.get("X-Request-Id"),
        ) from error


def is_ready(response: httpx2.Response) -> bool:
    """Whether `/readyz` said yes.

    Raises:
        AdjudgeError: the answer is neither a yes nor a server's no, so that waiting would not help.
    """
    if not response.is_success and response.status_code < 500:
        raise error_for(response)
    return response.is_success


def error_for(response: httpx2.Response) -> AdjudgeError:
    """Make the typed error of an answer that is no success."""
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
    """Make the typed error of a problem document."""
    more = [error for error in problem.errors if error.message not in problem.detail]
    fields = "".join(f"; {error.field}: {error.message}" for error in more)
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
    """Turn the HTTP library's errors into the client's own.

    A connection that cannot be made or that breaks is worth another try, as every request may be repeated.
    One that ran out of time is not: the service may still be at it.
    """
    try:
        yield
    except httpx2.RequestError as error:
        raise _error_for_transport(error, base_url) from error
    except AttributeError as error:
        if "getpeername" not in str(error):
            raise
        # of a connection reset as it is made, httpx2 asks uvloop for a socket that is gone
        message = f"the connection to {base_url} broke as it was made; check that it is still up"
        raise ConnectionFailed(message, retryable=True) from error


def _error_for_transport(error: httpx2.RequestError, base_url: str) -> AdjudgeError:
    kind = type(error).__name__
    if isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
        return TimedOut(f"no answer from {base_url} in time ({kind}); give the client a larger timeout_s")
    if isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError):
        return ConnectionFailed(
            f"the connection to {base_url} broke ({kind}: {error}); check that it is still up", retryable=True
        )
    return ConnectionFailed(
        f"cannot reach {base_url} ({kind}: {error}); check the address and that it is up",
        retryable=isinstance(error, httpx2.ConnectTimeout | httpx2.NetworkError | httpx2.ProxyError),
    )


def _retry_after_s(headers: httpx2.Headers) -> float | None:
    """Read Retry-After: seconds, or an HTTP date, read by the answer's own clock where it gives one."""
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
"""JSON texts, each ended by a line feed. Nothing else ends a line: U+2028 may stand in a text."""

_EXCERPT_BYTES = 200


class RewardStreamParser:
    """The lines of one streamed answer, read from bytes as they come.

    Attributes:
        begun: whether a group was given out, so that the request can no longer be sent again unseen.
        summary: the summary, once it came.
    """

    def __init__(self, base_url: str) -> None:
        self.started = False
        self.summary: RewardSummary | None = None
        self._base_url = base_url
        self._request_id: str | None = None
        self._buffer: list[bytes] = []

    def is_stream(self, response: httpx2.Response) -> bool:
        """Whether an answer comes in lines; one that does not must be read whole and given to `whole`."""
        self._request_id = response.headers.get("X-Request-Id")
        self._buffer = []
        return response.is_success and NDJSON in response.headers.get("Content-Type", "")

    def feed(self, piece: bytes) -> Iterator[GroupRewards]:
        """Give the groups whose lines end in this piece of the answer.

        Raises:
            AdjudgeError: the problem that a line told of.
            ServerError: a line is none of the contract.
        """
        ending, *others = piece.split(b"\n")
        self._buffer.append(ending)
        for beginning in others:
            line = b"".join(self._buffer)
            self._buffer = [beginning]
            yield from self._read(line)

    def end(self) -> None:
        """Say that the answer is over.

        Raises:
            ConnectionFailed: it had no summary, so that something is missing.
        """
        if self.summary is None:
            raise ConnectionFailed(
                f"the answer of {self._base_url} was cut off before its summary (request {self._request_id}); "
                "the groups that came are whole, ask again for the others",
                request_id=self._request_id,
                retryable=True,
            )

    def parse_whole(self, response: httpx2.Response) -> Iterator[GroupRewards]:
        """Give the groups of an answer in one piece, as a service sends it that cannot stream.

        Raises:
            AdjudgeError: the answer is an error, or no rewards.
        """
        answer = read_answer(response, RewardAnswer)
        self.summary = RewardSummary.model_validate(answer.model_dump(exclude={"groups"}))
        yield from answer.groups

    def _read(self, line: bytes) -> Iterator[GroupRewards]:
        if self.summary is not None or not line.strip():
            return
        try:
            read = RewardEvent.model_validate_json(line)
        except ValidationError as error:
            raise ServerError(
                "a line of the answer is not a RewardEvent; is this the address of an Adjudge of this version? "
                f"({line[:_EXCERPT_BYTES].decode(errors='replace')})",
                status=200,
                request_id=self._request_id,
            ) from error
        if read.problem is not None:
            raise error_for_problem(read.problem, read.problem.status)
        self.summary = read.summary
        if read.group is not None:
            self.started = True
            yield read.group


class RewardStream(Iterator[GroupRewards]):
    """The groups of one request as they finish, in whatever order that is.

    The request is sent when the first group is asked for. `close`, or leaving a `with` block, closes the
    connection, upon which the service stops what is not done.
    """

    def __init__(self, groups: Generator[GroupRewards, None, None], parser: RewardStreamParser) -> None:
        self._groups = groups
        self._parser = parser

    @property
    def summary(self) -> RewardSummary:
        """Everything of the answer but its groups.

        Raises:
            RuntimeError: the stream was not gone through to its end.
        """
        return _summary(self._parser)

    def close(self) -> None:
        """Close the connection; there are no further groups. Once is enough, and more does no harm."""
        self._groups.close()

    def __next__(self) -> GroupRewards:
        return next(self._groups)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncRewardStream(AsyncIterator[GroupRewards]):
    """`RewardStream` for code in an event loop. Cancelling the task that waits for a group closes it too."""

    def __init__(self, groups: AsyncGenerator[GroupRewards, None], parser: RewardStreamParser) -> None:
        self._groups = groups
        self._parser = parser

    @property
    def summary(self) -> RewardSummary:
        """Everything of the answer but its groups; see `RewardStream.summary`."""
        return _summary(self._parser)

    async def aclose(self) -> None:
        """Close the connection; see `RewardStream.close`."""
        await self._groups.aclose()

    async def __anext__(self) -> GroupRewards:
        return await anext(self._groups)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _summary(parser: RewardStreamParser) -> RewardSummary:
    if parser.summary is None:
        raise RuntimeError("the summary comes after the last group, and this stream has not come to its end")
    return parser.summary
