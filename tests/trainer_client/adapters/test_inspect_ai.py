"""The scorer in inspect_ai's own evaluation, with its mock model."""

import math

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

pytest.importorskip("inspect_ai", reason=missing("inspect_ai"))

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import ChatMessageTool, ChatMessageUser, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, solver

from trainer_client.adapters.inspect_ai import rubric_scorer

pytestmark = pytest.mark.adapters


def evaluated(folder, scorer, samples, outputs, solve=None):
    said = [ModelOutput.from_content("m", text) for text in outputs]
    for output in said:
        output.usage = ModelUsage()  # otherwise tokens are counted with a vocabulary from the network
    model = get_model("mockllm/model", custom_outputs=said)
    task = Task(dataset=samples, solver=solve or generate(), scorer=scorer)
    [log] = eval(task, model=model, log_dir=str(folder), display="none", max_samples=1, max_connections=1)
    assert log.status == "success", log.error
    return read_eval_log(log.location)


def test_samples_are_scored_and_the_log_keeps_the_verdicts(tmp_path, url):
    samples = [Sample(input="7 * 2?", target="14") for _ in REWARDS]
    log = evaluated(tmp_path, rubric_scorer(url, RUBRIC), samples, list(REWARDS))
    scores = [sample.scores["adjudge_rubric"] for sample in log.samples]
    assert [score.value for score in scores] == list(REWARDS.values())
    assert scores[1].explanation == "says-14: 1\nexact: 0"
    assert scores[1].metadata["verdicts"][0]["criterion"] == "says-14"
    assert log.results.scores[0].metrics["mean"].value == pytest.approx(sum(REWARDS.values()) / 3)


def test_the_target_is_the_ground_truth_and_metadata_the_rubric(tmp_path, url):
    samples = [Sample(input="7 * 2?", target="14", metadata={"rubric": ANSWER}) for _ in range(2)]
    log = evaluated(tmp_path, rubric_scorer(url), samples, [RIGHT, WRONG])
    assert [sample.scores["adjudge_rubric"].value for sample in log.samples] == [1.0, 0.0]


def test_tool_calls_and_their_results_are_shown_to_the_judge(tmp_path, url):
    @solver
    def with_tool():
        async def solve(state, generate):
            state = await generate(state)
            state.messages.append(ChatMessageTool(content="the tool says 14", tool_call_id="c1"))
            return await generate(state)

        return solve

    seen = [{"id": "tool", "description": "Used it.", "verification": {"method": "contains", "all_of": ["first"]}}]
    samples = [Sample(input=[ChatMessageUser(content="7 * 2?")], target="14")]
    log = evaluated(tmp_path, rubric_scorer(url, seen), samples, ["first", "14"], with_tool())
    assert log.samples[0].scores["adjudge_rubric"].value == 1.0


def test_a_sample_whose_judging_failed_is_unscored_and_left_out_of_the_mean(tmp_path, away):
    log = evaluated(tmp_path, rubric_scorer(rubric=RUBRIC, **away), [Sample(input="7 * 2?", target="14")], ["14"])
    score = log.samples[0].scores["adjudge_rubric"]
    assert math.isnan(score.value)
    assert score.reason == "adjudge: unreachable"
    assert log.results.scores[0].unscored_samples == 1
    assert log.results.scores[0].scored_samples == 0
