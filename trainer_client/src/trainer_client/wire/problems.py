"""Errors on the wire: RFC 9457 problem details, with what a client needs to decide whether to try again."""

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
    """One thing wrong with a request: the dotted path of the field and what is wrong with it."""

    field: str
    message: str


class Problem(AnswerModel):
    """An RFC 9457 problem: `type` is stable, `detail` says what to do, `retryable` whether the same may work later.

    `current_version` is what an alias stands for that somebody else moved.
    """

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    retryable: bool
    errors: tuple[FieldError, ...] = ()
    current_version: int | None = None


def field_errors(errors: Iterable[Mapping[str, Any]]) -> tuple[FieldError, ...]:
    """Pydantic's errors as field errors: `groups.0.rubric.criteria.2.weight`, in the request's own terms.

    An error about a container is left out where something inside it is wrong: it only follows from that. At most
    `MAX_ERRORS` are given, the first ones.
    """
    listed = list(errors)
    inside = {tuple(error["loc"][:n]) for error in listed for n in range(len(error["loc"]))}
    causes = [error for error in listed if tuple(error["loc"]) not in inside]
    return tuple([FieldError(field=_path(error), message=_message(error)) for error in causes[:MAX_ERRORS]])


def _path(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return ""
    # A union's tag stands in the location in parentheses; `body` is where FastAPI found it.
    return ".".join(str(part) for part in error["loc"] if part != "body" and not str(part).startswith("("))


def _message(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    match error["type"]:
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
            return "this text holds half a surrogate pair, which is no character; decode it with errors='replace'"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")
