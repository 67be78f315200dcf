"""Saturated criteria are judged in a share of the groups, with unbiased rewards, until responses miss them again."""

from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from judge_server.engines.scripted import ScriptedEngine, always
from judge_server.errors import InvalidRequest
from judge_server.ledger.monitoring.gold import sample
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.scoring.explanation import RecordedReward, explain
from judge_server.scoring.recompute import recompute
from judge_server.scoring.scorer import Scorer
from rubric_store import SQLLedger
from tests.judge_server import support
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score
from trainer_client.dropout import CriteriaSample, draw_sample
from trainer_client.rewards import ResponseFacts, reward
from trainer_client.wire import NOT_LINEAR, PROTOCOLS_FOR, Criterion, RewardAnswer, RewardRequest, RubricDropout
from trainer_client.wire.ledger import RecomputedGroup, RecomputeRequest
from trainer_client.wire.rewards import RewardRules

LINEAR = [mode for mode in PROTOCOLS_FOR if mode not in NOT_LINEAR and mode != "stepwise"]
SCORES = st.one_of(st.just(1.0), st.floats(0, 1))
RUBRICS = st.lists(st.tuples(st.integers(1, 5), SCORES, st.booleans()), min_size=1, max_size=6)


def samples(droppable: list[bool], share: float) -> list[tuple[float, CriteriaSample]]:
    """Every sample of independent draws, with its probability."""
    drawn = []
    for left_out in product(*[(False, True) if may_go else (False,) for may_go in droppable]):
        chances = [(1 - share if gone else share) for gone, may_go in zip(left_out, droppable, strict=True) if may_go]
        drawn.append((prod(chances), CriteriaSample(tuple(droppable), left_out, share)))
    return drawn


@given(mode=st.sampled_from(LINEAR), rubric=RUBRICS, share=st.floats(0.05, 1), pitfall=st.booleans())
def test_the_mean_over_all_draws_is_the_full_reward(
    mode: Any, rubric: list[tuple[int, float, bool]], share: float, pitfall: bool
) -> None:
    loses = [(-2, 0.4, False)] if pitfall and mode in ("points", "absolute_points", "graded_mean") else []
    whole = [*rubric, *loses]
    criteria = [{"weight": weight} for weight, *_ in whole]
    scores, droppable = [one for _, one, _ in whole], [may_go for *_, may_go in whole]
    mean = 0.0
    for chance, drawn in samples(droppable, share):
        judged = [None if gone else one for one, gone in zip(scores, drawn.left_out, strict=True)]
        estimate = reward(criteria, judged, mode, sample=drawn)
        assert estimate is not None
        mean += chance * estimate
    unclipped = reward(criteria, scores, mode, sample=CriteriaSample((False,) * len(whole), (False,) * len(whole)))
    assert mean == pytest.approx(unclipped, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.floats(0.01, 1))
def test_a_response_that_meets_the_saturated_criteria_has_its_full_reward_in_every_draw(
    others: list[float], share: float
) -> None:
    criteria = [{"weight": n + 1} for n in range(len(others) + 2)]
    full = reward(criteria, [1.0, 1.0, *others], "weighted_mean")
    for _, drawn in samples([True, True] + [False] * len(others), share):
        judged = [None if gone else 1.0 for gone in drawn.left_out[:2]]
        assert reward(criteria, [*judged, *others], "weighted_mean", sample=drawn) == pytest.approx(full)


def test_each_criterion_is_drawn_in_its_share_of_groups_whatever_the_others_are() -> None:
    criteria = [Criterion(id=name, description="?") for name in ("a", "b", "c")]

    def drawn(saturated: tuple[str, ...]) -> list[tuple[bool, ...]]:
        dropout = RubricDropout(keep=0.2, saturated=saturated)
        return [
            draw_sample(criteria, dropout, by_program=[False] * 3, run="r", step=1, group=str(n)).left_out
            for n in range(2000)
        ]

    both, alone = drawn(("a", "b")), drawn(("a",))
    assert 0.17 < sum(not gone[0] for gone in both) / 2000 < 0.23
    assert [gone[0] for gone in both] == [gone[0] for gone in alone]
    assert not any(gone[2] for gone in both)
    together = sum(not gone[0] and not gone[1] for gone in both) / 2000
    assert 0.02 < together < 0.06


CRITERIA = [
    {"id": "polite", "description": "Is polite."},
    {"id": "correct", "description": "Is correct.", "weight": 2},
    {"id": "lies", "kind": "pitfall", "weight": -1, "description": "Lies."},
    {"id": "safe", "description": "Is safe.", "tags": ["required"]},
]


def polite_unless_rude(batch: Batch, call: Call) -> Reply | CallFailure:
    """All but `rude` responses are polite, all are safe, `even` ones are correct; `polite` fails for `broken` ones."""
    response = batch.shared + call.question
    if "polite" in call.question and "broken" in response:
        return CallFailure("engine", "it broke")
    if "polite" in call.question:
        return always("rude" not in response)(batch, call)
    return always("safe" in call.question or ("correct" in call.question and "even" in response))(batch, call)


async def scorer(ledger: SQLLedger | None) -> Scorer:
    judge = await support.judge(ScriptedEngine(polite_unless_rude))
    return Scorer(judge, None, SynchronousRecorder(ledger), ledger)  # type: ignore[arg-type]  # rubrics are inline


def step(number: int, *, extra: str = "", groups: int = 8, keep: float = 0.25, **fields: Any) -> dict[str, Any]:
    """A training step of new responses, two of each group."""
    return {
        "run": "r",
        "step": number,
        "rubric": {"criteria": CRITERIA},
        "reward": {"mode": "points"},
        "dropout": {"keep": keep, "saturated": True},
        "groups": [
            {
                "id": f"g{place}",
                "prompt": f"Question {number}.{place}",
                "responses": [f"It is even, {number}.{place}. {extra}", f"It is odd, {number}.{place}."],
            }
            for place in range(groups)
        ],
    } | fields


def judged_groups(answer: RewardAnswer) -> int:
    """In how many groups `polite` was judged."""
    return sum("polite" not in group.left_out for group in answer.groups)


async def test_a_criterion_that_all_responses_meet_is_judged_in_a_share_of_the_groups_only(ledger: SQLLedger) -> None:
    made = await scorer(ledger)
    early = [await score(made, step(number), f"req_{number}") for number in range(5)]
    assert all(judged_groups(answer) == 8 and not answer.usage.left_out for answer in early)
    late = [await score(made, step(number), f"req_{number}") for number in range(5, 15)]
    assert 10 <= sum(map(judged_groups, late)) <= 30  # of 80, with a share of 0.25
    for answer in late:
        assert {group.saturated for group in answer.groups} == {("polite",)}
        assert {group.inclusion for group in answer.groups} == {0.25}
        assert answer.usage.left_out == 2 * (8 - judged_groups(answer))
        assert answer.usage.judge_calls == 8 * 2 * 4 - answer.usage.left_out
        for group in answer.groups:
            assert [one.reward for one in group.responses] == pytest.approx([1.0, 0.5])


async def test_an_audit_that_finds_the_criterion_unmet_brings_it_back(ledger: SQLLedger) -> None:
    made = await scorer(ledger)
    for number in range(6):
        await score(made, step(number), f"req_{number}")
    worse = [await score(made, step(number, extra="rude"), f"req_{number}") for number in range(6, 16)]
    audited = [group for answer in worse for group in answer.groups if group.saturated and not group.left_out]
    assert audited
    for group in audited:  # what `polite` misses counts 1 / 0.25 times
        assert [one.reward for one in group.responses] == pytest.approx([(1 - 1 / 0.25 + 2 + 1) / 4, 0.5])
    assert [group.saturated for group in worse[0].groups] == [("polite",)] * 8
    assert [group.saturated for group in worse[-1].groups] == [()] * 8
    assert judged_groups(worse[-1]) == 8


async def test_a_failed_audit_gives_no_reward_and_brings_nothing_back(ledger: SQLLedger) -> None:
    made = await scorer(ledger)
    for number in range(6):
        await score(made, step(number), f"req_{number}")
    answers = [await score(made, step(number, extra="broken"), f"req_{number}") for number in range(6, 10)]
    groups = [group for answer in answers for group in answer.groups]
    assert {group.saturated for group in groups} == {("polite",)}
    assert {bool(group.left_out) for group in groups} == {True, False}
    for group in groups:
        assert [one.reward for one in group.responses] == ([1.0, 0.5] if group.left_out else [None, 0.5])


async def test_later_steps_do_not_decide_what_an_earlier_one_is_judged_by(ledger: SQLLedger) -> None:
    made = await scorer(ledger)
    for number in range(6):
        await score(made, step(number), f"req_{number}")
    again = await score(made, step(3), "req_again")
    assert {group.saturated for group in again.groups} == {()}
    other = await score(made, step(6, run="another"), "req_other")
    assert {group.saturated for group in other.groups} == {()}


async def test_recomputing_and_the_console_give_the_same_rewards(ledger: SQLLedger) -> None:
    made = await scorer(ledger)
    fields: dict[str, Any] = {"reward": {"mode": "points", "components": "criterion"}, "on_failure": "skip"}
    answers = [await score(made, step(n, extra="rude" * (n == 8), **fields), f"req_{n}") for n in range(10)]
    assert any(group.left_out for answer in answers for group in answer.groups)
    asked = RecomputeRequest.model_validate({"run": "r"})
    parts = [p async for p in recompute(ledger, asked, project_id=PROJECT) if isinstance(p, RecomputedGroup)]
    given_groups = [group for answer in answers for group in answer.groups]
    assert [[(r.reward, r.components) for r in group.responses] for group in parts] == [
        [(r.reward, r.components) for r in group.responses] for group in given_groups
    ]
    recorder = made.recorder
    assert isinstance(recorder, SynchronousRecorder)
    criteria = [Criterion.model_validate(one) for one in CRITERIA]
    for answer, judged in zip(answers, recorder.judged, strict=True):
        rules = judged.reward_rules
        assert isinstance(rules, RewardRules)
        for group in answer.groups:
            for response in group.responses:
                recorded = RecordedReward(rules, response.reward, response.status, ResponseFacts(True), True, None)
                told = explain(recorded, criteria, response.verdicts)
                assert told.matches
                assert ("counts as met" in told.sentence) == ("polite" in group.left_out)


async def test_the_reward_of_an_empty_response_is_recomputed(ledger: SQLLedger) -> None:
    made, dropout = await scorer(ledger), {"keep": 0.25, "saturated": ["polite"]}
    groups = [{"id": f"g{n}", "prompt": "Is 7 prime?", "responses": ["", "It is even."]} for n in range(16)]
    answer = await score(made, step(1, dropout=dropout) | {"groups": groups})
    assert {bool(group.left_out) for group in answer.groups} == {True, False}
    asked = RecomputeRequest.model_validate({"run": "r"})
    parts = [p async for p in recompute(ledger, asked, project_id=PROJECT) if isinstance(p, RecomputedGroup)]
    given_rewards = [[one.reward for one in group.responses] for group in answer.groups]
    assert [[one.reward for one in group.responses] for group in parts] == given_rewards


async def test_named_criteria_need_no_ledger() -> None:
    made = await scorer(None)
    answer = await score(made, step(0, groups=40, dropout={"keep": 0.5, "saturated": ["polite", "lies", "safe"]}))
    assert {group.saturated for group in answer.groups} == {("polite",)}  # pitfalls and required ones are guards
    assert 10 < judged_groups(answer) < 30
    with pytest.raises(InvalidRequest, match=r"keeps no ledger.*name them"):
        await score(made, step(0))


async def test_without_a_readable_ledger_every_criterion_is_judged(ledger: SQLLedger) -> None:
    made = await scorer(ledger)
    for number in range(6):
        await score(made, step(number), f"req_{number}")

    class Unreachable:
        async def criterion_groups(self, *_: Any) -> dict[str, tuple[float, float]]:
            raise ConnectionError("no database")

    cut_off = Scorer(made.judge, None, None, Unreachable())  # type: ignore[arg-type]
    assert judged_groups(await score(cut_off, step(6))) == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": None}, "give the request a run and a step"),
        ({"step": None}, "give the request a run and a step"),
        ({"judging": {"protocol": "stepwise"}, "reward": {"mode": "weighted_mean"}}, "in which step they are met"),
        ({"reward": {"mode": "gate"}}, "no unbiased reward"),
        ({"dropout": {"keep": 0.5, "saturated": "yes"}}, "true or false"),
        ({"dropout": {"keep": 0.5, "saturated": ["no such id!"]}}, "String should match pattern"),
        ({"dropout": {"keep": 0, "saturated": True}}, "greater than 0"),
    ],
)
def test_what_it_cannot_serve_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RewardRequest.model_validate(step(0) | changes)


async def test_a_gold_judge_is_asked_about_the_same_criteria(ledger: SQLLedger) -> None:
    made = await scorer(ledger)
    for number in range(6):
        await score(made, step(number), f"req_{number}")
    asked = step(6, gold={"judge": "gold", "share": 1.0})
    answer = await score(made, asked)
    recorder = made.recorder
    assert isinstance(recorder, SynchronousRecorder)
    sampled = sample(RewardRequest.model_validate(asked), recorder.judged[-1])
    assert sampled is not None
    gold = Scorer(made.judge, None, SynchronousRecorder())  # type: ignore[arg-type]
    again = await gold.score(sampled.request, request_id="req_gold", project_id=PROJECT)
    assert [group.left_out for group in again.groups] == [group.left_out for group in answer.groups]
    assert any(group.left_out for group in again.groups)
