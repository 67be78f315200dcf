"""Errors that concern a whole request, each with its HTTP status and problem type.

A failed verdict does not fail its request: it is a `CallFailure`, one of the outcomes of a call.
"""

from typing import ClassVar, cast

from trainer_client.wire import FieldError, ProblemType


class ServiceError(Exception):
    """An error that is returned to the caller as a problem: by itself, an unexpected one.

    The log of the service has the reason, under the request id. Report it with that id.
    """

    code: ClassVar[str] = "internal"
    """The section of the reference of errors, and the end of the type."""

    type: ProblemType = "urn:adjudge:internal"
    title = "Internal error"
    status = 500
    retryable = False
    current_version: int | None = None
    challenge: str | None = None
    """The `WWW-Authenticate` header of the response, if a key would help."""

    def __init_subclass__(cls, *, code: str, status: int, title: str = "", retryable: bool = False) -> None:
        """Declare a problem; its title is the code in words, unless it has another."""
        cls.code, cls.type = code, cast("ProblemType", f"urn:adjudge:{code}")
        cls.title = title or code.replace("-", " ").capitalize()
        cls.status, cls.retryable = status, retryable

    def __init__(self, detail: str, *, errors: tuple[FieldError, ...] = (), retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors
        self.retry_after_s = retry_after_s


class InvalidRequest(ServiceError, code="invalid-request", status=422):
    """The request is invalid: `errors` names the fields.

    A field is unknown or has a wrong value, the judge cannot do what is asked, or the request is not valid HTTP.
    Correct the fields. The message of an unknown field says which field you probably meant, and where it belongs. The
    status is 400 for what is not valid HTTP.
    """


def invalid_request(errors: tuple[FieldError, ...]) -> InvalidRequest:
    """Create an `InvalidRequest` whose detail names the first field and the number of further errors."""
    first = errors[0]
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return InvalidRequest(f"{first.field or 'body'}: {first.message}{more}", errors=errors)


def invalid_field(field: str, message: str) -> InvalidRequest:
    """Create an `InvalidRequest` about one field; an empty name stands for the whole body."""
    return invalid_request((FieldError(field=field, message=message),))


class NotFound(ServiceError, code="not-found", status=404):
    """Nothing has the name that the request gives; `title` says what was looked for.

    Check the path, the name and the project of your key. A wrong base URL gives this too: `GET /docs` lists the routes.
    """

    def __init__(self, detail: str, *, title: str = "Not found") -> None:
        super().__init__(detail)
        self.title = title


def unknown_run(lack: str) -> NotFound:
    """Create a `NotFound` about a run, or a part of one, that the ledger does not have."""
    return NotFound(
        f"The ledger has {lack}. `adjudge runs` and GET /v1/runs list the runs; requests of the last second may not be "
        "written yet",
        title="Unknown run",
    )


class UnknownRubric(ServiceError, code="unknown-rubric", status=404):
    """No rubric matches the reference.

    The detail names the closest match. `adjudge rubrics list` and `adjudge rubrics search` find rubrics. A rubric of
    another project is unknown too.
    """


class RubricRefused(ServiceError, code="unsuitable-rubric", status=422):
    """The rubric cannot be used with the requested reward mode. Nothing was judged.

    The detail names the criterion and says what to change. The reference of modes says what each mode refuses.
    """


class RubricRetired(ServiceError, code="retired-rubric", status=422):
    """The rubric version is retired, and the request does not set `allow_retired`.

    The detail has the reason, and the replacement if there is one. Use the replacement, or set `allow_retired`.
    """


class AliasMoved(ServiceError, code="alias-moved", status=412):
    """The alias does not point to the version the request expects; `current_version` is the one it points to.

    Somebody else moved the alias. Look at that version, and send the change again with it in `If-Match`.
    """

    def __init__(self, detail: str, current_version: int | None) -> None:
        super().__init__(detail)
        self.current_version = current_version


class WeightsChanged(ServiceError, code="weights-changed", status=412):
    """The judge has other weights than the request expects."""


class PreconditionRequired(ServiceError, code="precondition-required", status=428):
    """The change requires a precondition such as `If-Match`, and the request has none.

    Send `If-Match` with the version that the alias points to, or `If-None-Match: *` for a new alias.
    """


class MethodNotAllowed(ServiceError, code="method-not-allowed", status=405, title="Method Not Allowed"):
    """The address does not support this method.

    The header `Allow` lists those that it supports.
    """


class UnsupportedMediaType(ServiceError, code="unsupported-media-type", status=415):
    """The body's `Content-Type` is not one that the route takes.

    Send `Content-Type: application/json`.
    """


class TooLarge(ServiceError, code="too-large", status=413, title="Request too large"):
    """The body, the path and query, or the headers exceed a size limit.

    The status is 413, 414 or 431 accordingly. Send fewer groups in one request, or raise ADJUDGE_MAX_BODY_BYTES. The
    status is also 413 if a request alone has more judge calls than ADJUDGE_QUEUE_CALLS.
    """


class TooSlow(ServiceError, code="too-slow", status=408, title="Request too slow", retryable=True):
    """The head or the body arrives too slowly.

    Send it faster and without pauses, or raise ADJUDGE_CLIENT_TIMEOUT_S on the server.
    """


class InProgress(ServiceError, code="in-progress", status=409, retryable=True):
    """An earlier request with the same `Idempotency-Key` is still being processed.

    Send the request again after the time in `Retry-After`. The answer is then that of the first request.
    """


class Overloaded(ServiceError, code="overloaded", status=429, retryable=True):
    """The request's calls exceed the limits of the queue, or all connections are in use.

    Send the request again after the time in `Retry-After`. If this happens often, send fewer responses at once, add
    judges, or raise ADJUDGE_QUEUE_CALLS. The status is 503 if all connections of the process are in use.
    """


class Unauthorized(ServiceError, code="unauthorized", status=401):
    """The API key is missing or invalid.

    Send a key in `Authorization: Bearer …`, or set ADJUDGE_API_KEY for the client. `adjudge keys create` makes one.
    """

    challenge = 'Bearer realm="adjudge"'


class Forbidden(ServiceError, code="forbidden", status=403):
    """The key does not permit this request.

    The detail names the scope that the key lacks. Create a key that has it.
    """


class RateLimited(ServiceError, code="rate-limited", status=429, retryable=True):
    """The project exceeds its request rate, or too many unknown keys are being tried.

    Send the request again after the time in `Retry-After`. `adjudge projects limits` shows and sets the rate.
    """


class BudgetExhausted(ServiceError, code="budget-exhausted", status=429):
    """The project has used up its prompt tokens; `Retry-After` says when it gets more, if it does.

    `adjudge projects limits` shows and sets the budgets. A daily budget begins again at midnight UTC.
    """


class JudgingFailed(ServiceError, code="judging-failed", status=502, retryable=True):
    """A verdict failed or is uncertain, a reward needs it, and the request's policy is `error`.

    The detail counts the failures by kind. The verdicts that succeeded are cached, so the same request judges only what
    is missing. Choose another `on_failure` to get the other rewards.
    """


class NotReady(ServiceError, code="not-ready", status=503, retryable=True):
    """The process, or a part that the request needs, is not ready or no longer available.

    The judge is loading, no judge is available, or the store or the cache does not respond. Try again after the time in
    `Retry-After`. If it lasts, `GET /readyz` and `adjudge doctor` name the part.
    """


class EngineUnavailable(Exception):
    """The engine is not started, is closed, or its process has died.

    Wait until it is restarted, or start it. The log of the judge has the reason.
    """

    code = "engine-unavailable"


class CannotSleep(EngineUnavailable):
    """The engine has no way to release its model's memory as it was started; the message says how to start it."""


class CannotLoad(EngineUnavailable):
    """The engine cannot load these weights, and has those before; the message says why."""


class EngineStartError(Exception):
    """The engine cannot start; the message says why and what to do.

    `adjudge doctor URL` tries an engine by itself, and prints what it finds.
    """

    code = "engine-start"


class EngineNotReady(EngineStartError):
    """The engine's endpoint does not answer yet or is overloaded; the same start may succeed later."""


def replace_lone_surrogates(text: str) -> str:
    """Join the surrogate pairs of a text and replace lone surrogates by U+FFFD.

    Models and engines produce lone surrogates, which JSON can escape but no encoding can represent.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
