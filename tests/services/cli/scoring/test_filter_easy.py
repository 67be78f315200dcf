"""`adjudge filter-easy`: questions that the base policy answers well are left out; unrated ones are kept."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from click.testing import Result

from tests.services.command import adjudge

pytestmark = pytest.mark.usefixtures("migrated")


def question(number: int, **more: Any) -> dict[str, Any]:
    """A line of the input."""
    responses = [f"It is {number}.", f"Perhaps {number}."]
    return {"prompt": f"What is {number}?", "reference_answer": "It is so.", "responses": responses} | more


def filter_easy(tmp_path: Path, lines: list[str], *options: str) -> tuple[Result, list[str], list[dict[str, Any]]]:
    """Run the command; return the result, the kept lines and the outcome of each line."""
    file, kept, scores = (tmp_path / f"{name}.jsonl" for name in ("in", "kept", "scores"))
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    given = ["filter-easy", str(file), "--output", str(kept), "--scores", str(scores), *options]
    result = adjudge(*given, *([] if "--engine" in options else ["--engine", "scripted://hash"]))
    return result, kept.read_text().splitlines(), [json.loads(one) for one in scores.read_text().splitlines()]


def test_lines_below_the_score_are_kept_unchanged(tmp_path: Path) -> None:
    lines = ["", *(json.dumps(question(n)).replace(": ", ":  ") for n in range(8))]
    _, _, rated = filter_easy(tmp_path, lines, "--easy-threshold", "1")
    middle = median(one["score"] for one in rated)
    result, kept, told = filter_easy(tmp_path, lines, "--easy-threshold", str(middle))
    assert result.exit_code == 0
    assert {one["outcome"] for one in told} == {"kept", "easy"}
    assert all((one["outcome"] == "easy") == (one["score"] >= middle) for one in told)
    assert kept == [lines[one["line"] - 1] for one in told if one["outcome"] == "kept"]
    assert f"kept {len(kept)} of 8 questions" in result.stdout


def test_a_question_with_an_overlong_reference_is_left_out_unrated(tmp_path: Path) -> None:
    lines = [json.dumps(question(1, reference_answer="x" * 30)), json.dumps(question(2))]
    result, kept, told = filter_easy(tmp_path, lines, "--easy-threshold", "1", "--reference-characters", "29")
    assert result.exit_code == 0
    assert kept == lines[1:]
    assert told[0] == {"line": 1, "score": None, "outcome": "long reference"}


def test_a_question_that_could_not_be_rated_is_kept(tmp_path: Path) -> None:
    lines = [json.dumps(question(n)) for n in range(2)]
    result, kept, told = filter_easy(tmp_path, lines, "--easy-threshold", "0", "--deadline-s", "0.000001")
    assert result.exit_code == 1
    assert kept == lines
    assert [(one["score"], one["outcome"]) for one in told] == [(None, "unrated")] * 2


def test_a_bad_line_is_reported_and_the_others_are_processed(tmp_path: Path) -> None:
    result, kept, _ = filter_easy(tmp_path, ["{", json.dumps(question(1))], "--easy-threshold", "1")
    assert result.exit_code == 1
    assert "not JSON" in result.stderr
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("name", "scores", "says"),
    [
        ("in.csv", "scores.jsonl", "in.csv is not JSONL"),
        ("in.jsonl", "kept.jsonl", "--output and --scores are one file"),
    ],
)
def test_files_that_would_be_spoilt_are_refused(tmp_path: Path, name: str, scores: str, says: str) -> None:
    (tmp_path / name).write_text("prompt,reference_answer,response\nWhat?,So.,It is so.\n")
    options = ("--output", tmp_path / "kept.jsonl", "--scores", tmp_path / scores)
    assert says in adjudge("filter-easy", tmp_path / name, *options, exit_code=2).stderr
    assert not (tmp_path / "kept.jsonl").exists()
