"""The judge as a plugin in verifiers' own tasks, set up by a user's configuration."""

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

pytest.importorskip("verifiers", reason=missing("verifiers"))
pytest.importorskip("verifiers.v1", reason=missing("verifiers 0.4"))

import verifiers.v1 as vf
from verifiers.v1.envs.agentic_judge.env import AgenticJudgeEnvConfig, SharedAgenticJudgeEnv
from verifiers.v1.graph import MessageNode
from verifiers.v1.types import AssistantMessage, ToolMessage, UserMessage

from trainer_client.adapters import NoReward, RubricScorer

pytestmark = pytest.mark.adapters

ID = "adjudge-verifiers"


class QuestionData(vf.TaskData):
    answer: str = "14"


class Question(vf.Task[QuestionData, vf.State, vf.TaskConfig]):
    pass


def traced(data, *said, agent="solver"):
    nodes = [MessageNode(parent=None, message=UserMessage(content=data.prompt), sampled=False)]
    for message in said:
        given = AssistantMessage(content=message) if isinstance(message, str) else message
        nodes.append(MessageNode(parent=len(nodes) - 1, message=given, sampled=isinstance(message, str)))
    about = vf.AgentInfo(name=agent, config=vf.AgentConfig())
    return vf.Trace(agent=about, task=vf.TraceTask(type="Question", data=data), nodes=nodes)


async def scored(judge, *said):
    config = vf.TaskConfig.model_validate({"judges": [{"id": ID, "name": "rubric", **judge}]})
    config = vf.TaskConfig.model_validate(config.model_dump())  # sent to a worker like this
    data = QuestionData(idx=0, prompt="7 * 2?")
    trace = traced(data, *said)
    await Question(data, config).score(trace)
    return trace


async def test_a_task_is_rewarded_by_its_rubric_with_a_metric_for_each_criterion(url):
    for text, reward in REWARDS.items():
        trace = await scored({"url": url, "rubric": RUBRIC, "weight": 2.0}, text)
        assert (trace.rewards["rubric"].score, trace.rewards["rubric"].weight) == (reward, 2.0)
        assert trace.metrics["rubric/exact"] == float(reward == 1.0)


async def test_a_field_of_the_task_is_shown_to_the_judge_under_its_name(url):
    judge = {"url": url, "rubric": ANSWER, "columns": {"ground_truth": "answer"}}
    assert (await scored(judge, RIGHT)).rewards["rubric"].score == 1.0
    assert (await scored(judge, WRONG)).rewards["rubric"].score == 0.0


async def test_all_messages_are_shown_with_the_messages_view(url):
    rubric = [{"id": "first", "description": "Said.", "verification": {"method": "contains", "all_of": ["first"]}}]
    said = ("first", ToolMessage(content="14", tool_call_id="c1"), "last")
    assert (await scored({"url": url, "rubric": rubric}, *said)).rewards["rubric"].score == 0.0
    assert (await scored({"url": url, "rubric": rubric, "view": "messages"}, *said)).rewards["rubric"].score == 1.0


async def test_a_rollout_whose_judging_failed_is_an_error_and_has_no_reward(away):
    judge = {"url": away["client"], "rubric": RUBRIC, "deadline_s": 0.3}
    config = vf.TaskConfig.model_validate({"judges": [{"id": ID, "name": "rubric", **judge}]})
    data = QuestionData(idx=0, prompt="7 * 2?")
    trace = traced(data, "14")
    with pytest.raises(Exception, match="no reward"):
        await Question(data, config).score(trace)
    assert trace.rewards["rubric"] is None


class EvidenceEnv(SharedAgenticJudgeEnv):
    """Their judge runs the work; the rubric judges the reply with its transcript as grounding."""

    async def finalize(self, task, episode):
        await super().finalize(task, episode)
        by_name = {trace.agent.name: trace for trace in episode.traces}
        solved, evidence = by_name["solver"], by_name["judge"].transcript
        scored = await self.scorer.score_one(task.data.prompt_text, solved.last_reply, {"grounding": evidence})
        solved.record_reward("rubric", self.scorer.require(scored))


async def test_a_rubric_adds_its_reward_to_that_of_an_agentic_judge_or_fails_the_episode(url, away):
    given = {"taskset": {"id": "harbor"}, "solver": {"runtime": {"type": "docker"}}, "score": {"task_weight": 1.0}}
    env = EvidenceEnv(AgenticJudgeEnvConfig.model_validate(given))
    data = QuestionData(idx=0, prompt="7 * 2?")
    solved, judge = traced(data, "It is 14"), traced(data, "It ran.", agent="judge")
    judge.info["verdict"] = {"verdicts": [{"name": "solved", "reason": "It is so.", "verdict": "yes"}]}
    episode = vf.Episode.model_construct(traces=[solved, judge])
    solved.record_reward("quality", 0.5)  # of a plugin
    env.scorer = RubricScorer(url, RUBRIC)
    await env.finalize(Question(data, vf.TaskConfig()), episode)
    assert {name: reward.value for name, reward in solved.rewards.items()} == {
        "quality": 0.5,
        "judge": 1.0,
        "rubric": 0.25,
    }
    env.scorer = RubricScorer(rubric=RUBRIC, **away)
    with pytest.raises(NoReward):
        await env.finalize(Question(data, vf.TaskConfig()), episode)
