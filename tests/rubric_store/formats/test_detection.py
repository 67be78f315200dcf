"""Recognising formats, our own format, and unreadable JSON."""

import contextlib
import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubric_store import FormatError, read_rubric
from rubric_store.formats import RubricFormat, read_document, write_rubric
from tests.rubric_store.examples import rubric

KEYS = (
    "criteria rubrics rubric reward_model criterion points tags id description weight title questions "
    "required_elements name metadata lineage question"
)
keys = st.sampled_from(KEYS.split())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(json_values, st.sampled_from([None, *get_args(RubricFormat)]))
def test_no_json_raises_anything_but_a_format_error(value: object, format: str | None) -> None:
    with contextlib.suppress(FormatError):
        read_rubric(json.dumps(value), format)


def test_a_text_in_one_format_is_refused_by_another() -> None:
    texts = {
        "native": rubric("Adds.").model_dump_json(),
        "healthbench": json.dumps([{"criterion": "Adds.", "points": 1}]),
        "srar": "<SUGGEST> Adds.",
        "yaml": "criteria: [{id: a, description: Adds.}]",
        "rar": json.dumps([{"title": "Sum", "description": "Adds.", "weight": 1}]),
        "rgr": json.dumps([{"description": "Factual Criteria: Adds.", "weight": 1}]),
        "grounded": json.dumps([{"id": "a", "description": "Adds.", "weight": 1, "scoring_guide": "All or nothing."}]),
        "dro": json.dumps(["Does the response add?"]),
        "requirement": json.dumps([{"requirement": "Adds.", "weight": 1}]),
    }
    for written, text in texts.items():
        for asked in texts.keys() - {written}:
            if (written, asked) == ("native", "yaml"):
                continue  # JSON is YAML
            if (written, asked) in {
                ("native", "grounded"),
                ("grounded", "native"),
                ("grounded", "yaml"),
                ("grounded", "rar"),
                ("grounded", "requirement"),
                ("rgr", "rar"),
                ("rar", "requirement"),
                ("rgr", "requirement"),
            }:
                continue  # one shape is valid in both
            with pytest.raises(FormatError):
                read_rubric(text, asked)
        assert read_rubric("\ufeff \n" + text) == read_rubric(text, written)


@pytest.mark.parametrize("text", ["", " \n", "Adds the equations.", '"criteria"', "{}", '{"items": []}'])
def test_an_unrecognised_text_is_refused_with_the_page_of_formats(text: str) -> None:
    with pytest.raises(FormatError, match=r"unknown format.*the formats are shown at https://\S+/formats"):
        read_rubric(text)


def test_an_unknown_format_is_refused_with_a_list_of_formats() -> None:
    with pytest.raises(
        FormatError,
        match="'toml' is unknown; use one of native, yaml, healthbench, rar, srar, rgr, grounded, dro, promptfoo",
    ):
        read_rubric("<SUGGEST> Adds.", "toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"criteria": [\n {"id": }]}', "line 2, column 9: expected JSON"),
        (
            '{"criteria": [{"id": "a", "description": "x", "weigth": 2}]}',
            r"^line 1, criteria\[0\]\.weigth: .*not permitted",
        ),
        (
            '{"criteria": [{"id": "a", "description": "x", "weight": NaN}]}',
            r"criteria\[0\]\.weight: .*finite",
        ),
        ('{"criteria": [{"id": "a", "description": "x", "weight": 1, "weight": 2}]}', "weight: given twice"),
        (
            '{"criteria": [{"id": "a", "description": "x"}, {"id": "a", "description": "y"}]}',
            r"criteria\[1\]\.id: 'a' is also the id",
        ),
        ('{"criteria": []}', "^line 1, criteria: .*at least 1 item"),
        ('{"criteria": [], "tags": []}', "^line 1, criteria: "),
        ("[" * 100_000, "nested too deeply|expected JSON"),
        ('{"criteria": [{"id": "a", "description": "x", "weight": 1' + "0" * 5_000 + "}]}", "cannot be read"),
        ('{"criteria": [{"id": "a", "description": "\\ud800"}]}', r"criteria\[0\]\.description: "),
    ],
)
def test_json_that_breaks_the_format_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_rubric(text)


@pytest.mark.parametrize("format", [None, "native", "yaml"])
def test_a_list_of_criteria_with_ids_is_a_rubric(format: str | None) -> None:
    listed = rubric("Adds.", "Subtracts.").model_dump(mode="json", exclude_defaults=True)["criteria"]
    assert read_rubric(json.dumps(listed), format) == rubric("Adds.", "Subtracts.")


@pytest.mark.parametrize(
    "more",
    [
        {"weight": 1, "verification": {"method": "math"}},
        {"weight": 2, "kind": "factual", "tags": ["speed"]},
        {"weight": -1, "kind": "pitfall"},
        {"scoring_guide": "1 or 0"},
    ],
)
def test_a_list_of_our_own_criteria_with_a_name_keeps_every_field(more: dict[str, object]) -> None:
    listed = [{"id": "a", "name": "Speed", "description": "Is 80 km/h.", **more}, {"id": "b", "description": "Adds."}]
    whole = read_rubric(json.dumps({"criteria": listed}))
    assert read_rubric(json.dumps(listed)) == whole
    for field in ("rubric", "rubrics"):
        row = read_document(json.dumps({"prompt": "How fast?", field: listed}))
        assert (row.content, row.changes) == (whole, ())


def test_the_criteria_of_rubric_grounded_are_recognised_without_their_record() -> None:
    written = write_rubric(rubric("Adds.", "Subtracts."), "grounded").text
    assert json.loads(written)["criteria"][0]["scoring_guide"] == ""
    assert read_rubric(written).criteria == read_rubric(written, "grounded").criteria
    guided = [{"id": "a", "description": "Adds.", "weight": 1, "scoring_guide": "All or nothing."}]
    for text in (guided, {"rubric": guided}):
        assert read_rubric(json.dumps(text)).criteria[0].scoring_guide == "All or nothing."


def test_a_list_without_an_id_for_each_criterion_is_not_native() -> None:
    with pytest.raises(FormatError, match=r"expected an object \{\"criteria\""):
        read_rubric(json.dumps([{"id": "a", "description": "Adds."}, {"description": "Subtracts."}]))
