"""Rubric-Grounded's format: criteria with nine fields, alone or in the paper's record.

The nine are id, name, description, weight (at least 0), required_elements, scoring_guide, expected_keywords,
expected_concepts and verification_method. Of a record, question, question_rationale, document_analysis and doc_hash are
kept as metadata; the passage is not read, since judges get it as grounding.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, ValidationError

from rubric_store.formats.documents import (
    Changes,
    FormatError,
    InvalidValueError,
    RubricDocument,
    find_list,
    read_items,
    validation_problems,
)
from rubric_store.formats.native import dump_json, plain_number
from trainer_client.wire import Criterion
from trainer_client.wire.base import RequestModel
from trainer_client.wire.criteria import GUIDANCE_FIELDS

PATHS = (("criteria",),)
METADATA_FIELDS = ("question", "question_rationale", "document_analysis", "doc_hash")
"""Fields of a record that are kept as metadata."""

_EXPECTED = (
    'a list of criteria {"id", "name", "description", "weight", "required_elements", …}, alone or under "criteria"'
)


class _Item(RequestModel):
    id: str
    description: str
    weight: Annotated[float, Field(strict=True, ge=0)]
    name: str | None = None
    required_elements: tuple[str, ...] = ()
    scoring_guide: str | None = None
    expected_keywords: tuple[str, ...] = ()
    expected_concepts: tuple[str, ...] = ()
    verification_method: str | None = None


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole record or just its criteria; raises `InvalidValueError`."""
    path, items = find_list(value, PATHS, _EXPECTED)

    def fields(_: int, item: _Item) -> dict[str, Any]:
        return {name: given for name, given in item.model_dump().items() if given != ""}

    content = read_items(items, path, _Item, fields, changes=changes).content
    record = value if isinstance(value, dict) else {}
    metadata = {key: record[key] for key in METADATA_FIELDS if key in record}
    try:
        return RubricDocument(content=content, metadata=metadata or None)
    except ValidationError as error:
        raise InvalidValueError([(path[1:] or path, message) for path, message in validation_problems(error)]) from None


def write(document: RubricDocument) -> str:
    """Write the record as JSON, with all nine fields of every criterion.

    Raises:
        FormatError: a criterion has a negative weight, or is a pitfall: this format has no penalties.
    """
    criteria = document.content.criteria
    if error := FormatError.of_criteria(criteria, _unsupported):
        raise error
    metadata = {key: value for key, value in (document.metadata or {}).items() if key in METADATA_FIELDS}
    return dump_json({**metadata, "criteria": [_serialize(criterion) for criterion in criteria]})


def _unsupported(criterion: Criterion) -> Iterator[str]:
    if criterion.weight < 0:
        yield f"Rubric-Grounded has no negative weights, and this one is {criterion.weight:g}"
    if criterion.kind == "pitfall":
        yield "Rubric-Grounded has no pitfalls; reword it as what a good response does"


def _serialize(criterion: Criterion) -> dict[str, Any]:
    guidance = {field: getattr(criterion, field) for field in GUIDANCE_FIELDS}
    shown = {field: list(value) if isinstance(value, tuple) else value or "" for field, value in guidance.items()}
    return {
        "id": criterion.id,
        "weight": plain_number(criterion.weight),
        "name": shown.pop("name"),
        "description": criterion.description,
        **shown,
    }
