"""Files of one or many rubrics, and the names of these rubrics."""

import json
from pathlib import PurePath

import pytest

from rubric_store import FormatError
from rubric_store.formats import read_file

ADDS = {"criteria": [{"id": "a", "description": "Adds."}]}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("quadratics.json", "quadratics"),
        ("Math/Quadratic Equations.v2.json", "math/quadratic-equations.v2"),
        ("_drafts/a.json", "drafts/a"),
        ("Ünïcode/a.json", "n-code/a"),
    ],
)
def test_a_rubric_is_named_after_its_path(path: str, name: str) -> None:
    assert [one.name for one in read_file(json.dumps(ADDS).encode(), PurePath(path))] == [name]


def test_a_name_in_the_file_wins_and_the_prefix_comes_before_either() -> None:
    named = json.dumps({"name": "math/sum", **ADDS}).encode()
    assert read_file(named, PurePath("x.json"), prefix="team/")[0].name == "team/math/sum"
    assert read_file(json.dumps(ADDS).encode(), PurePath("x.json"), prefix="team/")[0].name == "team/x"


def test_each_line_of_jsonl_is_a_rubric_named_after_its_id_or_line() -> None:
    rows = [
        {"id": "Row 7", "rubric": "<SUGGEST> Adds.\n<ANSWER> Four."},
        {"prompt": "?", "reward_model": {"rubrics": [{"criterion": "Adds.", "points": 1}]}},
        {"prompt_id": 12, "rubrics": [{"criterion": "Adds.", "points": 1}]},
        {"question": "?", "rubric": [{"title": "Sum", "description": "Essential Criteria: Adds.", "weight": 5}]},
    ]
    content = "\n\n".join(map(json.dumps, rows)).encode()
    read = read_file(content, PurePath("data/dev.jsonl"))
    assert [(one.name, one.line) for one in read] == [
        ("data/dev/row-7", 1),
        ("data/dev/line-3", 3),
        ("data/dev/12", 5),
        ("data/dev/line-7", 7),
    ]
    assert [one.document.content.criteria[0].description for one in read] == ["Adds."] * 4


def test_all_problems_of_all_lines_are_reported_and_no_rubric_is_read() -> None:
    content = b'{"rubrics": [{"criterion": "Adds.", "points": 1}]}\n{"rubrics": [{"points": "one"}]}\n{\n[]\n'
    with pytest.raises(FormatError) as refused:
        read_file(content, PurePath("a.jsonl"))
    assert [(problem.line, problem.place) for problem in refused.value.problems] == [
        (2, "rubrics[0].criterion"),
        (2, "rubrics[0].points"),
        (3, "column 2"),
        (4, ""),
    ]


@pytest.mark.parametrize(
    ("content", "path", "says"),
    [
        (b"criteria:\n- \xff", "a.yaml", "line 2: this is not UTF-8 text"),
        (b"", "a.jsonl", "line 1: no line contains a rubric"),
        (b"\n\n", "a.jsonl", "no line contains a rubric"),
        (json.dumps(ADDS).encode(), "versions/versions/a.json", "is not a valid rubric name"),
        (json.dumps(ADDS).encode(), "%.json", "is not a valid rubric name"),
        (
            b'{"id": 1, "questions": ["Is it?"]}\n{"id": 1, "questions": ["Is it so?"]}',
            "a.jsonl",
            "line 2: line 1 also names",
        ),
    ],
)
def test_an_unreadable_file_is_an_error_that_says_why(content: bytes, path: str, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        read_file(content, PurePath(path))
