"""Rubric dropout: a random subset of criteria is judged, and the mean reward over all subsets is the full one."""

from itertools import combinations
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from judge_server.errors import InvalidRequest
from judge_server.scoring.explanation import RecordedReward, explain
from judge_server.scoring.recompute import recompute
from judge_server.scoring.recorded import recorded_page
from rubric_store import SQLLedger
from rubric_store.ledger.rows import RunReportQuery, UseFilter
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score, scorer, some_fail
from tests.judge_server.support import STEPPED, request
from trainer_client.dropout import CriteriaSample, draw_sample
from trainer_client.rewards import ResponseFacts, reward, reward_outcome
from trainer_client.steps import step_deltas
from trainer_client.trl.methods.base import ScoredResponse
from trainer_client.trl.methods.srar import Srar
from trainer_client.wire import NOT_LINEAR, PROTOCOLS_FOR, Criterion, RewardOptions, RewardRequest, RubricDropout
from trainer_client.wire.ledger import RecomputedGroup, RecomputeRequest
from trainer_client.wire.rewards import RewardRules

LINEAR = [mode for mode in PROTOCOLS_FOR if mode not in NOT_LINEAR]
CRITERIA = [
    {"id": "answer", "kind": "answer", "description": "Says yes."},
    *({"id": f"p{n}", "description": f"Says {n}.", "weight": n + 1} for n in range(6)),
    {"id": "must", "description": "Is polite.", "tags": ["required"]},
    {"id": "says", "description": "Says yes.", "verification": {"method": "contains", "any_of": ["Yes"]}},
]
ALWAYS = {"answer", "must", "says"}


def body(mode: str = "points", *, keep: float = 0.5, **fields: Any) -> dict[str, Any]:
    """A request with dropout, of two groups."""
    groups = [{"id": name, "prompt": f"{name}: Is 7 prime?", "responses": ["Yes.", "No.", "Maybe."]} for name in "xy"]
    asked = {"rubric": {"criteria": CRITERIA}, "reward": {"mode": mode}, "dropout": {"keep": keep}, "groups": groups}
    return asked | {"run": "r", "step": 1} | fields


def samples(droppable: list[bool], kept: int) -> list[CriteriaSample]:
    """Every sample that keeps `kept` of the droppable criteria."""
    places = [place for place, may_go in enumerate(droppable) if may_go]
    return [
        CriteriaSample(tuple(droppable), tuple(n in places and n not in chosen for n in range(len(droppable))))
        for chosen in combinations(places, kept)
    ]


RUBRICS = st.lists(
    st.tuples(st.sampled_from(["point", "suggest", "answer"]), st.integers(1, 5), st.floats(0, 1), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(mode=st.sampled_from(LINEAR), rubric=RUBRICS, negative=st.booleans(), data=st.data())
def test_the_mean_over_all_subsets_is_the_full_reward(
    mode: Any, rubric: list[tuple[str, int, float, bool]], negative: bool, data: st.DataObject
) -> None:
    loses = [("point", -2, 0.4, True)] if negative and mode in ("points", "absolute_points", "graded_mean") else []
    whole = [*rubric, *loses, ("answer", 2, 0.3, False)]
    criteria = [{"kind": kind, "weight": weight} for kind, weight, *_ in whole]
    scores, droppable = [s for *_, s, _ in whole], [may_go for *_, may_go in whole]
    options: Any = {"format_ok": True} if mode == "stepwise" else {}
    kept = data.draw(st.integers(1, max(1, sum(droppable))))
    drawn = [
        reward(
            criteria,
            [None if gone else s for s, gone in zip(scores, sample.left_out, strict=True)],
            mode,
            sample=sample,
            **options,
        )
        for sample in samples(droppable, kept)
    ]
    full = reward(criteria, scores, mode, **options)
    assert not drawn or fmean(drawn) == pytest.approx(full, abs=1e-9)  # type: ignore[arg-type]


@given(RUBRICS, st.integers(1, 3))
def test_the_mean_delta_over_all_subsets_is_the_full_one(rubric: list[tuple[str, int, float, bool]], kept: int) -> None:
    criteria = [{"kind": "suggest"} for _ in rubric]
    scores = [float(s > 0.5) for *_, s, _ in rubric]
    steps = [n % 2 + 1 for n in range(len(rubric))]
    droppable = [may_go for *_, may_go in rubric]
    full = step_deltas(criteria, scores, steps, 2)
    drawn = []
    for sample in samples(droppable, min(kept, sum(droppable))):
        left = [None if gone else s for s, gone in zip(scores, sample.left_out, strict=True)]
        drawn.append(step_deltas(criteria, left, steps, 2, inclusions=sample.inclusions()))
    if any(droppable):
        for step, delta in full.items():
            assert fmean(one.get(step, 0.0) for one in drawn) == pytest.approx(delta)


def test_skip_estimates_the_rubric_without_the_failed_criteria() -> None:
    criteria = [{"id": str(n), "weight": 1} for n in range(4)]
    sample = CriteriaSample((True,) * 4, (True, False, False, False))
    outcome = reward_outcome(criteria, [None, None, 1.0, 0.0], "weighted_mean", "skip", sample=sample)
    assert (outcome.reward, outcome.status, outcome.dropped) == (pytest.approx(1.5 / 3), "partial", 1)
    alone = CriteriaSample((True,) * 4, (True, True, True, False))
    assert reward_outcome(criteria, [None] * 4, "weighted_mean", "skip", sample=alone).reward is None


@given(st.floats(0.01, 1), st.integers(0, 99), st.integers(1, 12))
def test_a_draw_is_repeatable_and_keeps_the_share(keep: float, seed: int, size: int) -> None:
    criteria = [Criterion(id=f"c{n}", description="?") for n in range(size)]

    def draw(**names: Any) -> CriteriaSample:
        given = {"run": "r", "step": 1, "group": "g"} | names
        return draw_sample(criteria, RubricDropout(keep=keep, seed=seed), by_program=[False] * size, **given)

    assert draw() == draw()
    judged = size - sum(draw().left_out)
    assert judged == draw(group="h", step=2).inclusion * size
    assert keep * size - 1e-6 <= judged < max(keep * size, 1) + 1


def test_a_draw_differs_by_group_step_run_and_seed() -> None:
    criteria = [Criterion(id=f"c{n}", description="?") for n in range(20)]
    given = {"run": "r", "step": 1, "group": "g"}
    draws = [
        draw_sample(criteria, RubricDropout(keep=0.5, seed=seed), by_program=[False] * 20, **given | other)  # type: ignore[arg-type]
        for seed, other in ((0, {}), (1, {}), (0, {"run": None}), (0, {"step": 2}), (0, {"group": "h"}))
    ]
    assert len(set(draws)) == 5


async def test_all_responses_of_a_group_are_judged_by_the_same_subset_and_always_by_guards() -> None:
    made = await scorer(SynchronousRecorder())
    answer = await score(made, body())
    for group in answer.groups:
        assert len(group.left_out) == 3
        assert not ALWAYS & set(group.left_out)
        assert group.inclusion == 0.5
        for response in group.responses:
            assert {v.criterion for v in response.verdicts if v.status == "left_out"} == set(group.left_out)
            assert [v.criterion for v in response.verdicts] == [c["id"] for c in CRITERIA]
            assert response.status == "scored"
    assert answer.groups[0].left_out != answer.groups[1].left_out
    assert answer.usage.judge_calls == 2 * 3 * 5
    again = await score(made, body())
    assert [group.left_out for group in again.groups] == [group.left_out for group in answer.groups]
    assert again.usage.judge_calls == 0


async def test_pitfalls_and_negative_weights_are_always_judged() -> None:
    guards = [
        {"id": "pit", "kind": "pitfall", "weight": 0, "description": "Errs."},
        {"id": "loss", "weight": -1, "description": "Is rude."},
        {"id": "a", "description": "Says a."},
        {"id": "b", "description": "Says b."},
    ]
    answer = await score(await scorer(SynchronousRecorder()), body(rubric={"criteria": guards}, keep=0.01))
    assert {len(group.left_out) for group in answer.groups} == {1}
    assert {id_ for group in answer.groups for id_ in group.left_out} <= {"a", "b"}


async def test_without_dropout_the_answer_has_no_dropout_fields() -> None:
    answer = await score(await scorer(SynchronousRecorder()), body(dropout=None))
    written = answer.model_dump_json()
    assert "left_out" not in written
    assert "inclusion" not in written


@pytest.mark.parametrize("mode", NOT_LINEAR)
def test_a_mode_that_is_not_linear_refuses_dropout_and_says_why(mode: str) -> None:
    asked = body(mode)
    for group in asked["groups"]:
        group["ground_truth"] = "yes"
    with pytest.raises(ValidationError, match=f"mode '{mode}' {NOT_LINEAR[mode][:20]}.*no unbiased"):  # type: ignore[index]
        RewardRequest.model_validate(asked)


@pytest.mark.parametrize("use", ["verdict", "probability"])
async def test_the_ledger_records_the_criteria_left_out_and_recomputes_the_same_rewards(
    ledger: SQLLedger, use: str
) -> None:
    made = await scorer(SynchronousRecorder(ledger), some_fail)
    rules = {"mode": "absolute_points", "use": use}
    answer = await score(made, body(reward=rules, on_failure="skip"))
    page = await recorded_page(ledger, UseFilter(PROJECT, "r", status="left_out", limit=100), texts=False)
    recorded = {(v.group, v.verdict.criterion) for v in page.verdicts}
    assert recorded == {(group.id, id_) for group in answer.groups for id_ in group.left_out}
    report = await ledger.run(RunReportQuery(PROJECT, "r"))
    assert report is not None
    assert report.run.verdicts == 2 * 3 * (len(CRITERIA) - 3)
    asked = RecomputeRequest.model_validate({"run": "r", "reward": rules, "on_failure": "skip"})
    groups = [p async for p in recompute(ledger, asked, project_id=PROJECT) if isinstance(p, RecomputedGroup)]
    assert [[r.reward for r in g.responses] for g in groups] == [[r.reward for r in g.responses] for g in answer.groups]
    gate = RecomputeRequest.model_validate({"run": "r", "reward": {"mode": "gate"}})
    with pytest.raises(InvalidRequest, match=r"mode 'gate' .* not linear"):
        [part async for part in recompute(ledger, gate, project_id=PROJECT)]


async def test_rewards_of_a_group_with_an_empty_response_are_recomputed_and_explained(ledger: SQLLedger) -> None:
    made, criteria = await scorer(SynchronousRecorder(ledger)), CRITERIA[1:7]
    group = {"id": "g", "prompt": "Is 7 prime?", "responses": ["", "Yes."]}
    (given,) = (await score(made, body(rubric={"criteria": criteria}, groups=[group]))).groups
    assert given.left_out
    asked = RecomputeRequest.model_validate({"run": "r"})
    (again,) = [p async for p in recompute(ledger, asked, project_id=PROJECT) if isinstance(p, RecomputedGroup)]
    assert [one.reward for one in again.responses] == [one.reward for one in given.responses]
    rules = RewardRules(reward=RewardOptions(mode="points"))
    for response in given.responses:
        recorded = RecordedReward(rules, response.reward, response.status, ResponseFacts(), True, None)
        assert explain(recorded, [Criterion.model_validate(one) for one in criteria], response.verdicts).matches


async def test_components_add_up_to_estimated_rewards_and_are_recomputed(ledger: SQLLedger) -> None:
    rules = {"mode": "absolute_points", "components": "kind"}
    answer = await score(await scorer(SynchronousRecorder(ledger)), body(reward=rules))
    for group in answer.groups:
        assert group.left_out
        assert group.component_weights == pytest.approx({"answer": 1 / 24, "point": 23 / 24})
        for response in group.responses:
            total = sum(group.component_weights[name] * (r or 0.0) for name, r in response.components.items())
            assert total == pytest.approx(response.reward, abs=1e-9)
    asked = RecomputeRequest.model_validate({"run": "r", "reward": rules})
    groups = [p async for p in recompute(ledger, asked, project_id=PROJECT) if isinstance(p, RecomputedGroup)]
    assert [(g.component_weights, [r.components for r in g.responses]) for g in groups] == [
        (g.component_weights, [r.components for r in g.responses]) for g in answer.groups
    ]


async def test_step_deltas_agree_with_the_srar_method() -> None:
    criteria = [
        {"id": "answer", "kind": "answer", "description": "Says yes."},
        *({"id": f"s{n}", "kind": "suggest", "description": f"Tries {n}."} for n in range(6)),
    ]
    asked = request(STEPPED, rubric={"criteria": criteria}, reward={"mode": "stepwise"}, dropout={"keep": 0.5})
    (group,) = (await score(await scorer(SynchronousRecorder()), asked)).groups
    (response,) = group.responses
    deltas = Srar().deltas(ScoredResponse(response, tuple(Criterion.model_validate(c) for c in criteria)))
    assert len(group.left_out) == 3
    for step in response.steps:
        assert step.delta == pytest.approx(deltas.get(step.number))
