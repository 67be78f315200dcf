"""Adjudge's own rubric format as JSON, `{"criteria": [{"id", "description", "kind", "weight", …}]}`, and its schema.

A file may also give `name`, `tags`, `metadata` and `lineage`. The format loses nothing of a rubric; YAML files have the
same shape.

`rubric.schema.json` is the output of `make_schema`, which `python -m rubric_store.formats.native` prints. Two rules are
checked on reading only, since a schema cannot express them: ids differ, and metadata is at most 64 KiB.
"""

import json
from typing import Any

from pydantic import Field, ValidationError

from rubric_store.formats.documents import (
    MAX_CRITERIA,
    Changes,
    InvalidValueError,
    Path,
    RubricDocument,
    RubricHeader,
    read_items,
    validation_problems,
)
from trainer_client.wire import Criterion

_ROW_FIELDS = frozenset(
    {
        *("id", "uid", "prompt_id", "example_id", "sample_id"),
        *("prompt", "responses", "ground_truth", "reference_answer", "grounding"),
        *("key", "line", "split", "source_digest", "digest", "flags", "parent", "record", "usage", "reference"),
    }
)
"""Fields of a row beside a rubric, of our own rows and of what `adjudge generate` writes. They are ignored."""


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric, or a list of criteria with ids, from parsed JSON or YAML.

    Raises:
        InvalidValueError: with all problems.
    """
    if isinstance(value, list) and all(isinstance(item, dict) and "id" in item for item in value):
        value = {"criteria": value}
    if not isinstance(value, dict):
        raise InvalidValueError.at((), 'expected an object {"criteria": […]}')
    fields = {str(key): inner for key, inner in value.items() if key not in _ROW_FIELDS}
    problems: list[tuple[Path, str]] = []
    content = None
    if "criteria" not in fields:
        problems.append((("criteria",), 'expected an object {"criteria": […]}: the field is required'))
    else:
        try:
            read = read_items(fields.pop("criteria"), ("criteria",), Criterion, lambda _, criterion: criterion)
            content = read.content
        except InvalidValueError as error:
            problems += error.found
    try:
        header = RubricHeader.model_validate(fields)
    except ValidationError as error:
        problems += validation_problems(error)
    if problems or content is None:
        raise InvalidValueError(problems)
    return RubricDocument(content=content, **header.model_dump())


def to_value(document: RubricDocument) -> dict[str, Any]:
    """A document as plain values, without defaults."""
    header = document.model_dump(mode="json", exclude={"content", "changes"}, exclude_defaults=True)
    return {**header, "criteria": [_criterion(criterion) for criterion in document.content.criteria]}


def write(document: RubricDocument) -> str:
    """A document as JSON text."""
    return dump_json(to_value(document))


def dump_json(value: object) -> str:
    """A value as indented JSON text."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def plain_number(value: float) -> float | int:
    """Convert an integral float to int, so that it is written 3 and not 3.0."""
    return int(value) if value.is_integer() and abs(value) < 1e15 and str(value)[:2] != "-0" else value


def _criterion(criterion: Criterion) -> dict[str, Any]:
    fields = criterion.model_dump(mode="json", exclude_defaults=True)
    if criterion.verification is not None:
        fields["verification"] = criterion.verification.model_dump(mode="json", exclude_defaults=True)
        fields["verification"] = {"method": criterion.verification.method, **fields["verification"]}
    if "weight" in fields:
        fields["weight"] = plain_number(criterion.weight)
    return fields


class Rubric(RubricHeader):
    """A rubric: what to check in a response, and what each check weighs."""

    criteria: tuple[Criterion, ...] = Field(min_length=1, max_length=MAX_CRITERIA)


def make_schema() -> dict[str, Any]:
    """Generate the JSON Schema (draft 2020-12) of a file in this format, JSON or YAML."""
    schema = Rubric.model_json_schema(by_alias=True)
    schema["properties"]["criteria"]["contains"] = {"properties": {"weight": {"exclusiveMinimum": 0}}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    print(json.dumps(make_schema(), indent=2, ensure_ascii=False))
