"""What a model wrote, read as the shape it was asked for: believed where it is that, thrown away where it is not."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from judge_server.generation.discards import Discarded, DiscardReason
from judge_server.judging.items import MOST_CHARACTERS, beginning
from judge_server.judging.tolerant_json import Found, find_values

Shape = TypeVar("Shape", bound=BaseModel)

_COUNTED: dict[str, DiscardReason] = {"too_long": "too_many", "too_short": "too_few"}
"""pydantic's words for lists of the wrong length, and ours."""


def read_shape(shape: type[Shape], text: str, *, cut: bool) -> Shape:
    """The last whole JSON value of a text that has the shape; a bare list fills a shape whose only field is one.

    Words around it, code fences, comments and other dialects of JSON are passed over. Nothing is mended.

    Raises:
        Discarded: `unreadable`, `cut_short`, `wrong_shape`, or `too_few` and `too_many` where a list of the shape has
            the wrong length.
    """
    began = beginning(text)
    if len(text) > MOST_CHARACTERS:
        raise Discarded("unreadable", f"it wrote {len(text)} characters, and at most {MOST_CHARACTERS} are read")
    found = list(find_values(text))
    whole = [one for one in found if one.ended == "whole"]
    wrong: Discarded | None = None
    for one in reversed(whole):
        try:
            return shape.model_validate(_as_object(shape, one))
        except ValidationError as error:
            wrong = wrong or _wrong(error)
    if cut and (not whole or found[-1].ended != "whole"):
        raise Discarded("cut_short", f"it ended at its limit of tokens; it began {began!r}")
    if wrong is not None:
        raise wrong
    raise Discarded("unreadable", _why_unreadable(found, began))


def _as_object(shape: type[BaseModel], found: Found) -> object:
    fields = list(shape.model_fields)
    if isinstance(found.value, list) and len(fields) == 1:
        return {fields[0]: found.value}
    return found.value


def _wrong(error: ValidationError) -> Discarded:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    detail = f"{place}: {first['msg']}" if place else first["msg"]
    return Discarded(_COUNTED.get(first["type"], "wrong_shape"), detail)


def _why_unreadable(found: Sequence[Found], began: str) -> str:
    if not began:
        return "it wrote nothing"
    if not found:
        return f"no JSON in what it wrote, which began {began!r}"
    how = "ends in the middle" if found[-1].ended == "cut" else "stops being JSON"
    return f"what it wrote {how}; it began {began!r}"
