"""Read rubrics and ground truths from the columns of a dataset.

A column has one type. Rubrics are references, lists of criteria, objects `{"criteria": […]}`, or any of these as JSON
text. Ground truths are text or numbers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from trainer_client.wire import RubricContent
from trainer_client.wire.problems import field_errors

RubricOrReference = str | RubricContent
"""A rubric's reference, or its criteria."""


def parse_rubric(given: object, *, drop_nulls: bool = False) -> RubricOrReference | None:
    """Read a rubric; None and empty text mean that there is none.

    Args:
        given: the value of a row, or of a user's argument.
        drop_nulls: drop keys whose value is None. Set this for values of a dataset, where Arrow pads every object of a
            column with the keys of all others. Nothing is dropped from JSON text, so use that for a rubric in which a
            null matters.

    Raises:
        ValueError: the value has none of these forms, or breaks the wire contract.
    """
    given = to_plain_data(given) if drop_nulls and not isinstance(given, RubricContent) else given
    if given is None or isinstance(given, RubricContent):
        return given
    if isinstance(given, str):
        return _read_text(given.strip())
    fields = {"criteria": given} if isinstance(given, Sequence) else given
    if not isinstance(fields, Mapping):
        raise ValueError(
            f"a rubric cannot be of type {type(given).__name__}; give a reference, a list of criteria, or JSON text"
        )
    try:
        return RubricContent.model_validate(fields)
    except ValidationError as error:
        errors = field_errors(error.errors(include_url=False, include_input=False))
        raise ValueError("; ".join(f"{e.field}: {e.message}".removeprefix(": ") for e in errors[:3])) from error


def is_empty_rubric(given: object) -> bool:
    """Whether a row's value is a rubric without criteria: an empty list, `{"criteria": []}`, or JSON text of these."""
    given = to_plain_data(given)
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip().startswith(("[", "{")) else None
        except (ValueError, RecursionError):
            return False
    if isinstance(given, Mapping):
        given = given.get("criteria", given or [])
    return given in ([], {})


def _read_text(text: str) -> RubricOrReference | None:
    if not text.startswith(("[", "{")):
        return text or None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this begins like JSON but is invalid: {error}") from None
    return parse_rubric(parsed)


def to_plain_data(value: Any) -> Any:
    """Convert mappings and sequences of any library to dicts and lists, without keys whose value is None."""
    if isinstance(value, Mapping):
        return {key: to_plain_data(item) for key, item in value.items() if item is not None}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain_data(item) for item in value]
    return value


def as_text(name: str, value: Any) -> str | None:
    """Convert a value to text. Numbers, common as ground truths, are written as by hand: 2.0 becomes `2`.

    Raises:
        ValueError: the value is neither text nor a number; the message calls it `name`.
    """
    value = value.item() if getattr(value, "shape", None) == () else value  # a numpy scalar
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None  # pandas writes a missing value as NaN
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"{name} is of type {type(value).__name__}; it must be text or a number")
