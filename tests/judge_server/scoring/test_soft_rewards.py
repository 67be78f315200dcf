"""Soft rewards: the calibrated probability of yes in place of a verdict of 0 or 1."""

import dataclasses
import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from judge_server.engines.scripted import CAPABILITIES, ScriptedEngine, by_hash
from judge_server.errors import InvalidRequest
from judge_server.ports import Batch, Call, Reply
from judge_server.scoring.scorer import Scorer
from tests.judge_server.ledger.judged import SynchronousRecorder, score, scorer
from tests.judge_server.support import STEPPED, judge, request
from trainer_client.rewards import reward
from trainer_client.steps import step_deltas
from trainer_client.wire import NOT_LINEAR, PROTOCOLS_FOR, YES_NO_PROTOCOLS, RewardAnswer, RewardOptions

LINEAR = [mode for mode in PROTOCOLS_FOR if mode not in NOT_LINEAR]
KINDS = ["point", "suggest", "bonus", "answer"]


def soft(mode: str, **fields: Any) -> dict[str, Any]:
    """A request for soft rewards by two criteria without a pitfall."""
    criteria = [
        {"id": "a", "kind": "answer", "description": "Says yes."},
        {"id": "b", "description": "Gives a reason."},
    ]
    body = request("Yes.", "No.", rubric={"criteria": criteria})
    return body | {"reward": {"mode": mode, "use": "probability"}} | fields


def sure(batch: Batch, call: Call) -> Reply:
    """Answer yes to everything, with more mass on yes for a longer response."""
    yes = 0.55 + 0.4 * math.tanh(len(batch.shared) / 4000)
    return Reply(masses=(yes, 1 - yes))


@given(
    mode=st.sampled_from(LINEAR),
    criteria=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 5), st.floats(0, 1)), min_size=1, max_size=5),
    negative=st.booleans(),
)
def test_a_soft_reward_is_the_expectation_of_the_hard_one(
    mode: Any, criteria: list[tuple[str, int, float]], negative: bool
) -> None:
    loses = negative and mode in ("points", "absolute_points", "graded_mean")
    rubric = [{"kind": kind, "weight": weight} for kind, weight, _ in criteria] + [{"kind": "answer", "weight": 1}]
    rubric += [{"kind": "point", "weight": -2}] if loses else []
    yes = [p for *_, p in criteria] + [0.7] + ([0.3] if loses else [])
    options = {"format_ok": True} if mode == "stepwise" else {}
    expected = math.fsum(
        math.prod(p if s else 1 - p for s, p in zip(drawn, yes, strict=True)) * reward(rubric, drawn, mode, **options)  # type: ignore[arg-type, operator]
        for drawn in product((0.0, 1.0), repeat=len(yes))
    )
    assert reward(rubric, yes, mode, **options) == pytest.approx(expected)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.sampled_from(["suggest", "pitfall", "bonus"]), st.floats(0, 1)), min_size=1, max_size=5))
def test_soft_deltas_of_steps_are_the_expectation_of_the_hard_ones(criteria: list[tuple[str, float]]) -> None:
    rubric = [{"kind": kind} for kind, _ in criteria]
    yes, steps = [p for _, p in criteria], [n % 2 + 1 for n in range(len(criteria))]
    found = step_deltas(rubric, yes, steps, 2, soft=True)
    for step in set(steps):
        expected = math.fsum(
            math.prod(p if s else 1 - p for s, p in zip(drawn, yes, strict=True))
            * step_deltas(rubric, drawn, steps, 2)[step]
            for drawn in product((0.0, 1.0), repeat=len(yes))
        )
        assert found[step] == pytest.approx(expected)


@pytest.mark.parametrize("mode", [mode for mode in NOT_LINEAR if mode != "ranking"])  # ranking has soft wins
def test_a_mode_that_is_not_linear_refuses_probabilities_and_says_why(mode: Any) -> None:
    with pytest.raises(ValidationError, match=f"mode '{mode}' {NOT_LINEAR[mode][:20]}.*is not linear"):
        RewardOptions(mode=mode, use="probability")


@pytest.mark.parametrize("mode", [mode for mode in LINEAR if set(PROTOCOLS_FOR[mode]) & set(YES_NO_PROTOCOLS)])
async def test_every_linear_mode_takes_the_probability_of_yes(mode: str) -> None:
    made = await scorer(SynchronousRecorder(), by_hash)
    answer = await score(made, soft(mode))
    hard = await score(made, soft(mode, reward={"mode": mode}))
    for response, before in zip(answer.groups[0].responses, hard.groups[0].responses, strict=True):
        a, b = (verdict.probability for verdict in response.verdicts)
        assert a is not None
        assert b is not None
        assert response.reward == pytest.approx(0.9 * a if mode == "stepwise" else (a + b) / 2)
        assert [v.score for v in response.verdicts] == [v.score for v in before.verdicts]
    assert answer.usage.judge_calls == 4
    assert hard.usage.judge_calls == 0


async def test_soft_rewards_distinguish_responses_that_hard_rewards_tie() -> None:
    made = await scorer(SynchronousRecorder(), sure)
    body = soft("weighted_mean")
    body["groups"][0]["responses"] = ["Yes.", "Yes, because. " * 50, "Yes, since it is so. " * 200]

    def rewards(answer: RewardAnswer) -> list[float | None]:
        return [response.reward for response in answer.groups[0].responses]

    hard = rewards(await score(made, body | {"reward": {"mode": "weighted_mean"}}))
    graded = rewards(await score(made, body))
    assert hard == [1.0, 1.0, 1.0]
    assert graded == sorted(graded, key=float)  # type: ignore[arg-type]
    assert len(set(graded)) == 3


async def test_soft_step_deltas_are_proportional_to_the_probability() -> None:
    made = await scorer(SynchronousRecorder(), by_hash)
    criteria = [
        {"id": "s", "kind": "suggest", "description": "Tries 2."},
        {"id": "a", "kind": "answer", "description": "Says yes."},
    ]
    body = request(STEPPED, rubric={"criteria": criteria}, reward={"mode": "stepwise", "use": "probability"})
    (response,) = (await score(made, body)).groups[0].responses
    verdict = response.verdicts[0]
    deltas = {step.number: step.delta for step in response.steps}
    assert verdict.probability is not None
    assert verdict.step is not None
    if verdict.step in deltas:
        assert deltas[verdict.step] == pytest.approx(0.8 * verdict.probability)


async def test_a_programs_verdict_counts_unchanged() -> None:
    made = await scorer(SynchronousRecorder(), by_hash)
    check = {"id": "a", "description": "Says yes.", "verification": {"method": "contains", "any_of": ["Yes"]}}
    answer = await score(made, soft("weighted_mean", rubric={"criteria": [check]}))
    assert [response.reward for response in answer.groups[0].responses] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("mode", "judging", "why"),
    [
        ("weighted_mean", {"protocol": "graded"}, "'graded' are grades and have no probability"),
        ("graded_mean", {}, "'graded' are grades and have no probability"),
        ("partial_credit", {}, "'checklist' are grades and have no probability"),
        ("points", {"criteria_per_call": "all"}, "leave out criteria_per_call"),
    ],
)
async def test_verdicts_without_a_probability_are_refused_at_once(mode: str, judging: dict[str, Any], why: str) -> None:
    made = await scorer(SynchronousRecorder())
    with pytest.raises(ValidationError, match=why):
        await score(made, soft(mode, judging=judging))


async def test_a_judge_without_probabilities_is_refused() -> None:
    blind = ScriptedEngine(capabilities=dataclasses.replace(CAPABILITIES, logprobs=False))
    made = Scorer(await judge(blind), None)  # type: ignore[arg-type]  # rubrics are inline
    with pytest.raises(InvalidRequest, match=r"reward\.use: the judge scripted.* gives no probabilities"):
        await score(made, soft("points"))


async def test_a_verdict_without_its_probability_fails() -> None:
    made = await scorer(SynchronousRecorder(), lambda batch, call: Reply(text="yes"))
    answer = await score(made, soft("points"))
    for response in answer.groups[0].responses:
        assert response.reward is None
        assert {verdict.status for verdict in response.verdicts} == {"failed"}
