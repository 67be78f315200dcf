"""The reward function in AReaL's wrapper, which calls it in a process pool."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing
from trainer_client.adapters import NoReward
from trainer_client.adapters.areal import RubricRewardFunction

IDS = ([1, 2], [3, 4])


@pytest.fixture(scope="module")
def reward_api():
    """AReaL's `reward_api`, without the rest of the package, which needs GPU libraries."""
    spec = importlib.util.find_spec("areal")
    if spec is None or spec.origin is None:
        pytest.skip(missing("areal"))
    root = Path(spec.origin).parent
    packages = {"areal": root, "areal.api": root / "api", "areal.utils": root / "utils"}
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in packages.items():
            module = types.ModuleType(name)
            module.__path__ = [str(folder)]
            patch.setitem(sys.modules, name, module)
        yield importlib.import_module("areal.api.reward_api")


@pytest.mark.adapters
async def test_the_wrapper_gets_the_rewards_from_its_process_pool(reward_api, url):
    wrapped = reward_api.AsyncRewardWrapper(RubricRewardFunction(url, RUBRIC), timeout_seconds=60, max_workers=1)
    for text, reward in REWARDS.items():
        assert await wrapped("<|im_start|>user\n7 * 2?", f"{text}<|im_end|>", *IDS) == reward


@pytest.mark.adapters
async def test_a_row_provides_its_conversation_rubric_and_ground_truth(reward_api, url):
    function = RubricRewardFunction(url, columns={"ground_truth": "answer"})
    wrapped = reward_api.AsyncRewardWrapper(function, timeout_seconds=60, max_workers=1)
    row = {"messages": [{"role": "user", "content": "7 * 2?"}], "rubric": ANSWER, "answer": "14", "query_id": "q"}
    assert [await wrapped("7 * 2?", said, *IDS, **row) for said in (RIGHT, WRONG)] == [1.0, 0.0]


@pytest.mark.adapters
async def test_a_failed_judgement_raises_out_of_the_wrapper_which_rejects_the_rollout(reward_api, away):
    function = RubricRewardFunction(rubric=RUBRIC, **away)
    wrapped = reward_api.AsyncRewardWrapper(function, timeout_seconds=60, max_workers=1, max_retries=1)
    with pytest.raises(NoReward, match="unreachable"):
        await wrapped("7 * 2?", "14", *IDS)


@pytest.mark.processes
@pytest.mark.parametrize("end", ["", "<|im_end|>", "<|im_end|>\n<|endoftext|>", "</s>"])
def test_end_of_turn_tokens_are_not_judged(url, end):
    exact = [
        {"id": "e", "description": "Is 14.", "verification": {"method": "regex", "pattern": "14", "match": "full"}}
    ]
    assert RubricRewardFunction(url, exact)("7 * 2?", f"14{end}", *IDS) == 1.0
