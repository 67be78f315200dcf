"""The shapes that generators ask their models for: engines hold a model to the bounds, reading is more lenient.

What is out of bounds is so read, and refused by `judge_server.generation.structure` under the reason that names it.
"""

import re
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema, create_model

ShapeT = TypeVar("ShapeT", bound=BaseModel)

_ESCAPED = re.compile(
    "[\b\f](?=[a-z])|\r(?=[a-z]{2})|\t(?=ext|imes|heta|an\\b|frac|riangle|au\\b|o\\b|herefore)|\n(?=eq\\b|abla\\b|otin\\b)"
)
_ESCAPE_LETTERS = {"\b": "b", "\f": "f", "\r": "r", "\t": "t", "\n": "n"}


def restore_backslashes(text: str) -> str:
    r"""LaTeX as it was meant: in JSON a model's `\frac` is a form feed and `rac`, and `\times` a tab and `imes`."""
    return _ESCAPED.sub(lambda found: "\\" + _ESCAPE_LETTERS[found[0]], text)


_ModelText = Annotated[str, AfterValidator(restore_backslashes)]

Sentence = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 5, "maxLength": 400})]
"""A sentence."""

ShortSentence = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 5, "maxLength": 300})]
"""A short sentence."""

Phrase = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 2, "maxLength": 60})]
"""A few words."""


def integer_schema(lowest: int, highest: int) -> Any:
    """The JSON Schema of a whole number from `lowest` to `highest`, for a field that reads any number."""
    return WithJsonSchema({"type": "integer", "minimum": lowest, "maximum": highest})


def enum_schema(*values: str) -> Any:
    """The JSON Schema of one of some words, for a field that reads any text."""
    return WithJsonSchema({"type": "string", "enum": list(values)})


def list_schema(item: Any, fewest: int, most: int) -> Any:
    """The JSON Schema of so many lines or phrases, for a field that reads any list of texts."""
    [schema] = [one.json_schema for one in item.__metadata__ if isinstance(one, WithJsonSchema)]
    return WithJsonSchema({"type": "array", "items": schema, "minItems": fewest, "maxItems": most})


def with_criteria(shape: type[ShapeT], fewest: int, most: int) -> type[ShapeT]:
    """A shape whose list `criteria` has `fewest` to `most` items."""
    made: type[ShapeT] = _bounded(shape, fewest, most)
    return made


@cache
def _bounded(shape: type[BaseModel], fewest: int, most: int) -> Any:
    bounded: Any = (shape.model_fields["criteria"].annotation, Field(min_length=fewest, max_length=most))
    return create_model(f"{shape.__name__}From{fewest}To{most}", __base__=shape, criteria=bounded)
