"""What the client costs a step: the made-up step is what it says, and the benchmark runs."""

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

pytest.importorskip("trl")

from benchmarks import client_step
from benchmarks.client_step_data import STEPS, make_step
from benchmarks.client_step_http import exchange, instant_server

from trainer_client.steps import split_steps

pytestmark = pytest.mark.trl


def test_a_step_has_what_a_trainer_gives_a_reward_function() -> None:
    step = make_step(prompts=3, group_size=2, tokens=400, criteria=5)
    assert step.rows == len(step.prompts) == len(step.completion_ids) == len(step.columns["rubric"]) == 6
    assert step.prompts[0] == step.prompts[1] != step.prompts[2]
    assert {len(ids) for ids in step.completion_ids} == {400}
    for ids, text in zip(step.completion_ids, step.completions, strict=True):
        assert step.tokenizer.decode(ids, skip_special_tokens=True) == text
        numbers = [one.number for one in split_steps(text)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) in (STEPS - 1, STEPS)  # the last may be cut off
    assert [len(rubric) for rubric in step.columns["rubric"]] == [5] * 6
    assert len(set(step.completions)) == 6


def test_a_server_that_answers_at_once_sends_what_it_was_given() -> None:
    answer = b'{"a": 1}\n' * 1000

    async def twice(url: str) -> list[int]:
        async with httpx2.AsyncClient() as client:
            return [await exchange(client, url, b"x" * size) for size in (1, 100_000)]

    with instant_server(answer) as server:
        assert asyncio.run(twice(server.url)) == [len(answer)] * 2
        assert server.seconds > 0


@pytest.mark.slow
def test_it_runs_and_the_whole_is_the_sum_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.report.FOLDER", tmp_path)
    client_step.main(["--prompts", "2", "--group", "2", "--tokens", "200", "--criteria", "4", "--repeats", "1"])
    document = json.loads((tmp_path / "client_step.json").read_text())
    medians = {row["part"]: row["median ms"] for row in document["rows"]}
    assert medians["whole step"] == pytest.approx(sum(medians[name] for name in client_step.TOTAL))
    changed = medians[client_step.CALL_ALONE] + medians[client_step.PLACED] - medians["RubricReward"]
    assert medians[client_step.BEFORE] == pytest.approx(medians["whole step"] + changed)
    assert all(row["min"] <= row["median ms"] <= row["max"] for row in document["rows"])
    assert "2 prompts x 2 responses of 200 tokens x 4 criteria" in capsys.readouterr().out
