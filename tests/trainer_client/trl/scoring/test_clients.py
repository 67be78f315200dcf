"""A reward function creates its own clients per event loop, and is pickled without them."""

import asyncio
import inspect
import pickle
import subprocess
import sys
from dataclasses import replace

import httpx2
import pytest

from tests.trainer_client.trl.judges import CRITERIA, FakeJudgeTransport, client, rewarding
from trainer_client import AsyncClient, Client, ConnectionFailed, InvalidRequest
from trainer_client.rows.clients import own_client
from trainer_client.trl.reward import RubricReward
from trainer_client.trl.scoring.extra_rewards import ExtraRewards

URL = "http://judge.test"


def test_it_is_an_async_function_named_after_its_class():
    reward = RubricReward(URL, "r", preflight=False)
    assert inspect.iscoroutinefunction(reward)
    assert asyncio.iscoroutinefunction(reward)
    assert reward.__name__ == "RubricReward"
    assert list(inspect.signature(reward).parameters)[:3] == ["prompts", "completions", "completion_ids"]


@pytest.mark.parametrize("make", [Client, AsyncClient])
async def test_a_given_client_provides_settings_and_stays_with_its_owner(make):
    lender = make(URL, "run", timeout_s=7, retries=1, retry_budget_s=3, headers={"X-Key": "secret"})
    made = own_client(lender)
    assert made is not lender
    assert isinstance(made, AsyncClient)
    assert (made.base_url, made.run) == (URL, "run")
    for name in ("timeout_s", "retries", "retry_budget_s", "headers"):
        assert getattr(made.settings, name) == getattr(lender.settings, name)
    assert made.settings.sleep is asyncio.sleep
    assert "secret" not in repr(made.settings)


async def test_requests_use_the_given_settings():
    seen = []

    class RecordingTransport(FakeJudgeTransport):
        async def handle_async_request(self, request):
            seen.append(request)
            return await super().handle_async_request(request)

    judge = RecordingTransport()
    await RubricReward(client(judge, headers={"Authorization": "Bearer k"}, timeout_s=100), "r", deadline_s=1)(
        ["a"], ["1"]
    )
    assert judge.asked[0]["run"] == "run"
    assert seen[0].headers["Authorization"] == "Bearer k"
    assert seen[0].headers["Accept"] == "application/x-ndjson"
    assert seen[0].extensions["timeout"]["read"] == 100


async def test_with_an_address_a_restarting_service_is_retried_within_the_budget():
    settings = own_client(URL).settings
    waits, tries = [], replace(settings.retry_policy, random=lambda: 0.5).start()
    while (wait := tries.wait_after(ConnectionFailed("refused", retryable=True))) is not None:
        waits.append(wait)
    assert 30 < sum(waits) < settings.retry_budget_s


async def test_a_closed_client_is_replaced():
    reward = rewarding(FakeJudgeTransport())
    await reward(["a"], ["1"])
    await reward.aclose()
    assert await reward(["a"], ["1"]) == [1.0]


@pytest.mark.parametrize("strange", [7, object()])
def test_an_object_that_is_not_a_client_is_refused(strange):
    with pytest.raises(TypeError, match="give an address, a Client or an AsyncClient"):
        RubricReward(strange, "r")


def test_a_client_whose_transport_is_not_async_is_refused():
    with pytest.raises(TypeError, match="transport is not async"):
        RubricReward(Client(URL, transport=httpx2.MockTransport(lambda _: httpx2.Response(200))), "r")


def test_an_invalid_address_is_refused():
    with pytest.raises(ValueError, match="write scheme and host"):
        RubricReward("judge", "r")


def test_pickling_keeps_settings_and_pins_and_drops_the_client():
    reward = RubricReward(
        Client(URL, "run", headers={"X-Key": "k"}),
        CRITERIA,
        mode="factual_override",
        preflight=False,
        deadline_s=9,
        extra_rewards=[length],
        weights=[1, 2],
        votes=3,
    )
    reward.load_state({"pins": {"r": "r@3"}})
    copy = pickle.loads(pickle.dumps(reward))
    assert (copy.mode, copy.state()) == ("factual_override", {"pins": {"r": "r@3"}})
    assert copy._client.settings == reward._client.settings
    assert (copy._extra, copy._options) == (ExtraRewards((length,), (1.0, 2.0)), {"votes": 3})
    assert copy._rubric == reward._rubric


def length(completions, **_):
    return [float(len(completion)) for completion in completions]


@pytest.mark.parametrize("name", ["transport", "clock"])
def test_a_client_that_cannot_be_pickled_names_the_setting_responsible(name):
    options = {"transport": _Unpicklable()} if name == "transport" else {"clock": lambda: 0.0}
    with pytest.raises(TypeError, match=f"the client's {name} .* cannot be pickled"):
        pickle.dumps(RubricReward(AsyncClient(URL, **options), "r", preflight=False))


class _Unpicklable(httpx2.AsyncBaseTransport):
    def __init__(self):
        self.hook = lambda: None


def test_the_last_judged_batch_is_not_pickled():
    reward = rewarding(_picklable())
    asyncio.run(reward(["a"], ["1"]))
    assert reward.last is not None
    assert pickle.loads(pickle.dumps(reward)).last is None


def _picklable():
    return FakeJudgeTransport()


def test_defaults_apply_where_the_user_gave_nothing():
    reward = RubricReward(URL, "r", votes=3, preflight=False)
    assert (reward.mode, reward.on_failure) == ("weighted_mean", "null")
    filled = reward.with_defaults(mode="stepwise", on_failure="zero", votes=1, format_weight=0.2)
    assert (filled.mode, filled.on_failure, filled._options) == (
        "stepwise",
        "zero",
        {"votes": 3, "format_weight": 0.2},
    )
    assert (reward.mode, reward.on_failure, reward._options) == ("weighted_mean", "null", {"votes": 3})
    chosen = RubricReward(URL, "r", mode="points", on_failure="skip", preflight=False).with_defaults(
        mode="stepwise", on_failure="zero"
    )
    assert (chosen.mode, chosen.on_failure) == ("points", "skip")


async def test_a_copy_with_defaults_has_separate_pins():
    reward = rewarding(FakeJudgeTransport())
    reward.load_state({"pins": {"r": "r@1"}})
    copy = reward.with_defaults(mode="points", on_failure="null")
    copy.load_state({"pins": {"r": "r@2"}})
    assert reward.state() == {"pins": {"r": "r@1"}}


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"votes": 0}, InvalidRequest, "judging.votes"),
        ({"format_weight": 2}, InvalidRequest, "reward.format_weight"),
        ({"mode": "points", "protocol": "likert"}, InvalidRequest, "does not support judging.protocol"),
        ({"deadline_s": 0}, InvalidRequest, "deadline_s"),
        ({"mode": "best"}, InvalidRequest, "reward.mode"),
        ({"votse": 1}, TypeError, "did you mean 'votes'"),
        ({"rubric": [{"id": "a"}]}, InvalidRequest, "rubric: criteria.0.description"),
        ({"max_unscored": 1.5}, ValueError, "max_unscored"),
        ({"grace_s": -1}, ValueError, "grace_s"),
    ],
)
def test_an_invalid_option_is_refused_before_training_begins(options, error, says):
    with pytest.raises(error, match=says):
        RubricReward(URL, **{"rubric": "r"} | options)


WITHOUT_TORCH = """
import asyncio, sys, types
from pathlib import Path
import trainer_client

package = types.ModuleType("trainer_client.trl")  # the package itself offers trainers too
package.__path__ = [str(Path(trainer_client.__file__).parent / "trl")]
sys.modules |= {"trainer_client.trl": package, "torch": None, "trl": None, "transformers": None, "accelerate": None}
from trainer_client.trl.reward import RubricReward

options = {"preflight": False, "wait_for_judge_s": 0, "max_unscored": 1.0, "deadline_s": 0.01, "grace_s": 0}
print(asyncio.run(RubricReward("http://127.0.0.1:1", "r", **options)(["a"], ["1"])))
"""


def test_torch_is_not_needed():
    said = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60)
    assert said.stdout == "[None]\n", said.stderr
