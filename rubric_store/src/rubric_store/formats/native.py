"""Our own format: `{"criteria": [{"id", "description", "kind", "weight", "tags"}]}`, as the API takes it."""

from pydantic import ValidationError

from rubric_store.formats.errors import FormatError, first_problem
from rubric_store.formats.json_text import parse_json
from trainer_client.wire import RubricContent


def read(text: str) -> RubricContent:
    """Read a rubric from JSON text; raises `FormatError` naming the line or field."""
    return from_json(parse_json(text))


def from_json(value: object) -> RubricContent:
    """Read a rubric from parsed JSON; raises `FormatError` naming the field."""
    if not isinstance(value, dict):
        raise FormatError("JSON", 'expected an object {"criteria": […]}')
    try:
        return RubricContent.model_validate(value)
    except ValidationError as error:
        raise first_problem(error, "") from None
