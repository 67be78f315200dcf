"""`adjudge measure --run`: a run of the ledger in, figures by training step out, without a judge."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from adjudge_services.cli.measuring.measure_ledger import RecordedResponse, problems_of
from judge_server.evaluation.measuring.trajectories import LoopLimits
from judge_server.ports import Batch, Call, CallFailure, Reply
from rubric_store import SQLLedger
from tests.fixtures.embeddings import embedding_server
from tests.judge_server.ledger.judged import rows
from tests.services.command import adjudge, failure_of
from trainer_client.wire.ledger import RecordedVerdict

RUBRIC = {
    "criteria": [
        {"id": "setup", "description": "Sets it up.", "kind": "suggest", "weight": 1},
        {"id": "slip", "description": "Slips.", "kind": "pitfall", "weight": -1},
        {"id": "answer", "description": "Is right.", "kind": "answer", "weight": 1},
    ]
}
LOOPING = "### Step 1: a\n### Step 1: a\nSo \\boxed{8}"


def careful(batch: Batch, call: Call) -> Reply | CallFailure:
    """Say yes to the setup of responses that say 7, no to all else, and fail on broken ones."""
    if "broken" in batch.shared:
        return CallFailure("engine", "it is away")
    return Reply((1.0, 0.0) if "Sets" in call.question and "\\boxed{7}" in batch.shared else (0.0, 1.0))


def body(step: int, *responses: str, prompt: str = "What is 3 + 4?") -> dict[str, Any]:
    """Return a request that judges responses by the rubric."""
    group = {"id": "g", "prompt": prompt, "responses": list(responses), "ground_truth": "7"}
    return {"run": "r", "step": step, "groups": [group], "rubric": RUBRIC, "reward": {"mode": "points"}}


@pytest.fixture
def keep_texts() -> bool:
    """Whether the ledger stores texts."""
    return True


@pytest.fixture
def recorded(migrated: None, data_dir: Path, keep_texts: bool) -> None:
    """A run of two steps: one of two right in the first, all right in the second except for one judge failure."""

    async def write() -> None:
        bodies = [
            body(1, "So \\boxed{7}", LOOPING),
            body(2, "It is \\boxed{7}"),
            body(2, "Thus \\boxed{7}", "broken \\boxed{7}"),
        ]
        ledger = SQLLedger(f"sqlite+aiosqlite:///{data_dir / 'adjudge.db'}")
        ledger.write(await rows(*bodies, script=careful, keep_texts=keep_texts))
        await ledger.close()

    asyncio.run(write())


def measure(tmp_path: Path, *options: str) -> tuple[Result, dict[str, Any]]:
    """Run the command; return the result and the JSON."""
    file = tmp_path / "found.json"
    result = adjudge("measure", "--run", "r", "-o", file, *options)
    return result, json.loads(file.read_text()) if file.exists() else {}


@pytest.mark.usefixtures("recorded")
def test_a_run_is_measured_from_its_verdicts_and_rewards(tmp_path: Path) -> None:
    result, found = measure(tmp_path)
    assert result.exit_code == 0, result.output
    values = {name: one["value"] for name, one in found["figures"].items()}
    assert values["answer_accuracy"] == pytest.approx((1 / 2 + 1) / 2)
    assert values["pass_at_2"] == 1.0
    assert values["correlation_with_satisfaction"] == 1.0
    assert (found["responses"], found["without_reward"]) == (5, 1)
    assert "loop_rate" not in values
    assert "add --texts" in result.stderr


@pytest.mark.usefixtures("recorded")
def test_a_response_on_which_the_judge_failed_has_no_reward_instead_of_zero(tmp_path: Path) -> None:
    _, found = measure(tmp_path, "--step", "2")
    assert found["figures"]["zero_reward_share"]["value"] == 0.0
    assert "best_of_4" not in found["figures"]
    assert "1 responses have no reward" in measure(tmp_path, "--step", "2")[0].stderr


@pytest.mark.usefixtures("recorded")
def test_each_training_step_has_its_own_figures(tmp_path: Path) -> None:
    result, found = measure(tmp_path)
    first, second = found["steps"]
    assert (first["step"], second["step"]) == (1, 2)
    assert (first["figures"]["pass_at_1"], second["figures"]["pass_at_1"]) == (0.5, 1.0)
    assert "the last 2 of 2 steps" in result.stdout


@pytest.mark.usefixtures("recorded")
def test_with_texts_looping_and_diversity_are_measured(tmp_path: Path) -> None:
    result, found = measure(tmp_path, "--texts", "--step", "1")
    assert result.exit_code == 0, result.output
    assert found["figures"]["loop_rate"]["value"] == 0.5
    assert 0 < found["figures"]["diversity"]["value"] <= 1


@pytest.mark.usefixtures("recorded")
def test_a_run_has_semantic_distances_by_step_if_its_texts_can_be_embedded(tmp_path: Path) -> None:
    with embedding_server() as server:
        result, found = measure(tmp_path, "--texts", "--embeddings", server.url)
        refused, _ = measure(tmp_path, "--embeddings", server.url)
    first, second = found["steps"]
    assert 0 < first["figures"]["semantic_distance"] < 1
    assert "semantic_distance" not in second["figures"]  # one of its responses cannot be embedded
    assert found["figures"]["semantic_distance"]["problems"] == 1
    assert result.exit_code == 1
    assert "1 problems: no embeddings: HTTP 500: it is broken" in " ".join(result.stderr.split())
    assert "add --texts" in refused.stderr


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("keep_texts", [False])
def test_missing_texts_in_the_ledger_are_reported(tmp_path: Path) -> None:
    result, found = measure(tmp_path, "--texts")
    assert result.exit_code == 0, result.output
    assert "keeps no text of 5 responses" in result.stderr
    assert "loop_rate" not in found["figures"]
    assert found["figures"]["pass_at_1"]["value"] == 0.75


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--step", "9"], "no requests of run 'r' at step 9"),
        (["--rubric", "math"], "--rubric cannot be used here"),
        (["--steps"], "no ground truth"),
        ([__file__], "give either"),
    ],
)
def test_an_invalid_command_is_refused_with_a_message(tmp_path: Path, options: list[str], said: str) -> None:
    result, _ = measure(tmp_path, *options)
    assert said in failure_of(result)


def test_a_failed_verdict_on_the_answer_leaves_it_unknown() -> None:
    about = {"run": "r", "step": None, "group": "g", "response": 0, "rubric": "sha256:0", "request_id": "q"}
    verdicts = [
        RecordedVerdict.model_validate(
            {**about, "at": "2026-01-01T00:00:00Z", "kind": kind, "verdict": {"criterion": kind, **verdict}}
        )
        for kind, verdict in [
            ("answer", {"status": "failed", "failure": {"kind": "parse", "detail": "?"}}),
            ("suggest", {"status": "ok", "score": 1.0}),
        ]
    ]
    response = RecordedResponse(verdicts[0])
    for one in verdicts:
        response.add(one)
    assert response.correct is None
    ((problem,),) = problems_of([response], LoopLimits()).by_step.values()
    assert (problem.trajectories[0].correct, problem.trajectories[0].satisfied) == (None, 1.0)
