"""`adjudge rubrics validate` on the command line, and how `show` displays its result."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from adjudge_services.cli.rubrics import generate
from judge_server.engines.scripted import ScriptedEngine
from judge_server.generation.writer import Writer
from judge_server.ports import Batch, Call, CallFailure, Reply
from tests.services.command import adjudge, failure_of

QUESTION = "A train covers 240 km in 3 hours. How fast is it?"
CRITERIA = [
    {"id": "answer", "kind": "factual", "description": "The final answer is 80 km/h."},
    {"id": "method", "kind": "factual", "description": "Divides the distance."},
    {"id": "rude", "weight": -1, "description": "Is [bold]rude[/bold]."},
]


class Judge:
    """Answers by words in the prompt: a verdict as JSON, other text, or a failure."""

    def __init__(self) -> None:
        self.asked = 0
        self.said: dict[str, Any] = {"Divides": {"valid": False, "reason": "It is no [fact]."}, "rude": "Well."}

    def __call__(self, batch: Batch, call: Call) -> Reply | CallFailure:
        self.asked += 1
        prompt = batch.shared + call.question
        said = next((said for word, said in self.said.items() if word in prompt), {"valid": True, "reason": "So."})
        if isinstance(said, CallFailure):
            return said
        return Reply(text=said if isinstance(said, str) else json.dumps(said))


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The model behind every engine URL."""
    judge = Judge()
    monkeypatch.setattr(generate, "build_engine", lambda _: ScriptedEngine(judge))
    monkeypatch.setattr(generate, "Writer", partial(Writer, retry_delay_s=0.0))
    return judge


@pytest.fixture(autouse=True)
def _published(tmp_path: Path, migrated: None) -> None:
    """Publish `team/speed` with a question, and `team/bare` without."""
    for name, heading in (("team/speed", {"metadata": {"question": QUESTION}}), ("team/bare", {})):
        file = tmp_path / "rubric.json"
        file.write_text(json.dumps({**heading, "criteria": CRITERIA}))
        assert rubrics("publish", name, str(file)).exit_code == 0


rubrics = partial(adjudge, "rubrics")


def rows(result: Result) -> list[list[str]]:
    """Return the cells of the printed tables."""
    lines = [line for line in result.stdout.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_each_criterion_is_shown_with_its_verdict_and_reason_followed_by_the_rates(judge: Judge) -> None:
    result = rubrics("validate", "team/speed")
    assert result.exit_code == 0, result.output
    criteria, rates = rows(result)[:3], rows(result)[3:]
    assert criteria[0] == ["answer", "factual", "valid", "The final answer is 80 km/h.", "So."]
    assert criteria[1] == ["method", "factual", "not valid", "Divides the distance.", "It is no [fact]."]
    assert criteria[2][:4] == ["rude", "negative point", "not judged", "Is [bold]rude[/bold]."]
    assert rates == [
        ["factual", "2", "1", "1", "0", "50%"],
        ["negative point", "1", "0", "0", "1", "–"],
        ["all", "3", "1", "1", "1", "50%"],
    ]
    assert "1 rubric judged; 3 calls" in result.stderr


def test_findings_are_stored_and_the_next_run_makes_no_calls(judge: Judge) -> None:
    first = rubrics("validate", "team/speed")
    again = rubrics("validate", "team/speed", "team/speed@1")
    assert (again.exit_code, judge.asked) == (0, 3)
    assert again.stdout == first.stdout
    assert "1 rubric judged, 1 of them before; 0 calls" in again.stderr


def test_show_displays_the_newest_validity_in_one_line(judge: Judge) -> None:
    assert "validity" not in rubrics("show", "team/speed").stdout
    rubrics("validate", "team/speed")
    [line] = [line for line in rubrics("show", "team/speed").stdout.splitlines() if line.startswith("validity")]
    assert "1 of 3 criteria valid, 1 not, 1 not judged; by scripted, 20" in line


def test_show_hides_no_metadata_called_validity(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text(
        json.dumps({"metadata": {"question": "?", "validity": "May"}, "criteria": CRITERIA})
    )
    rubrics("publish", "team/made", str(tmp_path / "made.json"))
    assert "validity  May" in rubrics("show", "team/made").stdout
    rubrics("validate", "team/made")
    shown = [line for line in rubrics("show", "team/made").stdout.splitlines() if line.startswith("validity")]
    assert len(shown) == 2
    assert "1 of 3 criteria valid" in shown[0]
    assert shown[1] == "validity when published May"


def test_show_displays_the_validity_that_a_version_was_published_with(tmp_path: Path) -> None:
    items = [{"id": one["id"], "kind": "factual", "valid": True, "reason": "So."} for one in CRITERIA[1:]]
    metadata = {"question": QUESTION, "validity": {"items": items, "model": "writer", "template_digest": "x"}}
    (tmp_path / "made.json").write_text(json.dumps({"metadata": metadata, "criteria": CRITERIA}))
    rubrics("publish", "team/made", str(tmp_path / "made.json"))
    shown = rubrics("show", "team/made").stdout
    assert "2 of 3 criteria valid, 1 not judged; by writer, 20" in shown
    assert "template_digest" not in shown


def test_a_named_rubric_without_a_question_is_reported_and_fails(judge: Judge) -> None:
    result = rubrics("validate", "team/bare", "team/speed")
    assert result.exit_code == 1
    assert "not judged: the metadata of team/bare@1 has no question" in result.stderr
    assert "The final answer is 80 km/h." in result.stdout
    assert "1 rubric judged, 1 not judged" in result.stderr


def test_a_prefix_selects_what_can_be_judged_and_the_rest_is_reported(judge: Judge) -> None:
    result = rubrics("validate", "--prefix", "team/", "--summary")
    assert result.exit_code == 0
    assert [row[0] for row in rows(result)] == ["factual", "negative point", "all"]
    assert "team/bare@1 has no question" in result.stderr


def test_a_failing_engine_leaves_the_rubric_for_the_next_run(judge: Judge) -> None:
    judge.said["Divides"] = CallFailure("engine", "gone")
    failed = rubrics("validate", "--prefix", "team/speed")
    assert failed.exit_code == 1
    assert "the engine gave no answer about team/speed@1; run the same command again" in failed.stderr
    assert failed.stdout == ""
    assert "validity" not in rubrics("show", "team/speed").stdout
    judge.said["Divides"] = {"valid": True, "reason": "So."}
    assert rubrics("validate", "--prefix", "team/speed").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give either"),
        (["team/speed", "--prefix", "team/"], "give either"),
        (["--prefix", "nothing/"], "no rubric's name begins with 'nothing/'"),
        (["team/sped"], "Did you mean 'team/speed'"),
        (["team/speed", "--engine", "magic://x"], "magic"),
    ],
)
def test_an_invalid_command_is_refused_with_advice(arguments: list[str], says: str) -> None:
    result = rubrics("validate", *arguments)
    assert result.stdout == ""
    assert says in failure_of(result)
