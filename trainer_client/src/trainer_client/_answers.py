"""Reads HTTP answers: a message of the wire contract, or the typed error that the answer stands for."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

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
