"""Rows of verl and how they are read, including the forms that Parquet and other libraries give them."""

import json
from collections import UserDict, UserList
from decimal import Decimal

import numpy as np
import pytest

from trainer_client import InvalidRequest, RubricContent
from trainer_client.verl.reward import policy_version, read_row, read_rubric

CRITERIA = [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is short.", "weight": 2.0}]
RUBRIC = RubricContent.model_validate({"criteria": CRITERIA})
FILLED_UP = [
    {"id": "a", "description": "Is right.", "weight": None, "verification": None},
    {"id": "b", "description": "Is short.", "weight": 2.0, "verification": None},
]


@pytest.mark.parametrize(
    "given",
    [
        CRITERIA,
        {"criteria": CRITERIA},
        json.dumps(CRITERIA),
        "  " + json.dumps({"criteria": CRITERIA}),
        FILLED_UP,
        {"criteria": FILLED_UP, "name": None},
        tuple(CRITERIA),
        np.array(CRITERIA, dtype=object),
        {"criteria": np.array(FILLED_UP, dtype=object)},
        UserDict(criteria=UserList(UserDict(c) for c in CRITERIA)),
        RUBRIC,
    ],
)
def test_a_rubric_is_read_in_all_its_forms(given):
    assert read_rubric(given) == RUBRIC


@pytest.mark.parametrize(("given", "reads"), [(" math/q@3 ", "math/q@3"), ("", None), (" ", None), (None, None)])
def test_a_reference_is_text_and_an_empty_one_counts_as_missing(given, reads):
    assert read_rubric(given) == reads


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("[{", "begins like JSON"),
        ("[" * 100_000, "begins like JSON"),
        ([], "rubric: criteria"),
        ([{"id": "a"}], "criteria.0.description"),
        ([*CRITERIA, *CRITERIA], "must differ"),
        (7, "rubric"),
        ('{"criteria": [{"id": "a", "description": "x", "verification": null, "wait": 1}]}', "criteria.0.wait"),
    ],
)
def test_an_invalid_rubric_is_refused_by_name(given, says):
    with pytest.raises(InvalidRequest, match=says):
        read_rubric(given)


def test_a_row_is_read_with_everything_the_judge_sees():
    columns = {
        "prompt": [{"role": "user", "content": "6 times 7?", "name": None}],
        "rubric": "math/q@3",
        "grounding": "A table.",
        "reference_answer": 42.0,
        "index": 3,
        "num_turns": None,
    }
    group = read_row("42", np.int64(42), columns)
    assert [message.content for message in group.prompt] == ["6 times 7?"]
    assert (group.rubric, group.grounding, group.reference_answer, group.ground_truth) == (
        "math/q@3",
        "A table.",
        "42",
        "42",
    )
    assert group.responses == ("42",)


def test_verls_question_is_the_prompt_where_there_is_none():
    assert read_row("", None, {"question": "q"}).prompt == "q"
    assert read_row("", None, {"question": "q", "prompt": ""}).prompt == ""


@pytest.mark.parametrize(
    ("truth", "text"),
    [
        ("", None),
        (None, None),
        (float("nan"), None),
        (np.float64("nan"), None),
        (0.5, "0.5"),
        (2.0, "2"),
        (-3, "-3"),
        (np.float32(0.25), "0.25"),
        ("x", "x"),
    ],
)
def test_a_ground_truth_is_formatted_as_written_by_hand(truth, text):
    assert read_row("", truth, {"prompt": "q"}).ground_truth == text


@pytest.mark.parametrize("truth", [["42"], {"value": 42}, Decimal(42), np.array([4, 2])])
def test_a_ground_truth_of_another_type_is_refused(truth):
    with pytest.raises((InvalidRequest, ValueError), match="ground_truth"):
        read_row("", truth, {"prompt": "q"})


@pytest.mark.parametrize(("field", "value"), [("prompt", 7), ("grounding", 7), ("prompt", [{"role": "nobody"}])])
def test_a_column_of_another_type_is_refused_by_name(field, value):
    with pytest.raises(InvalidRequest, match=f"extra_info: {field}"):
        read_row("", None, {"prompt": "q", field: value})


def test_a_response_with_a_lone_surrogate_is_read():
    assert read_row("\ud83d", None, {"prompt": "\ud83d"}).responses == ("\ud83d",)


def test_the_id_of_a_group_does_not_depend_on_the_response():
    row = {"prompt": "q", "rubric": CRITERIA}
    assert read_row("a", "1", row).id == read_row("b", 1, {**row, "rubric": FILLED_UP}).id
    assert read_row("a", "1", row).id != read_row("a", "2", row).id


@pytest.mark.parametrize(
    ("held", "step"), [({"max_global_steps": 0}, 0), ({"max_global_steps": 2.5}, None), ({}, None), (None, None)]
)
def test_the_policy_version_is_the_step(held, step):
    assert policy_version(held) == step
