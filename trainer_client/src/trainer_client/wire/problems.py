"""Errors on the wire: RFC 9457 problem details, which say whether a retry can help and where the documentation is.

A problem with an unknown field names the known fields there, the one that was probably meant, and where it exists.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Field, Tag

from trainer_client.wire.base import MAX_ERRORS, AnswerModel
from trainer_client.wire.names import ALLOWED

SITE_URL = "https://adjudge.github.io/adjudge"
"""The site of the documentation. Below it is a folder for each minor version, such as `0.3`."""


class Meaning(NamedTuple):
    """What a code of a failure or of a finding means, and what to do about it."""

    meaning: str
    remedy: str


def error_url(code: str) -> str:
    """Return the address of the section about an error: a problem type without `urn:adjudge:`, or another code."""
    return _section("errors", code)


def findings_url(code: str = "") -> str:
    """Return the address of the section about a finding; without a code, of the page of all findings."""
    return _section("findings", code)


def formats_url() -> str:
    """Return the address of the page that shows the formats of rubrics."""
    return _section("formats", "")


def setting_url(variable: str) -> str:
    """Return the address of the section about a setting, such as ADJUDGE_PORT."""
    return _section("settings", variable.lower())


def _section(page: str, section: str) -> str:
    return f"{SITE_URL}/{_minor_version()}/reference/{page}/{'#' * bool(section)}{section}"


@cache
def _minor_version() -> str:
    major, minor, *_ = version("adjudge-client").split(".")
    return f"{major}.{minor}"


ProblemType = Literal[
    "urn:adjudge:invalid-request",
    "urn:adjudge:unknown-rubric",
    "urn:adjudge:unsuitable-rubric",
    "urn:adjudge:retired-rubric",
    "urn:adjudge:alias-moved",
    "urn:adjudge:weights-changed",
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


_TYPES = "urn:adjudge:"


def _documentation_url(given: Mapping[str, Any]) -> str | None:
    kind = given.get("type", "")
    return error_url(kind.removeprefix(_TYPES)) if kind.startswith(_TYPES) else None


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
        documentation_url: the address of the documentation about this type of problem: when it occurs, and what to do.
    """

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    retryable: bool
    errors: tuple[FieldError, ...] = ()
    current_version: int | None = None
    documentation_url: str | None = Field(default_factory=_documentation_url)


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
            return describe_unknown_field(message, [part for part in error["loc"] if part != "body"])
        case "extra_forbidden":
            return "unknown field; check its spelling"
        case "json_invalid":
            at = f" at character {error['loc'][-1]}" if error["loc"] else ""  # pydantic's own text says where
            return f"not JSON: {context.get('error', 'malformed')}{at}"
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
        case "string_pattern_mismatch" if context["pattern"] in ALLOWED:
            return ALLOWED[context["pattern"]]
        case "string_unicode":
            return "this text holds half a surrogate pair, which is not a character; decode it with errors='replace'"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


_MAX_PLACES = 3
_CONTAINERS = (tuple, list, set, frozenset)
_UNIONS = (Union, type(int | str))


def describe_unknown_field(message: Any, path: Sequence[int | str]) -> str:
    """Describe an unknown field of a message.

    Args:
        message: the type of the message: a model, or a union of models.
        path: the path of the field, as Pydantic reports it.
    """
    *parents, name = path
    types = [message]
    for part in parents:
        types = list(_step(types, part)) or types
    known = list(dict.fromkeys(field for model in _models(types) for field in _fields(model)))
    name, here = str(name), [part for part in parents if isinstance(part, int) or part[:1] != "("]
    own = ".".join(["*" if isinstance(part, int) else part for part in here] + [str(name)])
    places = [place for place in _places(message, name) if place != own]
    text = "unknown field"
    if places:
        text += f"; {name!r} belongs to {' or '.join(places[:_MAX_PLACES])}"
    elif similar := difflib.get_close_matches(name, known, 1):
        text += f"; did you mean {similar[0]!r}?"
    else:
        text += "; check its spelling"
    return f"{text}{'' if text.endswith('?') else '.'} Known here: {', '.join(known)}" if known else text


def _step(types: Sequence[Any], part: int | str) -> Iterator[Any]:
    """The types at the next part of a path: a field, the position in a list, or the tag of a union's member."""
    if isinstance(part, int):
        for each in _members(types):
            yield from _element_types(each)
        return
    fields = [_fields(model)[part] for model in _models(types) if part in _fields(model)]
    if fields:
        yield from fields
        return
    for each in _members(types, part):
        yield each


def _members(types: Sequence[Any], tag: str | None = None) -> Iterator[Any]:
    """The types without `Annotated` and unions around them; with a tag, only the members that it selects."""
    for each in types:
        if get_origin(each) is Annotated:
            tags = [item.tag for item in each.__metadata__ if isinstance(item, Tag)]
            if tag is None or not tags or tag in tags:
                yield from _members(get_args(each)[:1], None if tags else tag)
        elif get_origin(each) in _UNIONS:
            yield from _members(get_args(each), tag)
        elif tag is None or not isinstance(each, type) or _selects(each, tag):
            yield each


def _selects(member: type, tag: str) -> bool:
    """Whether a value of a field that is a constant of this type is the tag."""
    if not issubclass(member, BaseModel):
        return False
    annotations = [field.annotation for field in member.model_fields.values()]
    return any(get_origin(each) is Literal and get_args(each) == (tag,) for each in annotations)


def _models(types: Sequence[Any]) -> Iterator[type[BaseModel]]:
    for each in _members(types):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """The types of a model's fields, by the names that a message has them under."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _element_types(each: Any) -> Iterator[Any]:
    if get_origin(each) in _CONTAINERS:
        yield from (argument for argument in get_args(each) if argument is not Ellipsis)


def _places(message: Any, name: str) -> list[str]:
    """Where a message has a field of this name: paths such as `groups.*.prompt`, the shortest ones first."""
    found: list[str] = []
    seen: set[type] = set()
    waiting: list[tuple[Any, str]] = [(message, "")]
    while waiting:
        each, path = waiting.pop(0)
        for member in _members([each]):
            waiting += [(element, f"{path}*.") for element in _element_types(member)]
            if isinstance(member, type) and issubclass(member, BaseModel) and member not in seen:
                seen.add(member)
                fields = _fields(member)
                if name in fields:
                    found.append(f"{path}{name}")
                waiting += [(annotation, f"{path}{field}.") for field, annotation in fields.items()]
    return sorted(set(found), key=lambda place: place.count("."))
