"""A rubric reward in TRL's own trainers and in its rollout worker, against a real service."""

import asyncio
import json
import logging
import multiprocessing
import pickle

import pytest

pytest.importorskip("trl")

import torch
from accelerate import PartialState
from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, TrainingSequence, _AsyncRolloutLoop
from trl.trainer.utils import get_callable_name, is_async_callable

from tests.services.processes import serving
from tests.trainer_client.trl.training import dataset, plain_trainer
from trainer_client import Client, InvalidRequest, UnknownRubric
from trainer_client.trl import RubricRewardWarning, TooManyUnscored
from trainer_client.trl.reward import RubricReward

pytestmark = pytest.mark.trl

SAYS_14 = {"id": "says-14", "description": "Says 14.", "verification": {"method": "contains", "all_of": ["14"]}}
EXACT = {"id": "exact", "description": "Is 14.", "verification": {"method": "regex", "pattern": "14", "match": "full"}}
RUBRIC = [SAYS_14, {**EXACT, "weight": 3}]
TEXTS = ["14", "It is 14", "15", "140"]
REWARDS = [1.0, 0.25, 0.0, 0.25]


@pytest.fixture(scope="module")
def small_url(tmp_path_factory):
    """A service whose judge accepts only short prompts, so that it fails on long responses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADJUDGE_DATA_DIR", str(tmp_path_factory.mktemp("small")))
        with serving("scripted://yes?context=300") as service, Client(service.url) as client:
            service.wait_until_ready(client)
            yield service.url


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_a_resumed_plain_trainer_keeps_its_pinned_rubric_version(tmp_path, url, kind):
    name = f"tests/resumed/{kind.lower()}"

    def training(**given):
        given |= {"save_strategy": "steps", "save_steps": 1, "max_completion_length": 8}
        return plain_trainer(tmp_path, RubricReward(url, name), *TEXTS, kind=kind, **given)

    with Client(url) as client:
        first = client.publish_rubric(name, RUBRIC)
        training(max_steps=1).train()
        client.publish_rubric(name, [{**SAYS_14, "description": "Another."}])
    resumed = training(max_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    [reward] = resumed.reward_funcs
    assert reward.pinned(name) == first.reference
    assert reward.last.rows[0].answer.verdicts[-1].criterion == "exact"


def test_columns_that_trl_removes_are_refused(tmp_path, url):
    trained = plain_trainer(tmp_path, RubricReward(url), *TEXTS, data=dataset(RUBRIC), remove_unused_columns=True)
    with pytest.raises(InvalidRequest, match=r"takes 'rubric'.* out of the dataset before the judge sees it"):
        trained.train()


def test_trl_recognises_it_as_an_async_reward_function_with_its_name(url):
    assert is_async_callable(RubricReward(url, "r"))
    assert get_callable_name(RubricReward(url, "r")) == "RubricReward"


def test_grpo_trains_on_the_rewards_of_a_published_rubric(tmp_path, url, capsys):
    with Client(url, "grpo") as client:
        published = client.publish_rubric("tests/grpo", RUBRIC)
        reward = RubricReward(client, "tests/grpo")
    trained = plain_trainer(tmp_path, reward, *TEXTS, log_completions=True, max_steps=2)
    trained.train()
    assert [row.reward for row in reward.last.rows] == REWARDS * 2
    assert {row.response.stopped for row in reward.last.rows} == {True}
    assert [row.response.tokens for row in reward.last.rows][:2] == [3, 9]
    log = trained.state.log_history[0]
    assert log["rewards/RubricReward/mean"] == pytest.approx(sum(REWARDS) / 4)
    assert log["rubric/unscored"] == 0.0
    assert log["rubric/pass/says-14"] == 0.75
    assert log["rubric/pass/exact"] == 0.25
    assert {"rubric/wait_seconds", "rubric/judge_seconds", "rubric/cached"} <= log.keys()
    assert reward.state() == {"pins": {"tests/grpo": published.reference}}
    assert "1 of 2: says-14 ✓ exact ✗" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_rubrics_of_rows_survive_the_nulls_that_a_dataset_adds(tmp_path, url):
    reward = RubricReward(url)
    data = dataset([SAYS_14], rubric=[{"criteria": [SAYS_14, EXACT]}, {"criteria": [EXACT]}])
    assert set(data[0]["rubric"]["criteria"][0]["verification"]) > {"method", "all_of"}  # added by Arrow
    plain_trainer(tmp_path, reward, *TEXTS, data=data).train()
    assert [row.reward for row in reward.last.rows] == [1.0, 0.5, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0]
    assert [len(row.criteria) for row in reward.last.rows] == [2] * 4 + [1] * 4


def test_rubrics_as_json_text_and_numeric_ground_truths_work_too(tmp_path, url):
    rubric = json.dumps([{"id": "a", "kind": "answer", "description": "Is right."}])
    data = dataset(rubric=[rubric] * 2, ground_truth=[14, 15])
    reward = RubricReward(url)
    plain_trainer(tmp_path, reward, "\\boxed{14}", "\\boxed{15}", data=data).train()
    assert [row.reward for row in reward.last.rows] == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]


def test_rloo_trains_on_the_rewards(tmp_path, url):
    reward = RubricReward(url, [{"id": "a", "description": "Is good."}])
    trained = plain_trainer(tmp_path, reward, kind="RLOO", log_completions=True, max_completion_length=8)
    trained.train()
    rewards = [row.reward for row in reward.last.rows]
    assert trained.state.log_history[0]["rewards/RubricReward/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert trained.state.log_history[0]["rubric/judge_calls"] == 8.0


LONG = "x" * 2000


def test_failed_judgements_give_no_reward_and_change_no_weights(tmp_path, small_url):
    reward = RubricReward(small_url, [{"id": "a", "description": "Is short."}], max_unscored=0.5)
    trained = plain_trainer(tmp_path, reward, "1", LONG, "2", "3")
    trained.train()
    assert [row.reward for row in reward.last.rows] == [1.0, None, 1.0, 1.0] * 2
    assert [row.failures for row in reward.last.rows][:2] == [(), ("truncated_input",)]
    log = trained.state.log_history[0]
    assert log["rubric/unscored"] == 0.25
    assert log["rubric/failures/truncated_input"] == 2.0
    assert log["reward"] == 1.0
    assert list(trained._logs["advantages"])[1] == 0.0


def always_1(prompts, **_):
    return [1.0] * len(prompts)


def test_with_another_function_trl_counts_a_missing_reward_as_0_with_a_warning(tmp_path, small_url):
    rubric = [{"id": "a", "description": "Is short."}]
    texts = ["1", LONG, "2", "3"]
    trapped = plain_trainer(tmp_path, [RubricReward(small_url, rubric), always_1], *texts)
    with pytest.warns(RubricRewardWarning, match="TRL counts 0"):
        trapped.train()
    assert list(trapped._logs["advantages"])[1] < 0  # the trap
    safe = plain_trainer(tmp_path, RubricReward(small_url, rubric, extra_rewards=[always_1]), *texts)
    safe.train()
    assert list(safe._logs["advantages"])[1] == 0.0
    assert safe.state.log_history[0]["reward"] == 2.0


def test_too_many_failures_stop_training(tmp_path, small_url):
    reward = RubricReward(small_url, [{"id": "a", "description": "Is short."}], max_unscored=0.25)
    with pytest.raises(TooManyUnscored, match=r"4 of 8 responses .* 4 truncated_input"):
        plain_trainer(tmp_path, reward, "1", LONG).train()


def test_an_unknown_rubric_stops_training(tmp_path, url):
    with pytest.raises(UnknownRubric, match="tests/nowhere"):
        plain_trainer(tmp_path, RubricReward(url, "tests/nowhere", max_unscored=1.0), *TEXTS).train()


async def test_killing_the_service_during_training_costs_rewards_only(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ADJUDGE_DATA_DIR", str(tmp_path))
    with serving("scripted://yes?delay_s=0.02&concurrency=1") as service:
        with Client(service.url, retries=0) as client:
            service.wait_until_ready(client)
            reward = RubricReward(
                client, [{"id": "a", "description": "Is good."}], wait_for_judge_s=0.0, max_unscored=1.0
            )
        call = asyncio.create_task(reward([str(n) for n in range(100)], ["1"] * 100))
        await asyncio.sleep(0.5)
        service.process.kill()
        rewards = await call
    assert set(rewards) <= {None, 1.0}
    assert None in rewards
    assert {row.failures for row in reward.last.rows if row.reward is None} == {("unreachable",)}
    assert "have no reward from" in caplog.text


def rollout_loop(reward):
    """TRL's rollout loop, reduced to scoring: no vLLM, no queues."""
    loop = object.__new__(_AsyncRolloutLoop)
    loop.reward_funcs, loop.reward_func_names = [reward], [get_callable_name(reward)]
    loop._env_reward_types = []
    return loop


def rollouts(**columns):
    """A group as the loop builds it: messages, tokens, columns."""
    count = len(TEXTS)
    return RolloutGroup(
        prompts=[[{"role": "user", "content": "(3+4)*2=?"}]] * count,
        reward_kwargs={name: [value] * count for name, value in columns.items()},
        completions=[[{"role": "assistant", "content": text}] for text in TEXTS],
        completions_ids=[[1, 2]] * count,
        completions_sequences=[[TrainingSequence([1, 2], [0, 1], [0.0, 0.0], "r")]] * count,
        tool_call_counts=[0] * count,
        tool_failure_counts=[0] * count,
        model_version=1,
        group_id=1,
        env_rewards=[None] * count,
        rollout_rewards=[None] * count,
    )


def score_in_child(pickled, answers):
    """Do what `AsyncRolloutWorker` does in its spawned process, starting with the pickled reward function."""
    PartialState()
    logging.disable()
    samples = asyncio.run(rollout_loop(pickle.loads(pickled))._score_group(rollouts(ground_truth=14)))
    answers.put([(sample.advantage, sample.metrics["rewards/RubricReward"]) for sample in samples])


def test_the_rollout_worker_scores_groups_in_a_separate_process(url):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    pickled = pickle.dumps(RubricReward(Client(url, "async"), RUBRIC))
    child = context.Process(target=score_in_child, args=(pickled, answers))
    child.start()
    try:
        scored = answers.get(timeout=120)
    finally:
        child.join(30)
    assert [reward for _, reward in scored] == REWARDS
    advantages = torch.tensor(REWARDS) - torch.tensor(REWARDS).mean()
    expected = advantages / advantages.pow(2).mean().sqrt()
    assert torch.allclose(torch.tensor([advantage for advantage, _ in scored]), expected, atol=1e-4)
