"""Errors that concern a whole request, each with its HTTP status and problem type.

What can go wrong with a whole request, as classes that know their HTTP status and problem type.

A verdict that could not be had is not here: that is a `CallFailure`, an outcome among others.

Halves of surrogate pairs, which JSON can spell and no encoding carries. Models and engines write them.
"""

from trainer_client.wire import FieldError, ProblemType


class ServiceError(Exception):
    """A request that gets a problem instead of an answer."""

    type: ProblemType = "urn:adjudge:internal"
    title = "Internal error"
    status = 500
    retryable = False
    current_version: int | None = None
    challenge: str | None = None
    """What `WWW-Authenticate` says, where a key would help."""

    def __init__(self, detail: str, *, errors: tuple[FieldError, ...] = (), retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors
        self.retry_after_s = retry_after_s


class InvalidRequest(ServiceError):
    """The request cannot be read; `errors` names the fields."""

    type = "urn:adjudge:invalid-request"
    title = "Invalid request"
    status = 422


class UnknownRubric(ServiceError):
    """A rubric reference that stands for nothing."""

    type = "urn:adjudge:unknown-rubric"
    title = "Unknown rubric"
    status = 404


class RubricRefused(ServiceError):
    """A rubric that the asked-for reward mode cannot use."""

    type = "urn:adjudge:unsuitable-rubric"
    title = "Unsuitable rubric"
    status = 422


class RubricRetired(ServiceError):
    """A version that is taken out of use, asked for without `allow_retired`."""

    type = "urn:adjudge:retired-rubric"
    title = "Retired rubric"
    status = 422


class AliasMoved(ServiceError):
    """An alias that does not stand for the version the request expects; `current_version` is what it stands for."""

    type = "urn:adjudge:alias-moved"
    title = "Alias moved"
    status = 412

    def __init__(self, detail: str, current_version: int | None) -> None:
        super().__init__(detail)
        self.current_version = current_version


class PreconditionRequired(ServiceError):
    """A change that must say what it expects to find, and does not."""

    type = "urn:adjudge:precondition-required"
    title = "Precondition required"
    status = 428


class TooLarge(ServiceError):
    """A body above the size limit."""

    type = "urn:adjudge:too-large"
    title = "Request too large"
    status = 413


class TooSlow(ServiceError):
    """A body that comes too slowly."""

    type = "urn:adjudge:too-slow"
    title = "Request too slow"
    status = 408
    retryable = True


class InProgress(ServiceError):
    """A request under the same `Idempotency-Key` that is not answered yet."""

    type = "urn:adjudge:in-progress"
    title = "In progress"
    status = 409
    retryable = True


class Overloaded(ServiceError):
    """The queue has no room for the request's calls."""

    type = "urn:adjudge:overloaded"
    title = "Overloaded"
    status = 429
    retryable = True


class Unauthorized(ServiceError):
    """No key, or none that opens anything."""

    type = "urn:adjudge:unauthorized"
    title = "Unauthorized"
    status = 401
    challenge = 'Bearer realm="adjudge"'


class Forbidden(ServiceError):
    """A key that does not open this."""

    type = "urn:adjudge:forbidden"
    title = "Forbidden"
    status = 403


class RateLimited(ServiceError):
    """More requests than a project may send, or more unknown keys than anybody may try."""

    type = "urn:adjudge:rate-limited"
    title = "Rate limited"
    status = 429
    retryable = True


class BudgetExhausted(ServiceError):
    """A project has used the prompt tokens that it may use; `retry_after_s` is when it may use more, if ever."""

    type = "urn:adjudge:budget-exhausted"
    title = "Budget exhausted"
    status = 429


class JudgingFailed(ServiceError):
    """Some verdict failed and the request's failure policy is `error`."""

    type = "urn:adjudge:judging-failed"
    title = "Judging failed"
    status = 502
    retryable = True


class NotReady(ServiceError):
    """The process cannot judge yet, or any more."""

    type = "urn:adjudge:not-ready"
    title = "Not ready"
    status = 503
    retryable = True


class EngineUnavailable(Exception):
    """An engine that cannot be asked: it is not started, closed, or its process has died."""


class EngineStartError(Exception):
    """An engine that cannot start; the message says why and the way out."""


class EngineNotReady(EngineStartError):
    """An engine whose endpoint does not answer yet, or has too much to do: the same start may succeed later."""


def replace_lone_surrogates(text: str) -> str:
    """The text with its surrogate pairs joined; a half by itself becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
