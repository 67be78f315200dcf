"""HealthBench's lists of point criteria, alone or in a row; the rubrics here are our own."""

import json
from typing import Any

import pytest

from rubric_store import FormatError, read_rubric

ITEMS: list[dict[str, Any]] = [
    {"criterion": "Names the river that the bridge crosses.", "points": 7, "tags": ["axis:accuracy"]},
    {"criterion": " Invents a toll.\n", "points": -4, "tags": []},
    {"criterion": "Gives the year of opening.", "points": 2.5},
]


@pytest.mark.parametrize(
    "row",
    [
        ITEMS,
        {"rubrics": ITEMS},
        {"prompt": [{"role": "user", "content": "Tell me of the bridge."}], "rubrics": ITEMS, "canary": "x"},
        {"prompt": [], "reward_model": {"style": "rubric", "rubrics": ITEMS}},
    ],
)
def test_points_become_weights_both_alone_and_in_a_row(row: object) -> None:
    criteria = read_rubric(json.dumps(row)).criteria
    assert [(c.id, c.kind, c.weight) for c in criteria] == [
        ("c1", "point", 7),
        ("c2", "point", -4),
        ("c3", "point", 2.5),
    ]
    assert criteria[1].description == "Invents a toll."
    assert [c.tags for c in criteria] == [("axis:accuracy",), (), ()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": True}, r"line 1, \[1\]\.points: .*valid number"),
        ({"points": None}, r"line 1, \[1\]\.points: .*required"),
        ({"criterion": "  "}, r"line 1, \[1\]\.criterion: .*at least 1 character"),
        ({"criterion": "x" * 20_001}, r"line 1, \[1\]\.criterion: .*at most 20000"),
        ({"tags": [1]}, r"line 1, \[1\]\.tags\[0\]: .*valid string"),
        ({"point": 1}, r"line 1, \[1\]\.point: .*not permitted"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    broken = [ITEMS[0], {**ITEMS[1], **change}]
    with pytest.raises(FormatError, match=message):
        read_rubric(json.dumps(broken))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "at least 1 item"),
        ([{"criterion": "x", "points": -1}], "no criterion has a positive weight"),
        ({"rubrics": {}}, "rubrics: expected a list"),
        ({"reward_model": {"rubrics": "x"}}, r"reward_model\.rubrics: expected a list"),
        ({"reward_model": {"rubrics": [{}]}}, r"reward_model\.rubrics\[0\]\.criterion: .*required"),
        ({"reward_model": 3}, "expected a list"),
    ],
)
def test_a_row_without_a_usable_list_is_refused_with_the_expected_form(value: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_rubric(json.dumps(value), "healthbench")
