"""`adjudge rubrics discriminate`: how well a rubric separates known good responses from known bad ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.services.command import adjudge

pytestmark = pytest.mark.usefixtures("migrated")

FINDS = {"method": "contains", "all_of": ["because"]}
RUBRIC = {
    "criteria": [
        {"id": "reason", "description": "Gives a reason.", "verification": FINDS},
        {"id": "polite", "description": "Says please.", "verification": {"method": "contains", "all_of": ["please"]}},
    ]
}
PAIR = {"prompt": "Is 7 prime?", "good": ["Yes, because nothing divides it."], "bad": ["Yes.", "No, please."]}


def lines(tmp_path: Path, *rows: Any) -> str:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def rubric(tmp_path: Path) -> str:
    path = tmp_path / "rubric.json"
    path.write_text(json.dumps(RUBRIC))
    return str(path)


def discriminate(tmp_path: Path, *arguments: str) -> tuple[Result, dict[str, Any]]:
    """Run it on programs alone, and return the figures that it wrote."""
    written = tmp_path / "figures.json"
    result = adjudge("rubrics", "discriminate", *arguments, "--engine", "scripted://no", "--output", written)
    return result, json.loads(written.read_text()) if written.exists() else {}


def test_a_discriminating_rubric_is_reported_with_each_criterion(tmp_path: Path, rubric: str) -> None:
    result, found = discriminate(tmp_path, lines(tmp_path, PAIR, PAIR | {"bad": "No."}), "--rubric", rubric)
    assert result.exit_code == 0
    assert (found["prompts"], found["good"], found["bad"], found["unscored"]) == (2, 2, 3, 0)
    assert found["ordered"] == pytest.approx((0.75 + 1) / 2)
    differences = {one["criterion"]: one["difference"] for one in found["criteria"]}
    assert differences == {"reason": 1.0, "polite": pytest.approx(-1 / 3)}
    assert "good ranks above bad 0.88 of the time" in result.stdout
    assert "tells them apart" in result.stdout
    assert "too few verdicts to tell" in result.stdout


def test_the_answer_comes_first_and_each_criterion_has_its_text_n_and_interval(tmp_path: Path, rubric: str) -> None:
    result, found = discriminate(tmp_path, lines(tmp_path, *[PAIR] * 8), "--rubric", rubric)
    printed = result.stdout.splitlines()
    assert printed[1].startswith("good ranks above bad 0.75 of the time (95% interval")
    table = [line for line in printed if line.startswith(("┏", "┃", "┡", "│", "├", "└"))]
    assert max(map(len, table)) <= 80
    shown = "\n".join(table)
    for part in ("Gives a reason.", "Says please.", "points the wrong way", "24"):
        assert part in shown
    polite = next(one for one in found["criteria"] if one["criterion"] == "polite")
    assert polite["description"] == "Says please."
    low, high = polite["interval"]
    assert low < polite["difference"] < high < 0
    assert f"{low:+.2f} to {high:+.2f}" in shown


def test_each_line_may_have_its_own_rubric(tmp_path: Path) -> None:
    swapped = {"criteria": [RUBRIC["criteria"][1]]}
    result, found = discriminate(tmp_path, lines(tmp_path, PAIR | {"rubric": RUBRIC}, PAIR | {"rubric": swapped}))
    assert result.exit_code == 0
    assert "of 2 rubrics: 1 above chance, 0 at chance, 1 below chance, 0 not compared" in result.stdout
    assert len({one["rubric"] for one in found["criteria"]}) == 2


def test_a_rubric_below_the_threshold_fails_the_command(tmp_path: Path, rubric: str) -> None:
    result, _ = discriminate(tmp_path, lines(tmp_path, PAIR), "--rubric", rubric, "--at-least", "0.9")
    assert result.exit_code == 1
    assert "good ranks above bad 0.75 of the time, which is less than 0.9" in result.stderr


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{", "JSON"),
        ("7", "object"),
        ({"prompt": "x", "good": "a"}, "bad: expected a response"),
        (PAIR | {"bad": []}, "bad: expected a response"),
        (PAIR | {"good": 3}, "good: expected a response"),
        (PAIR | {"responses": ["a"]}, "good and bad"),
        ({key: value for key, value in PAIR.items() if key != "prompt"} | {"promt": "x"}, "--column prompt=promt"),
        (PAIR | {"rubric": "no/such"}, "no/such"),
    ],
    ids=str,
)
def test_a_bad_line_is_reported_by_its_number_and_the_others_are_judged(
    tmp_path: Path, rubric: str, bad: Any, says: str
) -> None:
    result, found = discriminate(tmp_path, lines(tmp_path, PAIR, bad), "--rubric", rubric)
    assert result.exit_code == 1
    assert "pairs.jsonl:2:" in result.stderr
    assert says in result.stderr
    assert found["prompts"] == 1


def test_without_a_rubric_nothing_is_judged_and_the_line_is_named(tmp_path: Path) -> None:
    result, found = discriminate(tmp_path, lines(tmp_path, PAIR))
    assert result.exit_code == 1
    assert not found
    assert "pairs.jsonl:1: has no rubric" in result.stderr


def test_nothing_is_compared_if_one_side_cannot_be_scored(tmp_path: Path) -> None:
    unusable = {"method": "json_schema", "schema": {"$ref": "https://example.com/person.json"}}
    rubric = {"criteria": [{"id": "a", "description": "x", "verification": unusable}]}
    result, _ = discriminate(tmp_path, lines(tmp_path, PAIR | {"good": '"x"', "rubric": rubric}))
    assert result.exit_code == 1
    assert "nothing can be compared" in result.stderr


def test_a_rubric_that_the_mode_refuses_is_explained_without_an_empty_table(tmp_path: Path) -> None:
    pitfall = {"id": "rude", "kind": "pitfall", "weight": -1, "description": "Is rude."}
    row = PAIR | {"rubric": {"criteria": [*RUBRIC["criteria"], pitfall]}}
    result, _ = discriminate(tmp_path, lines(tmp_path, row))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "use mode 'points'" in result.stderr
