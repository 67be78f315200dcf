"""`adjudge attack`: it reports exactly the false accepts that the scripted judge is built to give."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from adjudge_services import judges
from adjudge_services.settings import Settings
from judge_server.engines.scripted import ScriptedEngine, always
from judge_server.evaluation.attacks.corpus import read_corpus, read_tasks
from judge_server.evaluation.attacks.report import chosen_attacks, plan_attacks
from judge_server.judging.presentation import DECOYS, has_content
from judge_server.ports import Batch, Call, Reply
from tests.services.command import adjudge

pytestmark = pytest.mark.usefixtures("migrated")

LIMIT = 32
"""Two attacks of each kind."""


@pytest.fixture
def judge_says(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, str], bool]], None]:
    """Make every judge answer with a function of the shown text and the question."""

    def install(says: Callable[[str, str], bool]) -> None:
        yes, no = always(True), always(False)

        def script(batch: Batch, call: Call) -> Reply:
            answered = (yes if says(batch.shared, call.question) else no)(batch, call)
            assert isinstance(answered, Reply)
            return answered

        monkeypatch.setattr(judges, "build_engine", lambda *_: ScriptedEngine(script))

    return install


def run(*arguments: str, judge: str = "scripted://yes") -> Result:
    """Run the command."""
    return adjudge("attack", judge, *arguments)


def results(*arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """Run the command, and return the results of its JSON output by defences."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return {one["defences"]: one for one in json.loads(result.stdout)["results"]}


def added(result: dict[str, Any]) -> dict[str, float]:
    """Return the false accepts that each kind adds."""
    return {one["kind"]: one["added"]["value"] for one in result["kinds"]}


def test_false_accepts_are_reported_by_kind_with_and_without_each_defence(judge_says: Any, tmp_path: Path) -> None:
    plan = plan_attacks(read_tasks(), read_corpus(), LIMIT)
    hidden = {case.attacked.response for case in plan.cases if case.attack.kind.name == "zero_width"}
    praise = {case.attacked.response for case in plan.cases if case.attack.kind.name == "flattery"}
    marks = {case.attacked.response for case in plan.cases if case.attack.kind.name == "punctuation"}
    good = {one.response for one in plan.honest}

    def says(shared: str, question: str) -> bool:
        shown = re.findall(r"<(\w+)>\n(.*?)\n</\1>", shared, re.DOTALL)[-1][1]
        if any(decoy.description in question for decoy in DECOYS):
            return shown in praise
        return shown in hidden | praise | marks | good

    judge_says(says)
    page = tmp_path / "report.html"
    found = results("--limit", str(LIMIT), "--each-defence", "--html", str(page))
    undecided = sum(map(has_content, marks)) / 2
    expected = {
        "normalise and no_content": (0.0, undecided, 1.0),
        "fences alone": (1.0, 1.0, 1.0),
        "normalise": (0.0, 1.0, 1.0),
        "no_content": (1.0, undecided, 1.0),
        "decoy": (1.0, 1.0, 0.0),
        "all three": (0.0, undecided, 0.0),
    }
    assert list(found) == list(expected)
    for name, shares in expected.items():
        kinds = added(found[name])
        assert tuple(kinds[kind] for kind in ("zero_width", "punctuation", "flattery")) == shares, name
        assert {kinds[kind] for kind in ("claim", "language", "instruction", "control_token")} == {0.0}
        assert kinds["all"] == pytest.approx(sum(shares) / 16)
        assert found[name]["honest"]["accepted"]["value"] == 1.0
    assert found["all three"]["honest"]["flagged"]["value"] == 0.0
    assert found["fences alone"]["honest"]["flagged"]["value"] is None
    assert "all three" in page.read_text()


def test_too_many_added_false_accepts_fail_the_command(judge_says: Any) -> None:
    praise = {one.text for one in read_corpus() if one.kind.name == "flattery"}
    judge_says(lambda shared, _: any(text in shared for text in praise))
    arguments = ("--limit", "16")
    assert run(*arguments, "--most-added", "0.5").exit_code == 0
    refused = run(*arguments, "--most-added", "0.05")
    assert refused.exit_code == 1
    assert "may add more than 0.05" in refused.output


def test_a_second_run_asks_one_question_and_reports_the_same(judge_says: Any) -> None:
    asked: list[str] = []

    def says(shared: str, question: str) -> bool:
        asked.append(question)
        return len(shared) % 2 == 0

    judge_says(says)
    first = results("--limit", "16")
    calls = len(asked)
    assert results("--limit", "16") == first
    assert len(asked) <= calls + 2  # the criteria of the first response
    (log,) = (Settings().data_dir / "evaluations").glob("*.jsonl")
    assert "flatter" not in log.read_text()


def test_a_custom_rubric_and_custom_labelled_data_can_be_attacked(tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.json"
    rubric.write_text(json.dumps({"criteria": [{"id": "boats", "description": "Is about boats."}]}))
    (under_rubric,) = results("--rubric", str(rubric), "--limit", "16").values()
    assert {one["attacked"]["value"] for one in under_rubric["kinds"] if one["kind"] == "flattery"} == {1.0}
    row = {"prompt": "?", "responses": ["x", "y"], "labels": [{"boats": False}, {"boats": True}]}
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps(row | {"rubric": json.loads(rubric.read_text())}) + "\n")
    result = run("--data", str(data), "--limit", "16", "--json")
    assert "16 on 1 responses" in json.loads(result.stdout)["attacks"]
    both = run("--data", str(data), "--rubric", str(rubric))
    assert both.exit_code != 0
    assert "leave out --rubric" in both.output


def test_the_table_names_every_kind_and_a_judge_that_cannot_start_is_named(judge_says: Any) -> None:
    shown = " ".join(run("--limit", "16").stdout.split())
    for attack in chosen_attacks(read_corpus(), 16):
        assert attack.kind.name.replace("_", " ") in shown
    broken = run("--limit", "16", judge="nosuch://x")
    assert broken.exit_code == 1
    assert "unknown" in broken.output
