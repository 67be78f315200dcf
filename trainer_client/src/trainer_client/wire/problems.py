"""Errors on the wire: RFC 9457 problem details that say whether a retry can help."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from trainer_client.wire.base import MAX_ERRORS, AnswerModel

ProblemType = Literal[
    "urn:adjudge:invalid-request",
    "urn:adjudge:unknown-rubric",
    "urn:adjudge:unsuitable-rubric",
    "urn:adjudge:retired-rubric",
    "urn:adjudge:alias-moved",
    "urn:adjudge:precondition-required",
    "urn:adjudge:unauthorized",
    "urn:adjudge:forbidden",
    "urn:adjudge:not-found",
    "urn:adjudge:method-not-allowed",
    "urn:adjudge:unsupported-media-type",
    "urn:adjudge:too-large",
    "urn:adjudge:too-slow",
    "urn:adjudge:in-progress",
    "urn:adjudge:overloaded",
    "urn:adjudge:rate-limited",
    "urn:adjudge:budget-exhausted",
    "urn:adjudge:judging-failed",
    "urn:adjudge:not-ready",
    "urn:adjudge:internal",
]


class FieldError(AnswerModel):
    """An invalid field of a request: its dotted path, and what is wrong with it.

    Attributes:
        field: the path of the field, such as `groups.0.prompt`; empty for the whole body.
        message: what is wrong with it, and what to do.
    """

    field: str
    message: str


class Problem(AnswerModel):
    """An RFC 9457 problem document.

    Attributes:
        type: a stable identifier of the kind of problem.
        title: its name.
        status: the HTTP status.
        detail: what is wrong, and what to do.
        retryable: whether the same request may succeed later.
        errors: the invalid fields of the request.
        current_version: the version that an alias points to, if another request moved it.
    """

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    retryable: bool
    errors: tuple[FieldError, ...] = ()
    current_version: int | None = None


def field_errors(errors: Iterable[Mapping[str, Any]], message: Any = None) -> tuple[FieldError, ...]:
    """Convert Pydantic's errors to field errors with paths such as `groups.0.rubric.criteria.2.weight`.

    An error of a container is left out if it also has an error inside, which is the cause. Returns at most the first
    `MAX_ERRORS`. If `message`, the type of the message, is given, unknown fields are described by what it knows.
    """
    listed = list(errors)
    containers = {tuple(error["loc"][:n]) for error in listed for n in range(len(error["loc"]))}
    causes = [error for error in listed if tuple(error["loc"]) not in containers]
    return tuple([FieldError(field=_path(error), message=_message(error, message)) for error in causes[:MAX_ERRORS]])


def _path(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return ""
    # Leave out the parts that are not in the request: a union's tag, in parentheses, and FastAPI's `body`.
    return ".".join(str(part) for part in error["loc"] if part != "body" and not str(part).startswith("("))


def _message(error: Mapping[str, Any], message: Any) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden" if message is not None:
            from trainer_client.wire.unknown_fields import describe_unknown_field

            return describe_unknown_field(message, [part for part in error["loc"] if part != "body"])
        case "extra_forbidden":
            return "unknown field; check its spelling"
        case "json_invalid":
            return f"not JSON: {context.get('error', 'malformed')} at character {error['loc'][-1]}"
        case "too_short":
            return f"needs at least {context['min_length']}, has {context['actual_length']}"
        case "too_long":
            return f"takes at most {context['max_length']}, has {context['actual_length']}"
        case "tuple_type" if error["loc"][-1:] == ("(messages)",):
            return "expected text, or a list of messages"
        case "tuple_type":
            return "expected a list"
        case "model_type" | "model_attributes_type" if error["loc"][-1:] == ("(response)",):
            return "expected text, a list of messages, or an object with its text"
        case "model_type" if error["loc"][-1:] == ("(inline)",):
            return "expected a rubric's reference, or an object with its criteria"
        case "string_unicode":
            return "this text holds half a surrogate pair, which is not a character; decode it with errors='replace'"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")
