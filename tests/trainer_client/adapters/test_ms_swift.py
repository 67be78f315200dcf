"""The reward function, called by the Swift function that computes its trainers' rewards."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from tests.fixtures.waiting import wait_until
from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

pytest.importorskip("swift.rl_core.grpo_algorithm", reason=missing("ms-swift"))

import torch
from swift.rewards import orms
from swift.rl_core.advantage import compute_advantages
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import compute_rewards_per_func

from trainer_client import Client, InvalidRequest
from trainer_client.adapters import NoReward
from trainer_client.adapters.ms_swift import rubric_orm, rubric_orms
from trainer_client.advantages import component_advantages

pytestmark = pytest.mark.adapters


def rewards(orm, texts, **columns):
    """The rewards that Swift computes for these completions, and the function's name."""
    found, (function,) = computed({"rubric": orm}, texts, **columns)
    return found[:, 0].tolist(), type(function).__name__


def computed(classes, texts, **columns):
    """The rewards that Swift computes, N x functions; the functions are created as Swift's trainer does."""
    orms.update(classes)
    functions = [orms[name](args=SimpleNamespace(run_name="swift")) for name in classes]
    samples = [
        GRPOSample.from_row(
            {
                "messages": [{"role": "user", "content": "7 * 2?"}, {"role": "assistant", "content": text}],
                "prompt_id": "p",
                "request_id": str(place),
                **{name: values[place] for name, values in columns.items()},
            }
        )
        for place, text in enumerate(texts)
    ]
    state = SimpleNamespace(global_step=3)
    return compute_rewards_per_func(samples, functions, None, torch.device("cpu"), trainer_state=state), functions


def test_swift_computes_the_rubric_rewards(url):
    assert rewards(rubric_orm(url, RUBRIC, name="Style"), list(REWARDS)) == (list(REWARDS.values()), "Style")


def test_columns_of_the_dataset_provide_a_rubric_and_a_ground_truth(url):
    columns = {"rubric": [ANSWER] * 2, "ground_truth": ["14"] * 2}
    assert rewards(rubric_orm(url), [RIGHT, WRONG], **columns)[0] == [1.0, 0.0]


def test_each_component_is_a_function_over_one_judging_which_swift_normalises_by_itself(url):
    classes = rubric_orms(["says-14", "exact", "other"], url, RUBRIC, components="criterion", run="components")
    found, _ = computed(classes, list(REWARDS))
    with Client(url) as client:
        wait_until(lambda: [run.requests for run in client.runs() if run.run == "components"] == [1])
    assert list(classes) == ["rubric/says-14", "rubric/exact", "rubric/other"]
    assert found[:, :2].tolist() == [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    assert found[:, 2].isnan().all()
    weights = torch.tensor([0.25, 0.75, 1.0])
    advantages, total = compute_advantages(found, weights, 3, scale_rewards="gdpo")
    assert total.tolist() == list(REWARDS.values())
    components = [dict(zip(("a", "b"), row, strict=True)) for row in found[:, :2].tolist()]
    own = component_advantages([components], [{"a": 0.25, "b": 0.75}], eps=1e-8)[0]
    assert advantages.tolist() == pytest.approx(own.tolist(), abs=1e-5)


def test_a_failed_component_is_an_error_since_swift_would_count_0(away):
    with pytest.raises(NoReward, match=r"component 'exact'.*unreachable"):
        computed(rubric_orms(["exact"], rubric=RUBRIC, components="criterion", **away), ["14"])
    with pytest.raises(ValueError, match="components='criterion', 'kind' or 'tag'"):
        rubric_orms(["exact"], "http://judge.invalid", RUBRIC)
    with pytest.raises(ValueError, match="use components='tag'"):
        rubric_orms(["exact"], "http://judge.invalid", RUBRIC, components="criterion", weighting="contrast")


def test_a_ranking_needs_whole_groups():
    orm = rubric_orm("http://judge.invalid", RUBRIC, mode="ranking")
    function = orm(args=SimpleNamespace(run_name="swift", num_generations=4))
    with pytest.raises(InvalidRequest, match=r"scores 2 of them at a time, and a group has 4"):
        asyncio.run(function(["14", "15"], messages=[[{"role": "user", "content": "7 * 2?"}]] * 2))


def test_a_failed_judgement_is_an_error_since_swift_would_count_0(away):
    with pytest.raises(NoReward, match="unreachable"):
        rewards(rubric_orm(rubric=RUBRIC, **away), ["14"])
    assert torch.tensor([[math.nan]]).nansum(dim=1).item() == 0.0  # the sum in swift/rl_core/advantage.py
