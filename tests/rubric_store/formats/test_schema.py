"""The published JSON Schema accepts and refuses what the reader does, as far as a schema can."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings

from rubric_store import FormatError
from rubric_store.formats import RubricDocument, native, read_document, write_rubric
from rubric_store.formats.native import make_schema
from tests.hypothesis_examples import examples
from tests.rubric_store.formats.format_examples import any_document

PUBLISHED = json.loads(Path(native.__file__).with_name("rubric.schema.json").read_text())
SCHEMA = jsonschema.Draft202012Validator(PUBLISHED)


def test_the_schema_file_matches_the_models() -> None:
    command = "python -m rubric_store.formats.native > rubric_store/src/rubric_store/formats/rubric.schema.json"
    assert make_schema() == PUBLISHED, f"the format changed; if that is intended, run {command}"
    jsonschema.Draft202012Validator.check_schema(make_schema())


@settings(max_examples=examples(25))
@given(any_document)
def test_every_written_rubric_is_valid_under_the_schema(document: RubricDocument) -> None:
    SCHEMA.validate(json.loads(write_rubric(document, "native").text))


EXAMPLE = """
name: team/math/quadratics
tags: [math, level:2]
metadata: {owner: Ann, reviewed: true}
lineage: {author: Ann}
criteria:
  - id: sum
    description: Adds the two equations.
    kind: factual
    weight: 3
  - id: root
    description: Forgets the negative root.
    kind: pitfall
    weight: -1
    verification: {method: contains, any_of: ["-2"]}
  - id: reasons
    name: Reasons
    description: Says why the roots are all there are.
    scale: 2
    required_elements: [degree, number of roots]
    scoring_guide: 2 with a proof, 1 with a claim, 0 without either.
    expected_keywords: [degree]
    expected_concepts: [fundamental theorem of algebra]
    verification_method: Look for the word degree.
"""


def test_a_file_with_every_field_is_read_and_valid_under_the_schema() -> None:
    SCHEMA.validate(yaml.safe_load(EXAMPLE))
    document = read_document(EXAMPLE)
    assert document.name == "team/math/quadratics"
    assert document.tags == ("math", "level:2")
    assert document.metadata == {"owner": "Ann", "reviewed": True}
    assert [one.id for one in document.content.criteria] == ["sum", "root", "reasons"]


@pytest.mark.parametrize(
    "change",
    [
        {"colour": "red"},
        {"name": "Team Math"},
        {"tags": "math"},
        {"lineage": {"authr": "Ann"}},
        {"criteria": []},
        {"criteria": [{"id": "a"}]},
        {"criteria": [{"id": "a b", "description": "x"}]},
        {"criteria": [{"id": "a", "description": "x", "weight": -1}]},
        {"criteria": [{"id": "a", "description": "x", "kind": "hint"}]},
        {"criteria": [{"id": "a", "description": "x", "required_elements": "x"}]},
    ],
)
def test_texts_that_the_schema_refuses_are_refused_by_the_reader(change: dict[str, Any]) -> None:
    broken = {**yaml.safe_load(EXAMPLE), **change}
    assert not SCHEMA.is_valid(broken)
    with pytest.raises(FormatError):
        read_document(json.dumps(broken))
