"""`adjudge measure`: a file of responses in, figures with intervals out."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from adjudge_services.cli.measuring.measure_file import FileMeasuring
from adjudge_services.cli.scoring.score_file import MeasuredLine, read_measured
from judge_server.evaluation.measuring.trajectories import LoopLimits
from tests.fixtures.embeddings import embedding_server
from tests.services.command import adjudge
from trainer_client import AdjudgeError

pytestmark = pytest.mark.usefixtures("migrated")

RIGHT = "### Step 1: add\n3 + 4 = 7\n### Step 2: end\nSo \\boxed{7}"
WRONG = "### Step 1: add\n3 + 4 = 8\nSo \\boxed{8}"
LINE = {"prompt": "What is 3 + 4?", "ground_truth": "7", "responses": [RIGHT, WRONG, "It is \\boxed{7}"]}


def measure(tmp_path: Path, lines: list[Any], *options: str) -> tuple[Result, dict[str, Any]]:
    """Run the command with a judge that says yes; return the result and the JSON."""
    file, found = tmp_path / "in.jsonl", tmp_path / "found.json"
    file.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    result = adjudge("measure", file, "-o", found, "--engine", "scripted://yes", *options)
    return result, json.loads(found.read_text()) if found.exists() else {}


def test_figures_that_need_no_judge_are_measured_from_texts_alone(tmp_path: Path) -> None:
    result, found = measure(tmp_path, [LINE, LINE])
    assert result.exit_code == 0, result.output
    values = {name: one["value"] for name, one in found["figures"].items()}
    assert values["answer_accuracy"] == pytest.approx(2 / 3)
    assert values["pass_at_2"] == pytest.approx(1.0)
    assert values["loop_rate"] == 0.0
    assert 0 < values["diversity"] < 1
    assert "step_accuracy" not in values
    assert found["alignment"] is None
    assert "answer_accuracy" in result.stdout


def test_steps_are_judged_one_by_one(tmp_path: Path) -> None:
    result, found = measure(tmp_path, [LINE], "--steps", "--plot", str(tmp_path / "found.svg"))
    assert result.exit_code == 0, result.output
    assert found["figures"]["step_accuracy"]["value"] == 1.0
    assert found["figures"]["faithful_reasoning_rate"]["value"] == pytest.approx(1 / 3)
    assert found["figures"]["misaligned_trajectory_rate"]["value"] == pytest.approx(1 / 3)
    counts = {name: count for name, count in found["alignment"].items() if count}
    assert "step_accuracy" in (tmp_path / "found.svg").read_text(encoding="utf-8")
    assert counts == {"right_faithful": 1, "wrong_faithful": 1, "without_steps": 1}


def test_a_rubric_adds_rewards(tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.json"
    rubric.write_text(json.dumps({"criteria": [{"id": "a", "description": "Adds."}]}))
    result, found = measure(tmp_path, [LINE], "--rubric", str(rubric), "--k", "1,3")
    assert result.exit_code == 0, result.output
    assert found["figures"]["best_of_3"]["value"] == 1.0
    assert found["figures"]["zero_reward_share"]["value"] == 0.0
    assert "best_of_2" not in found["figures"]


def test_unjudged_steps_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    result, found = measure(tmp_path, [LINE], "--steps", "--deadline-s", "0.000001")
    assert result.exit_code in (0, 1)
    assert "step_accuracy" not in found["figures"]
    assert found["alignment"]["right_faithful"] == found["alignment"]["wrong_unfaithful"] == 0


def test_a_bad_line_is_reported_and_the_others_are_measured(tmp_path: Path) -> None:
    result, found = measure(tmp_path, ["{", LINE])
    assert result.exit_code == 1
    assert "not JSON" in result.stderr
    assert found["figures"]["pass_at_1"]["problems"] == 1
    refused, _ = measure(tmp_path, [LINE], "--k", "two")
    assert "--k is 'two'" in refused.stderr


def test_likelihoods_give_novelty_and_invalid_ones_are_reported(tmp_path: Path) -> None:
    known = {**LINE, "logprobs": [-1.0, -0.5, 0], "reference_logprobs": [-1.0, -0.5, -3.0]}
    result, found = measure(tmp_path, [known, LINE])
    assert result.exit_code == 0, result.output
    assert found["figures"]["novelty_above_10"]["value"] == pytest.approx(1 / 3)
    short, _ = measure(tmp_path, [{**known, "logprobs": [-1.0]}])
    assert "logprobs: expected a list of 3" in short.stderr
    positive, _ = measure(tmp_path, [{**known, "reference_logprobs": [1.0, -1.0, -1.0]}])
    assert "reference_logprobs: expected" in positive.stderr


def test_the_limits_of_looping_can_be_set(tmp_path: Path) -> None:
    line = {**LINE, "responses": ["Wait, it is \\boxed{7}", "It is \\boxed{7}"]}
    assert measure(tmp_path, [line])[1]["figures"]["loop_rate"]["value"] == 0.0
    assert measure(tmp_path, [line], "--max-corrections", "0")[1]["figures"]["loop_rate"]["value"] == 0.5


def test_an_embedding_server_gives_semantic_distance(tmp_path: Path) -> None:
    lines = [{"prompt": "?", "responses": ["a", "b", "a"]}, {"prompt": "?", "responses": ["aa", "A"]}]
    with embedding_server() as server:
        result, found = measure(tmp_path, lines, "--embeddings", f"{server.url}?model=m")
    assert result.exit_code == 0, result.output
    assert found["figures"]["semantic_distance"]["value"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["figures"]["semantic_distance"]["problems"] == 2


def test_a_line_without_embeddings_is_reported_and_keeps_its_other_figures(tmp_path: Path) -> None:
    lines = [{"prompt": "?", "responses": ["broken", "b"]}, {"prompt": "?", "responses": ["a", "b"]}]
    with embedding_server() as server:
        result, found = measure(tmp_path, lines, "--embeddings", server.url)
    assert result.exit_code == 1
    assert "1: no embeddings: HTTP 500: it is broken" in " ".join(result.stderr.split())
    assert found["figures"]["semantic_distance"]["problems"] == 1
    assert found["figures"]["diversity"]["problems"] == 2
    wrong, _ = measure(tmp_path, lines, "--embeddings", "http://127.0.0.1/v1")
    assert "--embeddings: the URL of the embeddings has the scheme 'http'" in wrong.stderr


class FailingClient:
    """A client whose service fails each time for another reason."""

    async def rewards(self, *_: Any, **__: Any) -> None:
        raise AdjudgeError("the first reason")

    async def verdicts(self, *_: Any, **__: Any) -> None:
        raise AdjudgeError("another reason")


async def test_a_line_that_fails_twice_is_reported_with_the_first_reason(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(LINE))
    lines = [line for line in read_measured(file) if isinstance(line, MeasuredLine)]
    client: Any = FailingClient()
    _, failed = await FileMeasuring(client, None, None, "weighted_mean", True, 1, 1.0, LoopLimits()).measure(lines)
    assert failed == {1: "the first reason"}
