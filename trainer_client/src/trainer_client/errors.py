"""All errors that the client raises, derived from `AdjudgeError`.

If the service answered with an error, the exception has the HTTP `status`, the `request_id` (quote it when asking for
help) and the `problem` document, if there was one.
"""

from typing import ClassVar

from trainer_client.wire.problems import FieldError, Problem, error_url


class AdjudgeError(Exception):
    """The base class of the client's errors.

    Attributes:
        status: the HTTP status; None if there was no answer.
        request_id: the service's id of the request; None if the answer had none.
        problem: the problem document; None if the answer had none.
        errors: the invalid fields of the request.
        retryable: whether the same request may succeed later. The client has already retried as often as it may.
        retry_after_s: the seconds that the service asked to wait; None if it did not.
        documentation_url: the address of the documentation about this error, which tracebacks show too.
    """

    code: ClassVar[str] = "internal"
    """The error's section in the reference of errors, if there is no problem document that names it."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        problem: Problem | None = None,
        errors: tuple[FieldError, ...] = (),
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id
        self.problem = problem
        self.errors = errors
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.documentation_url = (problem and problem.documentation_url) or error_url(self.code)
        self.add_note(f"see {self.documentation_url}")


class InvalidRequest(AdjudgeError):
    """The request is invalid. `status` is None if the client found this out before sending it."""

    code = "invalid-request"


class RubricRefused(InvalidRequest):
    """The rubric does not suit the requested mode or protocol."""

    code = "unsuitable-rubric"


class RubricRetired(InvalidRequest):
    """The rubric is retired. The message names a replacement, and says how to use the retired rubric anyway."""

    code = "retired-rubric"


class AliasMoved(AdjudgeError):
    """Another request moved the alias. `problem.current_version` is its current version, None if it was removed."""

    code = "alias-moved"


class WeightsChanged(AdjudgeError):
    """The judge has other weights than the request expects, because somebody else changed them."""

    code = "weights-changed"


class Unauthorized(AdjudgeError):
    """The service requires an API key, or the key is invalid; set the client's `api_key`."""

    code = "unauthorized"


class Forbidden(AdjudgeError):
    """The API key does not have the required scope."""

    code = "forbidden"


class NotFound(AdjudgeError):
    """The service has nothing at this URL; `base_url` may be wrong."""

    code = "not-found"


class UnknownRubric(NotFound):
    """There is no such rubric, or no such version of it."""

    code = "unknown-rubric"


class InProgress(AdjudgeError):
    """A request with the same idempotency key is still in progress after the client's retries."""

    code = "in-progress"


class Overloaded(AdjudgeError):
    """The service is still overloaded after the client's retries."""

    code = "overloaded"


class BudgetExhausted(AdjudgeError):
    """The project has used up its prompt tokens. `retry_after_s` says when it gets more; None if never."""

    code = "budget-exhausted"


class JudgingFailed(AdjudgeError):
    """Judging a criterion that the reward needs failed, and `on_failure` is `error`."""

    code = "judging-failed"


class NotReady(AdjudgeError):
    """The service is starting, stopping, or waiting for its store or judge."""

    code = "not-ready"


class ServerError(AdjudgeError):
    """The service failed, or a proxy answered in its place."""


class MismatchedAnswer(ServerError):
    """The answer belongs to another request, or lacks a part of its own. None of it is used.

    Look for a proxy between client and service that caches or mixes up answers.
    """

    code = "mismatched-answer"


class ConnectionFailed(AdjudgeError):
    """The connection to the service failed, or broke before the answer was complete.

    Check that the service runs, and the address: `adjudge doctor` and `GET /readyz` say more. The client has already
    tried again as often as it may.
    """

    code = "connection-failed"


class TimedOut(AdjudgeError):
    """The service did not answer in time.

    The judge may be overloaded: raise `deadline_s` and the client's `timeout_s`, or send fewer responses at once.
    """

    code = "timed-out"


_OUTAGES: dict[type[AdjudgeError], str] = {
    ConnectionFailed: "unreachable",
    TimedOut: "timeout",
    Overloaded: "overloaded",
    NotReady: "not_ready",
    MismatchedAnswer: "mismatched",
    ServerError: "server",
}


def outage_kind(error: AdjudgeError) -> str | None:
    """Return the kind of failure under which an outage of the service is logged; None if the request is at fault."""
    return next((kind for known, kind in _OUTAGES.items() if isinstance(error, known)), None)


# The names that other SDKs use for the same errors.
AuthenticationError = Unauthorized
RateLimitError = Overloaded
APIConnectionError = ConnectionFailed
APITimeoutError = TimedOut


ERROR_CLASSES: dict[str, type[AdjudgeError]] = {
    "urn:adjudge:invalid-request": InvalidRequest,
    "urn:adjudge:unsuitable-rubric": RubricRefused,
    "urn:adjudge:retired-rubric": RubricRetired,
    "urn:adjudge:alias-moved": AliasMoved,
    "urn:adjudge:weights-changed": WeightsChanged,
    "urn:adjudge:precondition-required": InvalidRequest,
    "urn:adjudge:method-not-allowed": InvalidRequest,
    "urn:adjudge:unsupported-media-type": InvalidRequest,
    "urn:adjudge:too-large": InvalidRequest,
    "urn:adjudge:too-slow": ConnectionFailed,
    "urn:adjudge:in-progress": InProgress,
    "urn:adjudge:unauthorized": Unauthorized,
    "urn:adjudge:forbidden": Forbidden,
    "urn:adjudge:unknown-rubric": UnknownRubric,
    "urn:adjudge:not-found": NotFound,
    "urn:adjudge:overloaded": Overloaded,
    "urn:adjudge:rate-limited": Overloaded,
    "urn:adjudge:budget-exhausted": BudgetExhausted,
    "urn:adjudge:judging-failed": JudgingFailed,
    "urn:adjudge:not-ready": NotReady,
    "urn:adjudge:internal": ServerError,
}
"""The class of each problem type. For types that this version does not know, use `error_class_for_status`."""


def error_class_for_status(status: int) -> type[AdjudgeError]:
    """Return the class for a problem of an unknown type."""
    by_status: dict[int, type[AdjudgeError]] = {
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        429: Overloaded,
        503: NotReady,
    }
    return by_status.get(status, InvalidRequest if 400 <= status < 500 else ServerError)
