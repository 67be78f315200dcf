"""`adjudge plan`: how many GPUs a judge needs, with a real tokenizer and a real engine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjudge_services.cli.operating.plan import Plan, plan_json, show_plan
from adjudge_services.cli.output import out
from judge_server.evaluation.capacity import (
    CountedCall,
    Demand,
    Training,
    Workload,
    estimate,
    judge_layouts,
    published_rates,
)
from judge_server.models.downloads import fetch
from tests.services.command import adjudge, failure_of

pytestmark = pytest.mark.usefixtures("migrated")

MODEL = "qwen2.5-coder-0.5b"
ENGINE = f"llamacpp://{MODEL}?context=1024&threads=1"
RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is brief."}]}
GROUP = {"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes, since 7 = 7 * 1 alone.", "No.", "No."]}


@pytest.fixture
def sample(tmp_path: Path) -> list[str]:
    """Arguments for a sample of one group and its rubric."""
    (tmp_path / "rubric.json").write_text(json.dumps(RUBRIC))
    (tmp_path / "groups.jsonl").write_text(json.dumps(GROUP) + "\n")
    return [str(tmp_path / "groups.jsonl"), "--rubric", str(tmp_path / "rubric.json")]


def planned(*arguments: str) -> Any:
    result = adjudge("plan", *arguments, "--engine", ENGINE, "--json", exit_code=0)
    return json.loads(result.stdout)


@pytest.mark.model
def test_the_prompt_tokens_of_a_real_engine_are_predicted_exactly(sample: list[str]) -> None:
    fetch(MODEL)
    found = planned(*sample, "--check", "--judging-s", "1000", "--steps-per-hour", "1")
    counted, check = found["sample"], found["check"]
    assert check["computed"] == check["predicted_computed"]
    assert (counted["responses"], counted["judgements"], counted["calls"], counted["repeated"]) == (3, 6, 4, 2)
    assert 0 < counted["prompt_tokens_computed"] < counted["prompt_tokens"]
    assert found["rates"]["source"] == "measured on this machine over 6 calls"
    assert [one["name"] for one in found["alternatives"]] == [
        "no prefix reuse", "no verdict cache", "half of the criteria",
    ]  # fmt: skip


@pytest.mark.model
def test_published_rates_give_the_number_of_gpus_and_their_cost(sample: list[str]) -> None:
    fetch(MODEL)
    options = ["--rates", "llama-3.3-70b-fp8@h100x2", "--small", "llama-3.1-8b-fp8@h100", "--gpu-price", "2.5"]
    found = planned(*sample, *options, "--runs", "1000", "--group-size", "16")
    estimate = found["estimate"]
    assert estimate["gpus"] == 2 * estimate["replicas"]
    assert estimate["cost_per_hour"] == 2.5 * estimate["gpus"]
    assert found["judgements_per_hour"] == 1000 * 60 * 8 * 16 * 2
    assert "TensorRT-LLM 1.0" in found["rates"]["source"]
    assert found["alternatives"][-1]["name"] == "cascade after llama-3.1-8b-fp8@h100, 30% escalated"
    assert found["alternatives"][-1]["seconds_per_response"] < found["alternatives"][0]["seconds_per_response"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "scripted://hash"], "scripted://hash does not tell the tokens of a prompt"),
        (["--gpus", "8", "--rollout-s", "40"], "give both --rollout-s and --update-s, or neither"),
        (["--rollout-s", "0", "--update-s", "0"], "--rollout-s and --update-s are both 0"),
        (["--check", "--rates", "llama-3.1-8b-fp8@h100"], "--check compares with this machine's engine"),
    ],
)
def test_an_impossible_plan_says_why(sample: list[str], options: list[str], message: str) -> None:
    assert message in failure_of(adjudge("plan", *sample, *options))


def test_an_empty_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert "no group to plan with" in failure_of(adjudge("plan", tmp_path / "empty.jsonl"))


def made_plan(rates: str, gpus: int, runs: int = 1) -> Plan:
    """A plan of two responses, with layouts."""
    work = Workload(2, 8, 0, 0, (CountedCall(1000, 800, 1),) * 8)
    chosen, training = published_rates(rates), Training(gpus, 40.0, 20.0, 10.0, 0.15)
    demand, each = Demand(runs, 60, 64, 6.0), chosen.seconds(work.computed, work.written) / 2
    found = estimate(demand, each, chosen.gpus)
    layouts = judge_layouts(demand, training, each, chosen.gpus, found)
    return Plan("judge", work, chosen, demand, found, [], None, None, training, layouts)


@pytest.fixture
def narrow() -> Iterator[None]:
    """A terminal of 80 columns."""
    width, out.width = out.width, 80
    yield
    out.width = width


@pytest.mark.usefixtures("narrow")
def test_layouts_are_shown_side_by_side_on_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(made_plan("llama-3.1-8b-fp8@h100", 8, runs=10_000))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (title,) = (place for place, line in enumerate(lines) if line.startswith("where the judge runs"))
    cells = {row[0]: row[1:] for line in lines[title:] if (row := line.strip("│ ").split()) and row[0].isalpha()}
    assert set(cells) >= {"dedicated", "shared", "sleeping"}
    assert "80,000" in cells["sleeping"]


@pytest.mark.usefixtures("narrow")
def test_a_judge_too_large_for_the_trainers_gpus_is_only_planned_apart(capsys: pytest.CaptureFixture[str]) -> None:
    made = made_plan("llama-3.3-70b-fp8@h100x2", 1)
    show_plan(made)
    assert "cannot share the trainer's GPUs: it needs 2, and a trainer has 1" in capsys.readouterr().out
    assert [layout["name"] for layout in plan_json(made)["layouts"]] == ["dedicated"]


def test_the_json_has_every_number_of_the_layouts() -> None:
    made = made_plan("llama-3.1-8b-fp8@h100", 8)
    found = plan_json(made)
    assert found["training"] == made.training._asdict()  # type: ignore[union-attr]
    assert [layout["step_s"] for layout in found["layouts"]] == [layout.step_s for layout in made.layouts]
    json.dumps(found)
