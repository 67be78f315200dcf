"""Adjudge's own rubric format, as JSON, and its JSON Schema.

Our own format: `{"criteria": [{"id", "description", "kind", "weight", …}]}`, and what stands beside.

A file may give `name`, `tags`, `metadata` and `lineage` beside the criteria. The same shape is written as JSON and as
YAML, and `rubric.schema.json` describes it. Nothing of a rubric is lost in it.

The JSON Schema of our own format, made from the models that read it; `rubric.schema.json` is what this returns.

`python -m rubric_store.formats.native` prints it. Two rules of a rubric no schema can say, and reading checks them all
the same: ids differ, and metadata is at most 64 KiB.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import Field, ValidationError

from rubric_store.formats.documents import (
    MAX_CRITERIA,
    InvalidValueError,
    Path,
    RubricDocument,
    RubricHeader,
    read_items,
    validation_problems,
)
from trainer_client.wire import Criterion


@cache
def json_schema() -> str:
    """The published JSON Schema (draft 2020-12) of the format, as text."""
    return (files("rubric_store.formats") / "rubric.schema.json").read_text(encoding="utf-8")


def from_value(value: object) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError` with everything that is wrong."""
    if not isinstance(value, dict):
        raise InvalidValueError([((), 'expected an object {"criteria": […]}')])
    given = {str(key): inner for key, inner in value.items()}
    found: list[tuple[Path, str]] = []
    content = None
    if "criteria" not in given:
        found.append((("criteria",), 'expected an object {"criteria": […]}: the field is required'))
    else:
        try:
            content = read_items(given.pop("criteria"), ("criteria",), Criterion, lambda _, criterion: criterion)
        except InvalidValueError as error:
            found += error.found
    try:
        heading = RubricHeader.model_validate(given)
    except ValidationError as error:
        found += validation_problems(error)
    if found or content is None:
        raise InvalidValueError(found)
    return RubricDocument(content=content, **heading.model_dump())


def to_value(document: RubricDocument) -> dict[str, Any]:
    """A document as plain values; what is as it would be anyway is left out."""
    heading = document.model_dump(mode="json", exclude={"content"}, exclude_defaults=True)
    return {**heading, "criteria": [_criterion(criterion) for criterion in document.content.criteria]}


def write(document: RubricDocument) -> str:
    """A document as JSON text."""
    return dump_json(to_value(document))


def dump_json(value: object) -> str:
    """A value as indented JSON text."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def plain_number(value: float) -> float | int:
    """A number as people write it: 3, not 3.0."""
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
    """The schema (draft 2020-12) of a file in our own format, JSON or YAML."""
    schema = Rubric.model_json_schema(by_alias=True)
    schema["properties"]["criteria"]["contains"] = {"properties": {"weight": {"exclusiveMinimum": 0}}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    print(json.dumps(make_schema(), indent=2, ensure_ascii=False))
