"""The shapes of the `rubric` library and of open-instruct, and RuscaRL's tags for programmatic checks."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubric_store.formats import FormatError, read_document, read_rubric, write_rubric

ITEMS = [{"weight": 2.0, "requirement": "States 80 km/h."}, {"weight": -1.0, "requirement": "Multiplies."}]
SECTIONS = [{"name": "Result", "criteria": ITEMS[:1]}, {"criteria": ITEMS[1:]}]
YAML = "- weight: 2.0\n  requirement: States 80 km/h.\n- weight: -1.0\n  requirement: Multiplies.\n"


def meaning(text: str, format: str | None = None) -> list[tuple[str, float, str]]:
    return [(one.description, one.weight, one.kind) for one in read_rubric(text, format).criteria]


@pytest.mark.parametrize(
    "value",
    [
        ITEMS,
        SECTIONS,
        {"sections": SECTIONS},
        {"rubric": ITEMS},
        {"rubric": SECTIONS},
        {"rubric": {"sections": SECTIONS}},
    ],
)
def test_every_shape_of_the_library_is_read_alike(value: object) -> None:
    assert meaning(json.dumps(value)) == [("States 80 km/h.", 2.0, "point"), ("Multiplies.", -1.0, "pitfall")]


@pytest.mark.parametrize(
    "text",
    [
        YAML,
        "rubric:\n" + YAML,
        "sections:\n- name: Result\n  criteria:\n" + YAML.replace("\n", "\n  ").join(["  ", ""]),
    ],
)
@pytest.mark.parametrize("format", [None, "requirement"])
def test_yaml_is_read_too(text: str, format: str | None) -> None:
    assert meaning(text, format) == meaning(json.dumps(ITEMS))


def test_a_section_name_becomes_a_tag() -> None:
    assert [one.tags for one in read_rubric(json.dumps(SECTIONS)).criteria] == [("Result",), ()]


LABEL = {
    "query": "How fast?",
    "rubrics": [{"description": "States 80 km/h.", "title": "Speed"}, {"rubric_item": "Multiplies.", "weight": -1.0}],
}


@pytest.mark.parametrize(
    "value", [LABEL, {"messages": [], "ground_truth": json.dumps(LABEL)}, {"ground_truth": [json.dumps(LABEL)]}]
)
def test_open_instructs_labels_are_read_alone_and_in_rows(value: object) -> None:
    assert meaning(json.dumps(value)) == [("States 80 km/h.", 1.0, "point"), ("Multiplies.", -1.0, "pitfall")]
    assert read_rubric(json.dumps(value)).criteria[0].name == "Speed"


def test_a_list_of_only_mistakes_is_read_and_written() -> None:
    text = json.dumps([ITEMS[1], ITEMS[1]])
    document = read_document(text)
    assert json.loads(write_rubric(document, "requirement").text) == json.loads(text)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([{"requirement": "x"}, {"requirement": "y", "weight": 1}], r"\[0\]\.weight: .*required"),
        ([{"name": "A", "criteria": [{"weight": 1}]}], r"\[0\]\.criteria\[0\]\.requirement: .*required"),
        (
            {"sections": [{"criteria": [{"weight": "one", "requirement": "x"}]}]},
            r"sections\[0\]\.criteria\[0\]\.weight",
        ),
        ({"sections": {"criteria": []}}, "sections: expected a list"),
        ([{"name": "A", "criteria": []}], "at least 1 item"),
        ([{"requirement": "x", "weight": 0}], "no criterion has a positive weight"),
        ([{"criteria": {}}, {"requirement": "x", "weight": 1}], r"\[0\]\.criteria: expected a list"),
    ],
)
def test_a_problem_is_reported_with_its_place(value: object, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        read_rubric(json.dumps(value), "requirement")


def health(tags: object) -> Any:
    return read_rubric(json.dumps([{"criterion": "Is right.", "points": 5, "tags": tags}])).criteria[0].verification


@pytest.mark.parametrize(
    "tags",
    [
        ["verifier:rule", "function:math_verify", "parameters:42"],
        ["level:example", "verifier:rule", "function:math_verify", 'parameters:{"answer": "42"}'],
        {"verifier": "rule", "function": "math_verify", "parameters": {"answer": "42"}},
    ],
)
def test_a_ruscarl_rule_is_verified_by_a_program(tags: object) -> None:
    verification = health(tags)
    assert (verification.method, verification.expected, verification.of) == ("math", "42", "response")


@given(st.integers(0, 5), st.integers(0, 5), st.text("a \n", max_size=20))
def test_a_range_of_words_counts_them(fewest: int, more: int, text: str) -> None:
    parameters = {"min_count": fewest, "max_count": fewest + more}
    verification = health({"verifier": "rule", "function": "word_count_range", "parameters": parameters})
    met = re.fullmatch(verification.pattern, text) is not None
    assert met == (fewest <= len(text.split()) <= fewest + more)


@pytest.mark.parametrize("tags", [["axis:accuracy"], ["verifier:llm"], {"verifier": "llm"}, ["function:math_verify"]])
def test_other_tags_leave_a_criterion_to_the_judge(tags: object) -> None:
    assert health(tags) is None


@pytest.mark.parametrize(
    "tags",
    [
        ["verifier:code"],
        ["verifier:rule"],
        ["verifier:rule", "function:run_tests", "parameters:x"],
        {"verifier": "rule", "function": "math_verify", "parameters": {"result": "42"}},
        {"verifier": "rule", "function": "word_count_range", "parameters": {"min_count": 9, "max_count": 1}},
    ],
)
def test_an_unknown_program_is_refused_instead_of_left_to_the_judge(tags: object) -> None:
    with pytest.raises(FormatError, match=r"\[0\]: .*no program can verify it"):
        health(tags)


def test_the_tags_of_a_rule_are_written_without_loss() -> None:
    text = json.dumps(
        [{"criterion": "Is right.", "points": 5, "tags": ["verifier:rule", "function:math_verify", "parameters:42"]}]
    )
    assert write_rubric(read_document(text), "healthbench").losses == ()
