"""The rubric of a row, in any of the forms that a column of a dataset can hold.

A column holds one type: references, or lists of criteria, or `{"criteria": […]}`, or any of these as JSON text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from trainer_client.wire import RubricContent
from trainer_client.wire.problems import field_errors

Rubric = str | RubricContent
"""A reference, or the criteria themselves."""


def read_rubric(given: object, *, padded: bool = False) -> Rubric | None:
    """Read a rubric; None where there is none, which empty text says too.

    Args:
        given: what a row or the user names.
        padded: whether it comes from a dataset, where Arrow gives every mapping of a column the keys of all, with
            None. Those are dropped; a rubric to which a null matters goes into JSON text, of which nothing is.

    Raises:
        ValueError: it is none of the forms, or breaks the wire contract.
    """
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
        return RubricContent.model_validate(_without_none(fields) if padded else fields)
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))
        raise ValueError("; ".join(f"{w.field}: {w.message}".removeprefix(": ") for w in wrong[:3])) from error


def _read_text(text: str) -> Rubric | None:
    if not text.startswith(("[", "{")):
        return text or None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this begins like JSON and is none: {error}") from None
    return read_rubric(parsed)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(held) for key, held in value.items() if held is not None}
    if isinstance(value, list | tuple):
        return [_without_none(held) for held in value]
    return value
