"""Broken texts: every problem is reported with its line, without a stack trace, and reading time is bounded."""

import contextlib
import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubric_store import FormatError
from rubric_store.formats import RubricFormat, read_document
from tests.hypothesis_examples import examples

FORMATS = get_args(RubricFormat)


def problems(text: str, format: str | None = None) -> list[str]:
    """The problems of a text."""
    with pytest.raises(FormatError) as refused:
        read_document(text, format)
    return [str(problem) for problem in refused.value.problems]


def test_every_problem_of_a_yaml_file_is_listed_with_its_line() -> None:
    text = """name: Team Sum
tags: [Big]
criteria:
  - id: a
    description: Adds.
    weight: .nan
  - id: a
    descriptoin: Subtracts.
  - &twice
    id: c
    description: "  "
    id: d
  - *twice
  - {id: e, description: [x], kind: hint}
colour: red
"""
    found = problems(text)
    assert [(said.split(":")[0]) for said in found] == [
        "line 1, name",
        "line 2, tags[0]",
        "line 6, criteria[0].weight",
        "line 7, criteria[1].id",
        "line 7, criteria[1].description",
        "line 8, criteria[1].descriptoin",
        "line 9",
        "line 11, criteria[2].description",
        "line 12, criteria[2].id",
        "line 13",
        "line 13, criteria[3]",
        "line 14, criteria[4].description",
        "line 14, criteria[4].kind",
        "line 15, colour",
    ]


def test_every_problem_of_a_json_file_is_listed_with_its_line() -> None:
    text = """{"name": "Team Sum",
 "criteria": [
  {"id": "a", "description": "Adds [x] {y}: \\"z\\", \\n.",
   "weight": NaN, "weight": Infinity},
  {"id": "a",
   "description": 3},

  {"description": "x"}, 7
 ],
 "criteria2": []}"""
    assert [said.split(":")[0] for said in problems(text)] == [
        "line 1, name",
        "line 4, criteria[0].weight",
        "line 4, criteria[0].weight",
        "line 5, criteria[1].id",
        "line 6, criteria[1].description",
        "line 8, criteria[2].id",
        "line 8, criteria[3]",
        "line 10, criteria2",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("criteria:\n\t- x", "line 2: expected YAML"),
        ("criteria: [{id: a", "expected YAML"),
        ("criteria: &a [*a]", "an alias"),
        ("a: &a [x, x]\nb: &b [*a, *a]\ncriteria: &c [*b, *b]", "an alias .*line 2"),
        ("criteria: !!python/object/apply:os.system [ls]", "a tag"),
        ("criteria: !mine [x]", "a tag"),
        ("criteria: [{id: a, description: x}]\nmetadata: {a: &b 1, c: *b}", "line 2: an anchor"),
        ("criteria: []\n---\ncriteria: []", "line 2: a second document"),
        ("criteria:\n- ? [a]\n  : b", "a field's name must be text"),
        ("criteria: " + "[" * 200 + "]" * 200, "nested more than 64 levels deep"),
        ("criteria: " + "[" * 100_000, "nested|expected YAML"),
        ("criteria: \x07", "YAML does not allow the character"),
        ("criteria: 3", "line 1, criteria: expected a list"),
        ("criteria:", "line 1: unknown format: it is an empty object"),
        ("criteria: []", "at least 1 item"),
        ("criteria: [" + "{}, " * 513 + "]", "513 criteria"),
        ("criteria: [{id: a, description: x, weight: 1" + "0" * 5_000 + "}]", "finite"),
        ("criteria: [{id: a, description: x, weight: 0x" + "f" * 5_000 + "}]", "valid number"),
        ("criteria: [{id: a, description: x, weight: -1}]", "no criterion has a positive weight"),
        ("criteria: [{id: a, description: x}]\nmetadata: {a: .inf}", "line 2, metadata"),
        ("criteria: [{id: a, description: x}]\nmetadata: {a: " + "x" * 70_000 + "}", "at most 65536"),
        ("criteria: [{id: a, description: x}]\nlineage: {authr: x}", r"line 2, lineage\.authr"),
    ],
)
def test_yaml_that_breaks_the_rules_is_refused(text: str, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        read_document(text)


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"nonsense": 1}', '[{"nonsense": 1}]'])
def test_an_unknown_format_gives_the_page_of_formats_and_does_not_list_them(text: str) -> None:
    with pytest.raises(FormatError, match=r"unknown format.*; the formats are shown at .*formats") as error:
        read_document(text)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("format", [None, *FORMATS])
@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "- " * 100_000, "\ufeff", "\x00", "3", "null", '""']
)
def test_every_format_refuses_deep_nesting_and_empty_texts(text: str, format: str | None) -> None:
    assert problems(text, format)


@pytest.mark.parametrize("format", [None, *FORMATS])
@settings(max_examples=examples(40), deadline=None)
@given(st.text(st.sampled_from("{}[]\",:-&*!|>?#<>\n \t'%@`ab1.\\"), max_size=60) | st.binary(max_size=40).map(str))
def test_nothing_but_a_format_error_is_raised(format: str | None, text: str) -> None:
    with contextlib.suppress(FormatError):
        read_document(text, format)
    with contextlib.suppress(FormatError):
        read_document(f"criteria:\n{text}", format)


BIG = 2_000_000


@pytest.mark.parametrize(
    "text",
    [
        "criteria:\n" + "- {id: a, description: b}\n" * (BIG // 26),
        "criteria:\n" + "- {id: a, description: b}\n" * (BIG // 100),
        json.dumps({"criteria": [{"id": "a", "description": "b"}] * (BIG // 33)}),
        '{"criteria": [' + '{"id": "a", "id": "a"},' * 40_000 + "{}]}",
        "<SUGGEST> a\n" * (BIG // 12),
        "Is it?\n" * (BIG // 7),
        json.dumps(["Is it?"] * (BIG // 10)),
        "x" * (10 * BIG),
    ],
    ids=["yaml", "less yaml", "json", "repeats", "lines", "questions", "list", "longer than any rubric"],
)
def test_two_megabytes_are_read_to_the_end_and_refused(text: str) -> None:
    """A reader that is slower than linear would not finish here."""
    assert problems(text)


def test_byte_order_marks_and_line_ends_of_other_systems_are_ignored() -> None:
    yaml = "\ufeffcriteria:\r\n  - id: a\r\n    description: |\r\n      One.\r\n      Two.\r\n"
    assert read_document(yaml).content.criteria[0].description == "One.\nTwo."
    assert problems("\ufeffcriteria:\r\n  - id: a\r\n    weight: x\r\n")[1].startswith("line 3, criteria[0].weight")
