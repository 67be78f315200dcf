"""Every error the client raises, as one tree under `AdjudgeError`.

An error that the service answered carries its HTTP `status`, its `request_id` (name it when asking for help)
and, where the answer was a problem document, that `problem`.
"""

from trainer_client.wire.problems import FieldError, Problem


class AdjudgeError(Exception):
    """Anything that went wrong between the client and the service.

    Attributes:
        status: HTTP status, None where no answer came.
        request_id: the service's id of the request, None where it gave none.
        problem: the problem document, None where the answer was none.
        errors: what is wrong with which field of the request.
        retryable: whether the same request may succeed later; the client has already retried what it may.
        retry_after_s: how many seconds the service asked to wait, None where it did not.
    """

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


class InvalidRequest(AdjudgeError):
    """The request cannot succeed as it is. Raised before sending, without a status, where the client can
    tell."""


class RubricRefused(InvalidRequest):
    """The rubric cannot feed the mode or protocol that was asked for."""


class RubricRetired(InvalidRequest):
    """The rubric is retired; the message says what to use instead, and how to use it all the same."""


class AliasMoved(AdjudgeError):
    """Somebody else moved the alias; `problem.current_version` is the version it stands for, None for none."""


class Unauthorized(AdjudgeError):
    """The service needs an API key, or the one given opens nothing; give the client `api_key`."""


class Forbidden(AdjudgeError):
    """The key does not have the scope that this takes."""


class NotFound(AdjudgeError):
    """The service knows nothing at this address; `base_url` may be wrong."""


class UnknownRubric(NotFound):
    """There is no such rubric, or no such version of it."""


class InProgress(AdjudgeError):
    """The same request, under the same key, is still being worked on; the client waited as long as it may."""


class Overloaded(AdjudgeError):
    """The service sheds load; the client waited and tried again as often as it may."""


class BudgetExhausted(AdjudgeError):
    """The project has used the prompt tokens that it may use; `retry_after_s` says when it may use more, if ever."""


class JudgingFailed(AdjudgeError):
    """The judge gave no verdict on a criterion that the reward needs, and `on_failure` is `error`."""


class NotReady(AdjudgeError):
    """The service is starting, stopping or waiting for its store or judge."""


class ServerError(AdjudgeError):
    """The service failed, or something between it and the client answered in its place."""


class ConnectionFailed(AdjudgeError):
    """No connection to the service, or it broke before the whole answer came."""


class TimedOut(AdjudgeError):
    """The service did not answer in time."""


ERROR_CLASSES: dict[str, type[AdjudgeError]] = {
    "urn:adjudge:invalid-request": InvalidRequest,
    "urn:adjudge:unsuitable-rubric": RubricRefused,
    "urn:adjudge:retired-rubric": RubricRetired,
    "urn:adjudge:alias-moved": AliasMoved,
    "urn:adjudge:precondition-required": InvalidRequest,
    "urn:adjudge:method-not-allowed": InvalidRequest,
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
"""The class of each problem type; `error_class_for_status` serves the types that a newer service may have."""


def error_class_for_status(status: int) -> type[AdjudgeError]:
    """Give the class for a problem whose type is not known here."""
    named: dict[int, type[AdjudgeError]] = {
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        429: Overloaded,
        503: NotReady,
    }
    return named.get(status, InvalidRequest if 400 <= status < 500 else ServerError)
