"""Errors that concern a whole request, each with its HTTP status and problem type.

A failed verdict does not fail its request: it is a `CallFailure`, one of the outcomes of a call.
"""

from trainer_client.wire import FieldError, ProblemType


class ServiceError(Exception):
    """An error that is returned to the caller as a problem."""

    type: ProblemType = "urn:adjudge:internal"
    title = "Internal error"
    status = 500
    retryable = False
    current_version: int | None = None
    challenge: str | None = None
    """The `WWW-Authenticate` header of the response, if a key would help."""

    def __init__(self, detail: str, *, errors: tuple[FieldError, ...] = (), retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors
        self.retry_after_s = retry_after_s


class InvalidRequest(ServiceError):
    """The request is malformed; `errors` names the fields."""

    type = "urn:adjudge:invalid-request"
    title = "Invalid request"
    status = 422


def invalid_request(errors: tuple[FieldError, ...]) -> InvalidRequest:
    """Create an `InvalidRequest` whose detail names the first field and the number of further errors."""
    first = errors[0]
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return InvalidRequest(f"{first.field or 'body'}: {first.message}{more}", errors=errors)


def invalid_field(field: str, message: str) -> InvalidRequest:
    """Create an `InvalidRequest` about one field; an empty name stands for the whole body."""
    return invalid_request((FieldError(field=field, message=message),))


class NotFound(ServiceError):
    """Nothing has the name that the request gives; `title` says what was looked for."""

    type = "urn:adjudge:not-found"
    title = "Not found"
    status = 404

    def __init__(self, detail: str, *, title: str = "Not found") -> None:
        super().__init__(detail)
        self.title = title


class UnknownRubric(ServiceError):
    """No rubric matches the reference."""

    type = "urn:adjudge:unknown-rubric"
    title = "Unknown rubric"
    status = 404


class RubricRefused(ServiceError):
    """The rubric cannot be used with the requested reward mode."""

    type = "urn:adjudge:unsuitable-rubric"
    title = "Unsuitable rubric"
    status = 422


class RubricRetired(ServiceError):
    """The rubric version is retired, and the request does not set `allow_retired`."""

    type = "urn:adjudge:retired-rubric"
    title = "Retired rubric"
    status = 422


class AliasMoved(ServiceError):
    """The alias does not point to the version the request expects; `current_version` is the one it points to."""

    type = "urn:adjudge:alias-moved"
    title = "Alias moved"
    status = 412

    def __init__(self, detail: str, current_version: int | None) -> None:
        super().__init__(detail)
        self.current_version = current_version


class WeightsChanged(ServiceError):
    """The judge has other weights than the request expects."""

    type = "urn:adjudge:weights-changed"
    title = "Weights changed"
    status = 412


class PreconditionRequired(ServiceError):
    """The change requires a precondition such as `If-Match`, and the request has none."""

    type = "urn:adjudge:precondition-required"
    title = "Precondition required"
    status = 428


class UnsupportedMediaType(ServiceError):
    """The body's `Content-Type` is not one that the route takes."""

    type = "urn:adjudge:unsupported-media-type"
    title = "Unsupported media type"
    status = 415


class TooLarge(ServiceError):
    """The body exceeds a size limit."""

    type = "urn:adjudge:too-large"
    title = "Request too large"
    status = 413


class TooSlow(ServiceError):
    """The body arrives too slowly."""

    type = "urn:adjudge:too-slow"
    title = "Request too slow"
    status = 408
    retryable = True


class InProgress(ServiceError):
    """An earlier request with the same `Idempotency-Key` is still being processed."""

    type = "urn:adjudge:in-progress"
    title = "In progress"
    status = 409
    retryable = True


class Overloaded(ServiceError):
    """The request's calls exceed the limits of the queue."""

    type = "urn:adjudge:overloaded"
    title = "Overloaded"
    status = 429
    retryable = True


class Unauthorized(ServiceError):
    """The API key is missing or invalid."""

    type = "urn:adjudge:unauthorized"
    title = "Unauthorized"
    status = 401
    challenge = 'Bearer realm="adjudge"'


class Forbidden(ServiceError):
    """The key does not permit this request."""

    type = "urn:adjudge:forbidden"
    title = "Forbidden"
    status = 403


class RateLimited(ServiceError):
    """The project exceeds its request rate, or too many unknown keys are being tried."""

    type = "urn:adjudge:rate-limited"
    title = "Rate limited"
    status = 429
    retryable = True


class BudgetExhausted(ServiceError):
    """The project has used up its prompt tokens; `retry_after_s` says when it gets more, if it does."""

    type = "urn:adjudge:budget-exhausted"
    title = "Budget exhausted"
    status = 429


class JudgingFailed(ServiceError):
    """A verdict failed and the request's failure policy is `error`."""

    type = "urn:adjudge:judging-failed"
    title = "Judging failed"
    status = 502
    retryable = True


class NotReady(ServiceError):
    """The process, or a part that the request needs, is not ready or no longer available."""

    type = "urn:adjudge:not-ready"
    title = "Not ready"
    status = 503
    retryable = True


class EngineUnavailable(Exception):
    """The engine is not started, is closed, or its process has died."""


class CannotSleep(EngineUnavailable):
    """The engine has no way to release its model's memory as it was started; the message says how to start it."""


class CannotLoad(EngineUnavailable):
    """The engine cannot load these weights, and has those before; the message says why."""


class EngineStartError(Exception):
    """The engine cannot start; the message says why and what to do."""


class EngineNotReady(EngineStartError):
    """The engine's endpoint does not answer yet or is overloaded; the same start may succeed later."""


def replace_lone_surrogates(text: str) -> str:
    """Join the surrogate pairs of a text and replace lone surrogates by U+FFFD.

    Models and engines produce lone surrogates, which JSON can escape but no encoding can represent.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
