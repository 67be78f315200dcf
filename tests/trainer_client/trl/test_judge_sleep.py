"""A judge that shares the trainer's memory: asleep before, between and after batches, awake for each, over REST."""

import asyncio
import time

import httpx2
import pytest

from tests.trainer_client.trl.judges import FakeJudgeTransport, obliging, problem, rewarding
from trainer_client import Client, Forbidden, NotReady
from trainer_client.trl.reward import RubricReward

RUBRIC = [{"id": "right", "description": "Is right."}]


def state(url):
    """The state of the service's judge."""
    return httpx2.get(f"{url}/readyz").json().get("sleep", {}).get("default", "awake")


def wait_until_awake(url):
    """Wait until every lease on the judge has ended."""
    while state(url) != "awake":
        time.sleep(0.05)


def test_the_judge_sleeps_before_and_after_a_batch_and_judges_it(url):
    reward = RubricReward(Client(url, "sleep/batch"), RUBRIC, judge_lease_s=60)
    assert state(url) == "asleep"
    for _ in range(2):
        assert None not in asyncio.run(reward(["What is 7 * 2?"] * 2, ["14", "It is 15."]))
        assert state(url) == "asleep"
    reward.hold_sleep(0.1)
    wait_until_awake(url)


def test_training_does_not_go_on_while_another_trainer_keeps_the_judge_awake(url):
    with Client(url) as other:
        assert other.wake_judge("other", lease_s=60).kept_awake_by == ("other",)
        reward = RubricReward(Client(url, "sleep/other"), RUBRIC, judge_lease_s=60, wait_for_judge_s=0.2)
        with pytest.raises(NotReady, match="not asleep after 0 s, but awake; kept awake by: other"):
            asyncio.run(reward(["What is 7 * 2?"], ["14"]))
        other.put_judge_to_sleep("other", lease_s=0.1)
        assert None not in asyncio.run(reward(["What is 7 * 2?"], ["14."]))
        assert state(url) == "asleep"
    reward.hold_sleep(0.1)
    wait_until_awake(url)


def leases(answer):
    """A judge that answers requests for leases so."""

    class Judge(FakeJudgeTransport):
        async def handle_async_request(self, request):
            if request.url.path.startswith("/v1/judges/"):
                return answer(request.url.path.rpartition("/")[2])
            return await super().handle_async_request(request)

    return Judge(obliging)


def test_a_judge_that_does_not_wake_at_once_is_asked_nevertheless():
    def answer(verb):
        if verb == "wake":
            return problem("not-ready", 503, retryable=True)
        return httpx2.Response(200, json={"judge": "default", "state": "asleep"})

    reward = rewarding(leases(answer), judge_lease_s=60)
    assert asyncio.run(reward(["a", "b"], ["0.25", "0.5"])) == [0.25, 0.5]


def test_a_lease_must_outlast_the_deadline():
    for lease_s in (0, 29, float("nan")):
        with pytest.raises(ValueError, match="judge_lease_s is"):
            rewarding(FakeJudgeTransport(), judge_lease_s=lease_s, deadline_s=30)


def test_a_key_that_may_not_wake_the_judge_stops_training():
    reward = rewarding(leases(lambda verb: problem("forbidden", 403)), judge_lease_s=60)
    with pytest.raises(Forbidden):
        asyncio.run(reward(["a", "b"], ["0.25", "0.5"]))


@pytest.mark.trl
def test_the_callback_keeps_the_judge_asleep_while_a_trainer_trains(tmp_path, url):
    pytest.importorskip("trl")
    from transformers import TrainerCallback

    from tests.trainer_client.trl.training import dataset, trainer

    reward = RubricReward(Client(url, "sleep/trained"), RUBRIC, judge_lease_s=60)
    states = []
    data = dataset().remove_columns("rubric")
    trained = trainer(tmp_path, url, texts=["14", "It is 15."], data=data, reward=reward, max_steps=2)

    class Watch(TrainerCallback):
        def on_step_end(self, *_, **__):
            states.append(state(url))

    trained.add_callback(Watch())
    trained.train()
    assert states == ["asleep", "asleep"]
    assert any(name.startswith("rewards/") for name in trained.state.log_history[0])
    wait_until_awake(url)
