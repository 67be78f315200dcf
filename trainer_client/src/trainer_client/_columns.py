"""What a dataset's columns hold for the judge, in any of the forms that they can hold it in.

A column holds one type. Of rubrics: references, or lists of criteria, or `{"criteria": […]}`, or any of these as JSON
text. Of ground truths: text, or numbers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from trainer_client.wire import RubricContent
from trainer_client.wire.problems import field_errors

RubricOrReference = str | RubricContent
"""A reference, or the criteria themselves."""


def parse_rubric(given: object, *, drop_nulls: bool = False) -> RubricOrReference | None:
    """Read a rubric; None where there is none, which empty text says too.

    Args:
        given: what a row or the user names.
        padded: whether it comes from a dataset, where Arrow gives every mapping of a column the keys of all, with
            None. Those are dropped; a rubric to which a null matters goes into JSON text, of which nothing is.

    Raises:
        ValueError: it is none of the forms, or breaks the wire contract.
    """
    given = to_plain_data(given) if drop_nulls and not isinstance(given, RubricContent) else given
    if given is None or isinstance(given, RubricContent):
        return given
    if isinstance(given, str):
        return _read_text(given.strip())
    fields = {"criteria": given} if isinstance(given, Sequence) else given
    if not isinstance(fields, Mapping):
        raise ValueError(
            f"no rubric is of type {type(given).__name__}; give a reference, a list of criteria, or JSON text"
        )
    try:
        return RubricContent.model_validate(fields)
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))
        raise ValueError("; ".join(f"{w.field}: {w.message}".removeprefix(": ") for w in wrong[:3])) from error


def is_empty_rubric(given: object) -> bool:
    """Whether a row's value says that it has no criteria: an empty list, `{"criteria": []}`, or JSON text of one."""
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
        raise ValueError(f"this begins like JSON and is none: {error}") from None
    return parse_rubric(parsed)


def to_plain_data(value: Any) -> Any:
    """Give mappings and sequences of any library as dicts and lists, without the None that columns fill up with."""
    if isinstance(value, Mapping):
        return {key: to_plain_data(item) for key, item in value.items() if item is not None}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain_data(item) for item in value]
    return value


def as_text(name: str, value: Any) -> str | None:
    """Give a value as text: numbers, which ground truths often are, as they are written by hand.

    Raises:
        ValueError: it is neither text nor a number.
    """
    value = value.item() if getattr(value, "shape", None) == () else value  # a number of numpy's
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None  # how pandas says that there is none
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"{name} is of type {type(value).__name__}; it must be text or a number")
