"""Column names of a dataset, columns that are probably misnamed, and values taken from the trainer."""

import asyncio
import pickle
import sys
from types import SimpleNamespace

import httpx2
import pytest

from tests.trainer_client.trl.judges import (
    CRITERIA,
    FakeJudgeTransport,
    SkippingLoop,
    Trainer,
    client,
    groups,
    response,
    rewarding,
    stream,
    summary,
)
from trainer_client import AsyncClient, InvalidRequest
from trainer_client.trl import RubricRewardWarning, TooManyUnscored
from trainer_client.trl.reward import RubricReward


async def test_a_column_is_read_under_its_name_in_the_dataset():
    judge = FakeJudgeTransport()
    reward = rewarding(judge, columns={"ground_truth": "answer", "grounding": None})
    await reward(["a"], ["1"], answer=[42], grounding=["not for the judge"])
    [group] = judge.asked[0]["groups"]
    assert group["ground_truth"] == "42"
    assert "grounding" not in group


async def test_other_reward_functions_still_see_the_original_column_names():
    seen = []

    def other(prompts, answer, **_):
        seen.extend(answer)
        return [0.0] * len(prompts)

    await rewarding(FakeJudgeTransport(), columns={"ground_truth": "answer"}, extra_rewards=[other])(
        ["a"], ["1"], answer=[42]
    )
    assert seen == [42]


async def test_a_column_missing_from_the_dataset_is_refused_with_the_existing_ones():
    with pytest.raises(InvalidRequest, match=r"'gold', which the dataset does not have; it has 'answer'"):
        await rewarding(FakeJudgeTransport(), columns={"ground_truth": "gold"})(["a"], ["1"], answer=["42"])


def test_an_unknown_judged_column_is_refused_at_once():
    with pytest.raises(ValueError, match="columns has the key 'answer'; its keys are what the judge sees"):
        rewarding(FakeJudgeTransport(), columns={"answer": "ground_truth"})


@pytest.mark.parametrize(
    ("column", "judged"),
    [("answer", "ground_truth"), ("Ground-Truth", "ground_truth"), ("rubrics", "rubric"), ("context", "grounding")],
)
async def test_a_column_that_looks_like_a_judged_one_is_reported_once(column, judged):
    reward = rewarding(FakeJudgeTransport())
    with pytest.warns(RubricRewardWarning) as warned:
        await reward(["a"], ["1"], **{column: ["x"]})
    assert await reward(["a"], ["1"], **{column: ["x"]}) == [1.0]
    [said] = [str(warning.message) for warning in warned]
    assert f"the dataset's column {column!r}, which looks like its {judged}" in said
    assert f"columns={{{judged!r}: {column!r}}}" in said


@pytest.mark.parametrize(
    ("columns", "given"),
    [
        ({"ground_truth": "answer"}, {"answer": ["x"]}),
        ({"ground_truth": None}, {"answer": ["x"]}),
        ({}, {"answer": ["x"], "ground_truth": ["x"]}),
        ({}, {"difficulty": [3], "id": [1]}),
    ],
)
async def test_mapped_hidden_and_unrelated_columns_are_not_reported(columns, given, recwarn):
    await rewarding(FakeJudgeTransport(), columns=columns)(["a"], ["1"], **given)
    assert not recwarn.list


@pytest.mark.parametrize("own", ["mine", None])
async def test_the_run_is_the_clients_or_else_the_trainers(own):
    judge = FakeJudgeTransport()
    trainer = Trainer(args=SimpleNamespace(run_name="qwen-7"))
    template = AsyncClient("http://judge.test", own, transport=judge)
    reward = RubricReward(template, "r", max_unscored=1.0)
    await reward(["a"], ["1"], **trainer.logs)
    assert judge.asked[0]["run"] == (own or "qwen-7")
    assert pickle.loads(pickle.dumps(RubricReward("http://judge.test", "r", preflight=False)))._client.run is None


async def test_without_a_run_name_no_run_is_sent():
    judge = FakeJudgeTransport()
    await RubricReward(AsyncClient("http://judge.test", transport=judge), "r")(["a"], ["1"], **Trainer().logs)
    assert "run" not in judge.asked[0]


async def test_named_rewards_are_called_and_logged_under_their_names():
    style, plain = rewarding(FakeJudgeTransport(), name="style"), rewarding(FakeJudgeTransport())
    trainer = Trainer([style, plain], masks_missing_rewards=True)
    for reward in (style, plain):
        await reward(["a"], ["1"], **trainer.logs)
    assert set(trainer.extra) == {"style", "rubric"}
    assert (style.__name__, plain.__name__) == ("style", "RubricReward")


async def test_the_address_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("ADJUDGE_URL", "http://judge.test")
    assert RubricReward(rubric=CRITERIA, preflight=False)._client.base_url == "http://judge.test"
    monkeypatch.delenv("ADJUDGE_URL")
    with pytest.raises(ValueError, match="set ADJUDGE_URL"):
        RubricReward(rubric=CRITERIA)


def test_a_service_unreachable_until_the_deadline_is_reported_as_unreachable():
    def refuse(body):
        raise httpx2.ConnectError("refused")

    loop = SkippingLoop()
    judge = FakeJudgeTransport(refuse)
    patient = client(judge, retries=1000, retry_budget_s=1000, sleep=asyncio.sleep, clock=loop.time)
    reward = RubricReward(patient, "r", wait_for_judge_s=0.0, max_unscored=1.0, deadline_s=60)
    try:
        assert loop.run_until_complete(reward(["a"], ["1"])) == [None]
    finally:
        loop.close()
    assert len(judge.asked) > 10
    assert reward.last.rows[0].failures == ("unreachable",)


@pytest.mark.parametrize(("version", "stops"), [("0.27.0", True), ("1.5.1", True), ("1.6.0", False), ("1.16.0", False)])
async def test_a_trl_that_counts_a_missing_reward_as_zero_never_gets_one(version, stops, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__=version))
    judge = FakeJudgeTransport(
        lambda body: stream(*groups(body, lambda said: response(None if said["text"] == "?" else 1.0)), summary())
    )
    reward = rewarding(judge)
    assert await reward(["a", "b"], ["1", "2"]) == [1.0, 1.0]
    if stops:
        with pytest.raises(TooManyUnscored, match=rf"1 of 2 responses .* TRL {version} would count them as 0"):
            await reward(["a", "b"], ["1", "?"])
    else:
        assert await reward(["a", "b"], ["1", "?"]) == [1.0, None]
