"""From what verl tells of a response to a group of the wire: the columns of `extra_info`, read and checked.

Knows the columns by their names. Sends nothing.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from trainer_client.errors import InvalidRequest
from trainer_client.wire import Group, RubricContent
from trainer_client.wire.problems import field_errors

_STEP_FIELD = "max_global_steps"


def read_row(solution: str, ground_truth: object, extra_info: Mapping[str, Any] | None) -> Group:
    """Read one response as a group of its own; equal prompts with equal columns get equal ids.

    Args:
        solution: the response, decoded.
        ground_truth: text or a number; None or empty text where there is none.
        extra_info: may hold `prompt` (or verl's own `question`), `rubric`, `grounding` and `reference_answer`. What
            else it holds, verl's own entries among it, is not looked at.

    Raises:
        InvalidRequest: a column is none of what it may be; names the column.
    """
    columns = {} if extra_info is None else extra_info
    prompt = columns.get("prompt")
    prompt = columns.get("question") if prompt is None else prompt
    if prompt is None:
        raise InvalidRequest(
            "verl tells a reward function nothing of the prompt; give extra_info a 'prompt': text, or messages"
        )
    fields: dict[str, Any] = {
        "prompt": _plain(prompt),
        "grounding": columns.get("grounding"),
        "reference_answer": _as_text("extra_info.reference_answer", columns.get("reference_answer")),
        "ground_truth": _as_text("ground_truth", ground_truth),
        "rubric": read_rubric(columns.get("rubric")),
    }
    try:
        group = Group.model_validate({"id": "g", "responses": [solution], **fields})
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
        raise InvalidRequest(f"extra_info: {wrong.field}: {wrong.message}") from error
    shared = json.dumps(group.model_dump(exclude={"id", "responses"}), sort_keys=True)
    return group.model_copy(update={"id": hashlib.sha256(shared.encode()).hexdigest()[:32]})


def read_rubric(given: object) -> str | RubricContent | None:
    """Read a rubric: a reference, a list of criteria, `{"criteria": […]}`, or JSON text of one of these.

    Parquet gives every mapping of a column the keys of all, with None; those are dropped. Nothing is dropped of JSON
    text.

    Raises:
        InvalidRequest: it is none of these.
    """
    if isinstance(given, str):
        text = given.strip()
        if not text.startswith(("[", "{")):
            return text or None
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"rubric: this begins like JSON and is none: {error}") from None
    else:
        given = _plain(given)
    if given is None or isinstance(given, RubricContent):
        return given
    try:
        return RubricContent.model_validate({"criteria": given} if isinstance(given, list) else given)
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))
        raise InvalidRequest("rubric: " + "; ".join(f"{w.field}: {w.message}" for w in wrong[:3])) from error


def policy_version(extra_info: Mapping[str, Any] | None) -> int | None:
    """Give the training step whose weights finished the response, where verl tells it."""
    step = (extra_info or {}).get(_STEP_FIELD)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None


def _plain(value: Any) -> Any:
    """Give mappings and sequences of any library as dicts and lists, without the None that Parquet fills up with."""
    if isinstance(value, Mapping):
        return {key: _plain(held) for key, held in value.items() if held is not None}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(held) for held in value]
    return value


def _as_text(name: str, value: Any) -> str | None:
    """Give a value as text: numbers, which ground truths often are, as they are written by hand."""
    value = value.item() if getattr(value, "shape", None) == () else value  # a number of numpy's
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, int | float):
        return str(int(value)) if float(value).is_integer() else repr(value)
    raise InvalidRequest(f"{name} is of type {type(value).__name__}; it must be text or a number")
