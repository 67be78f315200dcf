"""`adjudge bakeoff`: contenders on one labelled file, compared with the first; known verdicts are not judged again."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from adjudge_services.settings import Settings
from tests.services.command import adjudge, failure_of

pytestmark = pytest.mark.usefixtures("migrated")

RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is brief."}]}
ROWS, VERDICTS = 8, 16


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    """One response per row, with two criteria, one of them met."""
    file = tmp_path / "labelled.jsonl"
    rows = [
        {"id": f"g{n}", "prompt": f"{n}?", "responses": [f"y{n}"], "rubric": RUBRIC}
        | {"labels": [{"a": n % 2 == 0, "b": n % 2 == 1}]}
        for n in range(ROWS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def run(*arguments: str) -> Result:
    """Run the command."""
    return adjudge("bakeoff", *arguments)


def report(*arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """Run the command, and return the contenders of its JSON output by name."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return {one["name"]: one for one in json.loads(result.stdout)["contenders"]}


def test_examples_are_counted_beside_the_rows_that_they_come_from(tmp_path: Path) -> None:
    file = tmp_path / "labelled.jsonl"
    row = {
        "id": "g",
        "prompt": "2 + 2?",
        "responses": ["4", "5"],
        "rubric": RUBRIC,
        "labels": [{"a": True}, {"a": False}],
    }
    file.write_text(json.dumps(row) + "\n")
    shown = run(str(file), "--judge", "scripted://hash", "--judge", "scripted://yes").stdout
    assert "2 examples from 1 row;" in " ".join(shown.split())


def test_every_combination_is_a_contender_with_quality_cost_and_differences(labelled: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    found = report(
        *(labelled, "--judge", "scripted://hash", "--judge", "scripted://yes", "--cost", "calls"),
        *("--criteria-per-call", "1", "--criteria-per-call", "all", "--html", str(page)),
    )
    assert list(found) == [
        f"scripted://{judge}, {per_call} a call" for judge in ("hash", "yes") for per_call in ("1", "all")
    ]
    one, together, yes, _ = found.values()
    assert (one["n"], one["failed"], one["differences"]) == (VERDICTS, 0, None)
    assert yes["quality"]["balanced_accuracy"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert one["cost"]["calls"]["value"] == 1.0
    assert together["cost"]["calls"]["value"] == 0.5
    assert together["differences"]["cost"]["calls"]["value"] == -0.5
    expected = yes["quality"]["auroc"]["value"] - one["quality"]["auroc"]["value"]
    assert yes["differences"]["quality"]["auroc"]["value"] == pytest.approx(expected)
    assert any(contender["on_front"] for contender in found.values())
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "://" not in text.replace("scripted://", "").replace(labelled, "")


def test_a_contender_that_cannot_judge_is_reported_and_the_others_are_measured(labelled: str) -> None:
    both = (labelled, "--judge", "nosuch://x", "--judge", "scripted://hash", "--protocol", "likert")
    found = report(*both, "--protocol", "binary", code=1)
    assert "'nosuch' is unknown" in found["nosuch://x, binary"]["problem"]
    assert "no verdict" in found["scripted://hash, likert"]["problem"]
    measured = found["scripted://hash, binary"]
    assert (measured["problem"], measured["n"], measured["on_front"]) == (None, VERDICTS, True)
    table = run(*both, "--protocol", "binary").stdout
    assert "'nosuch' is unknown" in " ".join(table.split())
    assert "Recommended: scripted://hash, binary." in " ".join(table.split())


def test_a_second_run_asks_each_contender_one_question(labelled: str) -> None:
    both = (labelled, "--judge", "scripted://hash", "--rationale", "--no-rationale")
    first = report(*both)
    assert list(first) == ["reasons first", "no reasons"]
    assert first["reasons first"]["cost"]["tokens_written"]["value"] > 0
    (log,) = (Settings().data_dir / "evaluations").glob("*.jsonl")
    lines = len(log.read_text().splitlines())
    assert lines == 2 * ROWS
    again = report(*both)
    assert len(log.read_text().splitlines()) == lines + 2
    assert [one["quality"] for one in again.values()] == [one["quality"] for one in first.values()]
    evaluated = adjudge("evaluate", "scripted://hash", labelled, "--json")  # uses the same log
    assert evaluated.exit_code == 0, evaluated.output
    assert len(log.read_text().splitlines()) == lines + 3


def test_contenders_that_share_calls_are_each_charged_for_them(labelled: str) -> None:
    found = report(labelled, "--judge", "scripted://hash", "--criteria-per-call", "2", "--criteria-per-call", "all")
    assert [one["cost"]["calls"]["value"] for one in found.values()] == [0.5, 0.5]


def test_pairs_are_compared_by_the_share_judged_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_MIN_CHOICE_MASS", "0")  # by hash, the mass of both choices may be small
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{n}?", "a": "x", "b": f"y{n}", "preferred": "a"} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = report(str(file), "--judge", "scripted://hash", "--judge", "scripted://yes")
    for one in found.values():
        assert list(one["quality"]) == ["pairs_right"]
        assert one["n"] == 4
    assert found["scripted://yes"]["differences"]["n"] == 4


def test_one_contender_or_an_unknown_protocol_is_refused(labelled: str) -> None:
    assert "a bake-off needs two" in failure_of(run(labelled, "--judge", "scripted://hash"))
    unknown = run(labelled, "--judge", "scripted://hash", "--protocol", "binry", "--protocol", "binary")
    assert unknown.exit_code == 2
    assert "'binry' is not one of binary" in " ".join(unknown.stderr.replace("│", " ").split())
