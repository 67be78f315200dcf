"""The JSON Schema of our own format, made from the models that read it; `rubric.schema.json` is what this returns.

`python -m rubric_store.formats.schema` prints it. Two rules of a rubric no schema can say, and reading checks them all
the same: ids differ, and metadata is at most 64 KiB.
"""

import json
from typing import Any

from pydantic import Field

from rubric_store.formats.documents import MAX_CRITERIA, RubricHeader
from trainer_client.wire import Criterion


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
