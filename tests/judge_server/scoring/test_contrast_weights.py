"""Groups that are rewarded under weights of their own: the answer, the ledger and the recomputation."""

from typing import Any

import pytest

from judge_server.errors import InvalidRequest
from judge_server.ledger.monitoring.gold import sample
from judge_server.scoring.recompute import recompute
from judge_server.scoring.recorded import recorded_page
from rubric_store import SQLLedger
from rubric_store.ledger.rows import UseFilter
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score, scorer, some_fail
from trainer_client.wire import RewardRequest
from trainer_client.wire.ledger import RecomputedGroup, RecomputeRequest

CRITERIA = [
    {"id": "yes", "description": "?", "weight": 2, "verification": {"method": "contains", "any_of": ["yes"]}},
    {"id": "dot", "description": "?", "weight": 2, "verification": {"method": "contains", "any_of": ["."]}},
    {"id": "polite", "description": "Is polite.", "tags": ["style", "x"], "weight": 3},
    {"id": "short", "description": "Is short.", "tags": ["style"]},
    {"id": "rude", "description": "Is rude.", "weight": -1},
    {"id": "watched", "description": "Is kind.", "shadow": True},
]
RULES = {"mode": "absolute_points", "weighting": "contrast", "components": "tag"}


def body(**fields: Any) -> dict[str, Any]:
    """A request of two groups with the same id, whose responses differ in other ways."""
    groups = [
        {"id": "g", "prompt": "Is 7 prime?", "responses": ["yes.", "yes, it is.", "no.", "…."]},
        {"id": "g", "prompt": "Is 8 prime?", "responses": ["yes.", "yes", "yes!", ""]},
    ]
    asked = {"rubric": {"criteria": CRITERIA}, "reward": RULES, "on_failure": "skip", "groups": groups}
    return asked | {"run": "r", "step": 1} | fields


def declared(asked: dict[str, Any]) -> dict[str, Any]:
    """The request under the rubric's own weights."""
    return asked | {"reward": {name: value for name, value in asked["reward"].items() if name != "weighting"}}


def rewards(groups: Any) -> list[list[tuple[Any, ...]]]:
    """The two rewards and the components of each response, by group."""
    return [[(one.reward, one.declared_reward, one.components) for one in group.responses] for group in groups]


async def test_a_group_has_its_weights_and_each_response_its_reward_under_the_rubrics_own() -> None:
    made = await scorer(SynchronousRecorder())
    answer, own = await score(made, body()), await score(made, declared(body()))
    (first, second) = answer.groups
    assert first.criterion_weights["yes"] == 3.0  # half of the responses say it, and all have a dot
    assert first.criterion_weights["dot"] == 1.0
    assert first.criterion_weights["rude"] == -1.0
    assert first.criterion_weights["polite"] + first.criterion_weights["short"] == pytest.approx(4.0)
    assert "watched" not in first.criterion_weights
    assert second.criterion_weights != first.criterion_weights
    for group, plain in zip(answer.groups, own.groups, strict=True):
        assert [one.declared_reward for one in group.responses] == [one.reward for one in plain.responses]
    assert rewards(answer.groups) != rewards(own.groups)


async def test_components_add_up_to_the_reward_under_the_groups_weights() -> None:
    answer = await score(await scorer(SynchronousRecorder()), body())
    for group in answer.groups:
        for response in group.responses:
            total = sum(group.component_weights[name] * (one or 0.0) for name, one in response.components.items())
            assert total == pytest.approx(response.reward)


async def test_an_answer_under_the_rubrics_own_weights_keeps_its_json() -> None:
    written = (await score(await scorer(SynchronousRecorder()), declared(body()))).model_dump_json()
    assert "declared_reward" not in written
    assert "criterion_weights" not in written


async def test_the_ledger_keeps_both_rewards_and_recomputes_them_with_the_weights(ledger: SQLLedger) -> None:
    answer = await score(await scorer(SynchronousRecorder(ledger), some_fail), body())
    recorded_verdicts = (await recorded_page(ledger, UseFilter(PROJECT, "r"), texts=False)).verdicts
    kept = {
        (one.group, one.prompt_digest, one.response): (one.reward, one.declared_reward) for one in recorded_verdicts
    }
    assert sorted(kept.values()) == sorted((a, b) for group in rewards(answer.groups) for a, b, _ in group)
    again = [part async for part in recompute(ledger, RecomputeRequest(run="r"), project_id=PROJECT)]
    groups = [part for part in again if isinstance(part, RecomputedGroup)]
    assert rewards(groups) == rewards(answer.groups)
    assert [(one.criterion_weights, one.component_weights) for one in groups] == [
        (one.criterion_weights, one.component_weights) for one in answer.groups
    ]


async def test_a_run_can_be_recomputed_under_either_weighting(ledger: SQLLedger) -> None:
    asked = body()
    asked["groups"] = asked["groups"][:1]
    made = await scorer(SynchronousRecorder(ledger), some_fail)
    expected = await score(made, asked | {"run": "other"})
    await score(made, declared(asked))

    async def recomputed(run: str, **rules: Any) -> list[RecomputedGroup]:
        request = RecomputeRequest.model_validate({"run": run, "reward": rules})
        parts = [part async for part in recompute(ledger, request, project_id=PROJECT)]
        return [part for part in parts if isinstance(part, RecomputedGroup)]

    assert rewards(await recomputed("r", weighting="contrast")) == rewards(expected.groups)
    assert rewards(await recomputed("other", weighting="declared")) == rewards(await recomputed("r"))
    with pytest.raises(InvalidRequest, match="run 'other' was judged with, mode 'gate' is not a weighted sum"):
        await recomputed("other", mode="gate", components=None)


async def test_a_run_with_dropout_cannot_be_recomputed_under_contrast(ledger: SQLLedger) -> None:
    await score(await scorer(SynchronousRecorder(ledger)), declared(body()) | {"dropout": {"keep": 0.5}})
    asked = RecomputeRequest.model_validate({"run": "r", "reward": {"weighting": "contrast"}})
    with pytest.raises(InvalidRequest, match=r"group 'g' in request req_1: .* rubric dropout left some out"):
        [part async for part in recompute(ledger, asked, project_id=PROJECT)]


async def test_a_gold_judge_is_compared_under_the_rubrics_own_weights() -> None:
    recorder = SynchronousRecorder()
    asked = body(gold={"judge": "gold", "share": 1.0})
    answer = await score(await scorer(recorder), asked)
    sampled = sample(RewardRequest.model_validate(asked), recorder.judged[0])
    assert sampled is not None
    assert sampled.request.reward.weighting == "declared"
    expected = [one.declared_reward for group in answer.groups for one in group.responses]
    assert [one.reward for one in sampled.first] == expected
