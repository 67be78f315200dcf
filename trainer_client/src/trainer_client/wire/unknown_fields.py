"""What to say of an unknown field: the fields that are known there, the one that was probably meant, and its place.

Imported when a request has an unknown field, since it walks through the models of the whole message.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag

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
