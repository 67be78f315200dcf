"""From what verl tells of a response to a group of the wire: the columns of `extra_info`, read and checked.

Knows the columns by their names. Sends nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trainer_client import _columns
from trainer_client._columns import RubricOrReference, as_text, to_plain_data
from trainer_client.errors import InvalidRequest
from trainer_client.wire import Group
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
        "prompt": to_plain_data(prompt),
        "grounding": columns.get("grounding"),
    }
    try:
        fields["reference_answer"] = as_text("extra_info.reference_answer", columns.get("reference_answer")) or None
        fields["ground_truth"] = as_text("ground_truth", ground_truth) or None
        fields["rubric"] = read_rubric(columns.get("rubric"))
        group = Group.model_validate({"id": "g", "responses": [solution], **fields})
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
        raise InvalidRequest(f"extra_info: {wrong.field}: {wrong.message}") from error
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    shared = json.dumps(group.model_dump(exclude={"id", "responses"}), sort_keys=True)
    return group.model_copy(update={"id": hashlib.sha256(shared.encode()).hexdigest()[:32]})


def read_rubric(given: object) -> RubricOrReference | None:
    """Read a rubric: a reference, a list of criteria, `{"criteria": […]}`, or JSON text of one of these.

    Raises:
        InvalidRequest: it is none of these.
    """
    try:
        return _columns.parse_rubric(given, drop_nulls=True)
    except ValueError as error:
        raise InvalidRequest(f"rubric: {error}") from error


def policy_version(extra_info: Mapping[str, Any] | None) -> int | None:
    """Give the training step whose weights finished the response, where verl tells it."""
    step = (extra_info or {}).get(_STEP_FIELD)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None
