"""The verifier as open-instruct calls it, recorded from its `ground_truth_utils` of August 2026.

open-instruct is in no package registry, so this module contains the part of its classes that its trainers use.
"""

import asyncio
import dataclasses
import importlib
import json
import sys
import types

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG
from trainer_client.adapters import NoReward

pytestmark = pytest.mark.processes


@dataclasses.dataclass
class VerifierConfig:
    @classmethod
    def from_args(cls, *sources):
        return cls()


@dataclasses.dataclass
class VerificationResult:
    score: float
    cost: float = 0.0
    reasoning: str | None = None


class VerifierFunction:
    def __init__(self, name, weight=1.0, verifier_config=None):
        self.name, self.weight, self.verifier_config = name, weight, verifier_config

    @classmethod
    def get_config_class(cls):
        return VerifierConfig


@pytest.fixture
def adapter(monkeypatch):
    recorded = types.ModuleType("open_instruct.ground_truth_utils")
    recorded.VerificationResult, recorded.VerifierFunction = VerificationResult, VerifierFunction
    monkeypatch.setitem(sys.modules, "open_instruct", types.ModuleType("open_instruct"))
    monkeypatch.setitem(sys.modules, "open_instruct.ground_truth_utils", recorded)
    monkeypatch.delitem(sys.modules, "trainer_client.adapters.open_instruct", raising=False)
    yield importlib.import_module("trainer_client.adapters.open_instruct")
    sys.modules.pop("trainer_client.adapters.open_instruct", None)


async def applied(name, responses, labels):
    """The rewards of `apply_verifiable_reward` with the verifiers that `build_all_verifiers` finds."""
    found = [made(made.get_config_class().from_args(None, None)) for made in VerifierFunction.__subclasses__()]
    verifiers = {one.name.lower(): one for one in found}
    calls = [
        verifiers[name].async_call(
            tokenized_prediction=[1], prediction=said, label=label, query="7 * 2?", rollout_state={}
        )
        for said, label in zip(responses, labels, strict=True)
    ]
    return [result.score for result in await asyncio.gather(*calls)]


async def test_a_verifier_is_found_by_its_name_and_returns_the_rubric_rewards(adapter, url):
    adapter.rubric_verifier(url, RUBRIC, name="plain")
    assert await applied("plain", list(REWARDS), ["14"] * 3) == list(REWARDS.values())


async def test_labels_provide_a_rubric_and_a_ground_truth(adapter, url):
    adapter.rubric_verifier(url, name="labelled")
    label = {"query": "7 * 2?", "rubric": ANSWER, "ground_truth": "14"}
    assert await applied("labelled", [RIGHT, WRONG], [json.dumps(label), label]) == [1.0, 0.0]


async def test_rubrics_of_open_instructs_data_sets_are_read_with_their_weights(adapter, url):
    seen = adapter._read_label(
        {"query": "q", "rubrics": [{"description": "A.", "weight": 2}, {"rubric_item": "B."}]}, None
    )
    assert seen == (
        "q",
        {"rubric": [{"id": "c1", "description": "A.", "weight": 2}, {"id": "c2", "description": "B.", "weight": 1.0}]},
    )


async def test_a_failed_judgement_is_an_error(adapter, away):
    adapter.rubric_verifier(rubric=RUBRIC, name="away", **away)
    with pytest.raises(NoReward, match="unreachable"):
        await applied("away", ["14"], ["14"])


def test_the_synchronous_call_returns_the_same(adapter, url):
    made = adapter.rubric_verifier(url, RUBRIC, name="sync")
    result = made()([1], "It is 14", "14", "7 * 2?")
    assert (result.score, result.reasoning) == (0.25, "says-14: 1\nexact: 0")
