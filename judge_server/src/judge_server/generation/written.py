"""What a model wrote, read as the shape it was asked for: believed where it is that, thrown away where it is not."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from judge_server.generation.discards import DiscardReason, RubricDiscarded
from judge_server.judging.items import MAX_JSON_TEXT_CHARACTERS, excerpt
from judge_server.judging.tolerant_json import ParsedValue, find_values

Shape = TypeVar("Shape", bound=BaseModel)

_LENGTH_ERRORS: dict[str, DiscardReason] = {"too_long": "too_many", "too_short": "too_few"}
"""pydantic's words for lists of the wrong length, and ours."""


def read_shape(shape: type[Shape], text: str, *, cut: bool) -> Shape:
    """The last whole JSON value of a text that has the shape; a bare list fills a shape whose only field is one.

    Words around it, code fences, comments and other dialects of JSON are passed over. Nothing is mended.

    Raises:
        Discarded: `unreadable`, `cut_short`, `shape_error`, or `too_few` and `too_many` where a list of the shape has
            the wrong length.
    """
    beginning_text = excerpt(text)
    if len(text) > MAX_JSON_TEXT_CHARACTERS:
        raise RubricDiscarded(
            "unreadable", f"it wrote {len(text)} characters, and at most {MAX_JSON_TEXT_CHARACTERS} are read"
        )
    found = list(find_values(text))
    complete = [one for one in found if one.ended == "whole"]
    discard: RubricDiscarded | None = None
    for one in reversed(complete):
        try:
            return shape.model_validate(_as_object(shape, one))
        except ValidationError as error:
            discard = discard or _to_discard(error)
    if cut and (not complete or found[-1].ended != "whole"):
        raise RubricDiscarded("cut_short", f"it ended at its limit of tokens; it began {beginning_text!r}")
    if discard is not None:
        raise discard
    raise RubricDiscarded("unreadable", _why_unreadable(found, beginning_text))


def _as_object(shape: type[BaseModel], found: ParsedValue) -> object:
    fields = list(shape.model_fields)
    if isinstance(found.value, list) and len(fields) == 1:
        return {fields[0]: found.value}
    return found.value


def _to_discard(error: ValidationError) -> RubricDiscarded:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    detail = f"{place}: {first['msg']}" if place else first["msg"]
    return RubricDiscarded(_LENGTH_ERRORS.get(first["type"], "wrong_shape"), detail)


def _why_unreadable(found: Sequence[ParsedValue], beginning_text: str) -> str:
    if not beginning_text:
        return "it wrote nothing"
    if not found:
        return f"no JSON in what it wrote, which began {beginning_text!r}"
    how = "ends in the middle" if found[-1].ended == "cut" else "stops being JSON"
    return f"what it wrote {how}; it began {beginning_text!r}"
