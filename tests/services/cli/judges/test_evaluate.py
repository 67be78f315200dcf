"""`adjudge evaluate`: labelled data in, a report on the judge out; known verdicts are not judged again."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from adjudge_services.cli.output import out
from adjudge_services.settings import Settings
from tests.services.command import adjudge, failure_of

pytestmark = pytest.mark.usefixtures("migrated")

RUBRIC = {
    "criteria": [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is off.", "kind": "pitfall"}]
}


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    """Groups, pairs and solutions with labels."""
    rows: list[dict[str, Any]] = [
        {"id": f"g{n}", "prompt": f"{n}?", "responses": ["x", f"y{n}"], "rubric": RUBRIC, "task": "groups"}
        | {"labels": [{"a": n % 2 == 0, "b": True}, {"a": False}]}
        for n in range(6)
    ]
    rows += [{"prompt": f"{n}?", "a": "x", "b": f"y{n}", "preferred": "a", "task": "pairs"} for n in range(4)]
    rows += [{"prompt": "?", "steps": ["u", "v"], "first_wrong_step": first, "task": "steps"} for first in (1, None)]
    file = tmp_path / "labelled.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def run(*arguments: str, engine: str = "scripted://hash") -> Result:
    """Run the command on an engine."""
    return adjudge("evaluate", engine, *arguments)


def report(*arguments: str, engine: str = "scripted://hash") -> dict[str, Any]:
    """Run the command, and return its JSON output."""
    result = run(*arguments, "--json", engine=engine)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_every_part_is_measured_with_an_interval(labelled: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    found = report(labelled, "--sensitivity", "3", "--html", str(page), engine="scripted://yes")
    parts = {(one["by"], one["name"]): one for one in found["agreement"]}
    assert parts["all", ""]["n"] == 21
    assert parts["kind", "pitfall"]["figures"]["accuracy"]["value"] == 1.0
    assert parts["criterion", "a"]["figures"]["balanced_accuracy"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert parts["task", "steps"]["n"] == 3
    assert (found["steps"]["n"], found["steps"]["wrong"], found["steps"]["found"]["value"]) == (2, 1, 0.0)
    assert found["steps"]["accepted"]["value"] == 1.0
    assert found["pairs"]["n"] == 4
    assert [one["variant"] for one in found["sensitivity"]] == ["paraphrase", "length"]
    assert all(one["flipped"]["value"] == 0.0 for one in found["sensitivity"])
    assert found["cost"]["calls"]["value"] >= 1.0
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "://" not in text.replace(labelled, "").replace("scripted://yes", "")


def test_without_right_solutions_there_is_no_harmonic_mean(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text(json.dumps({"prompt": "?", "steps": ["u", "v"], "first_wrong_step": 1}))
    steps = report(str(file), engine="scripted://yes")["steps"]
    assert (steps["found"]["value"], steps["accepted"]["value"], steps["f1"]["value"]) == (0.0, None, None)


def test_a_second_run_asks_only_whether_it_is_the_same_judge(labelled: str) -> None:
    first = report(labelled)
    (log,) = (Settings().data_dir / "evaluations").glob("*.jsonl")
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:-3], lines[-1][:20]]))  # interrupted within a line
    again = report(labelled)
    del first["measured"], again["measured"]
    assert again["agreement"] == first["agreement"]
    assert again["pairs"] == first["pairs"]
    assert len(log.read_text().splitlines()) <= len(lines) + 3
    assert "y3" not in log.read_text()


def test_failed_verdicts_are_counted_but_not_measured(labelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_MIN_CHOICE_MASS", "0.97")  # a verdict below it fails
    result = run(labelled, "--json")
    assert result.exit_code == 1
    parts = json.loads(result.stdout)["agreement"][0]
    assert parts["failed"] > 0
    assert parts["n"] + parts["failed"] == 21


def test_the_table_names_the_parts(labelled: str) -> None:
    shown = run(labelled).stdout
    for part in ("kind pitfall", "task groups", "first wrong step", "pairs", "cost of a judgement"):
        assert part in shown


def test_data_for_measuring_only_cannot_be_used_for_fitting(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    row = {"prompt_id": "p", "prompt": [], "completion": "Yes!", "rubric": "Is safe.", "binary_labels": [True]}
    file.write_text(json.dumps(row))
    assert "must not be used for fitting" in failure_of(run(f"healthbench:{file}", "--half", "fit"))


def test_a_bad_option_is_reported_once(labelled: str) -> None:
    assert "no example was judged" in failure_of(run(labelled, "--template", "nope"))


def test_rows_of_csv_with_other_column_names_are_labelled_data(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    cells = [json.dumps(json.dumps(one)) for one in (RUBRIC, {"a": True, "b": False})]
    quoted = ",".join(cell.replace('\\"', '""') for cell in cells)
    file.write_text(f"question,answer_text,rubric,labels,source\nIs 7 prime?,yes,{quoted},web\n")
    columns = ("--column", "prompt=question", "--column", "response=answer_text")
    result = adjudge("evaluate", file, "--judge", "scripted://yes", *columns, "--json", exit_code=0)
    (overall, *_) = json.loads(result.stdout)["agreement"]
    assert (overall["n"], overall["figures"]["accuracy"]["value"]) == (2, 0.5)
    assert result.stderr.count("not read: source") == 1
    refused = adjudge("evaluate", file, "--judge", "scripted://yes")
    assert "prompt: Field required; 'question' may be prompt: --column prompt=question" in " ".join(
        refused.stderr.split()
    )


@pytest.mark.parametrize("arguments", [["DATA"], ["scripted://yes", "DATA", "--judge", "scripted://yes"]])
def test_one_judge_and_one_data_set_are_needed(labelled: str, arguments: list[str]) -> None:
    assert "--judge JUDGE" in failure_of(
        adjudge("evaluate", *[labelled if one == "DATA" else one for one in arguments])
    )


@pytest.mark.parametrize(
    ("engine", "answer"),
    [("scripted://yes", "Not distinguishable from chance: balanced accuracy 0.50"), ("scripted://hash", "chance")],
)
def test_the_tables_begin_with_the_answer_and_fit_80_columns(
    labelled: str, engine: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "width", 80)
    shown = run(labelled, engine=engine).stdout.splitlines()
    assert answer in " ".join(shown[:2])
    assert max(map(len, shown)) <= 80
    assert not [line for line in shown if "… │" in line]


def test_labels_beside_a_file_that_has_its_own_are_refused(labelled: str, tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text('{"group": "g0", "response": 0, "labels": {"a": false}}\n')
    refused = run(labelled, "--labels", str(tmp_path / "labels.jsonl"))
    assert "--labels is for run:NAME" in failure_of(refused)


def test_labels_that_are_all_the_same_tell_no_judge_from_chance(tmp_path: Path) -> None:
    one = {"criteria": [{"id": "a", "description": "Is right.", "verification": {"method": "judge"}}]}
    rows = [
        {"prompt": f"{n}?", "responses": ["Yes, it is.", ""], "rubric": one, "labels": [{"a": True}, {"a": False}]}
        for n in range(12)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = run(str(file), engine="scripted://yes").stdout
    assert shown.startswith("All labels on 12 rows are the same")  # no judge is asked about an empty response
