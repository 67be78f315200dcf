"""Judging configs and reward options: ratings, outcomes, programs, reasons, votes, penalties, groundings, messages."""

from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine, always, by_hash
from judge_server.ports import Batch, Call, CallFailure, Reply, TokenChoice
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.conftest import Serve
from tests.judge_server.support import CRITERIA, STEPPED, RecordingScript, request

ONE = {"criteria": [{"id": "a", "description": "States that 7 is prime."}]}


def groups(*responses: Any, **fields: Any) -> list[dict[str, Any]]:
    """One group of these responses."""
    return [{"id": "g", "prompt": "Is 7 prime?", "responses": list(responses)} | fields]


async def test_a_rating_needs_no_rubric_and_is_scaled_to_a_reward(http: httpx2.AsyncClient) -> None:
    for rubric in (None, {"criteria": CRITERIA}):
        answer = await rewards(http, request("Yes.", "No.", rubric=rubric, reward={"mode": "likert"}))
        for response in answer.groups[0].responses:
            (verdict,) = response.verdicts
            assert verdict.criterion == "overall"
            assert verdict.grade is not None
            assert response.reward == verdict.score == pytest.approx((verdict.grade - 1) / 9)
        assert answer.groups[0].rubric == (None if rubric is None else answer.rubrics[0].digest)


async def test_a_grade_is_the_mean_of_the_probabilities_of_the_grades(serve: Serve) -> None:
    masses = {5: (0.0, 0.0, 0.09, 0.21, 0.0), 10: (0.0,) * 7 + (0.1, 0.1, 0.0)}

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        assert isinstance(call.answer, TokenChoice)
        return Reply(masses[len(call.answer.options)])

    http = await serve(ScriptedEngine(script))
    for mode, grade, score, choice_mass in (("graded_mean", 2.7, 0.675, 0.3), ("likert", 8.5, 7.5 / 9, 0.2)):
        answer = await rewards(http, request("Yes.", rubric=ONE, reward={"mode": mode}))
        (response,) = answer.groups[0].responses
        (verdict,) = response.verdicts
        assert (verdict.grade, verdict.choice_mass) == (pytest.approx(grade), pytest.approx(choice_mass))
        assert response.reward == verdict.score == pytest.approx(score)


async def test_votes_on_a_rating_need_reasons_or_thoughts_to_sample(http: httpx2.AsyncClient) -> None:
    refused = await http.post(
        "/v1/rewards", json=request("Yes.", rubric=None, reward={"mode": "likert"}, judging={"votes": 3})
    )
    assert refused.status_code == 422
    assert "exact probability" in refused.text
    body = request("Yes.", rubric=None, reward={"mode": "likert"}, judging={"votes": 3, "rationale": True})
    (verdict,) = (await rewards(http, body)).groups[0].responses[0].verdicts
    assert None not in verdict.votes
    assert verdict.score == pytest.approx(sum(vote or 0.0 for vote in verdict.votes) / 3)


async def test_the_outcome_compares_final_answers_as_mathematics_without_a_judge(serve: Serve) -> None:
    script = RecordingScript()
    http = await serve(ScriptedEngine(script))
    body = request(reward={"mode": "outcome"}, rubric=None)
    body["groups"] = groups("so \\boxed{0.5}", "so \\boxed{2}", "no answer", ground_truth="\\frac{1}{2}")
    answer = await rewards(http, body)
    assert [response.reward for response in answer.groups[0].responses] == [1.0, 0.0, 0.0]
    assert [r.verdicts[0].method for r in answer.groups[0].responses] == ["math"] * 3
    assert answer.judge is None
    assert (script.asked.total(), answer.usage.checks, answer.usage.judge_calls) == (0, 3, 0)


async def test_an_answer_is_checked_against_the_ground_truth_and_the_rest_is_judged(serve: Serve) -> None:
    http = await serve(ScriptedEngine(always(False)))
    body = request(reward={"mode": "stepwise"}, groups=groups(STEPPED, STEPPED + "x", ground_truth="yes"))
    answer = await rewards(http, body)
    for response in answer.groups[0].responses:
        assert {v.criterion: v.method for v in response.verdicts if v.method != "judge"} == {"answer": "math"}
        assert response.reward == 1.0


async def test_programs_decide_their_criteria_and_the_judge_the_others(http: httpx2.AsyncClient) -> None:
    programs = {
        "contains": {"method": "contains", "all_of": ["Paris"]},
        "regex": {"method": "regex", "pattern": r"\d{3}"},
        "numeric": {"method": "numeric", "expected": 5, "relative": 0.1},
        "exact": {"method": "exact", "expected": "5.2"},
        "json": {"method": "json_schema", "schema": {"type": "object"}},
    }
    criteria = [{"id": id_, "description": id_, "verification": how} for id_, how in programs.items()]
    body = request(rubric={"criteria": [*criteria, {"id": "judged", "description": "Is polite."}]})
    body["groups"] = groups("Paris, 123 km.\nAnswer: 5.2", "{}")
    first, second = (await rewards(http, body)).groups[0].responses
    assert {v.criterion: v.score for v in first.verdicts if v.method != "judge"} == {
        "contains": 1.0,
        "regex": 1.0,
        "numeric": 1.0,
        "exact": 1.0,
        "json": 0.0,
    }
    assert {v.criterion: v.score for v in second.verdicts if v.method != "judge"} == dict.fromkeys(programs, 0.0) | {
        "json": 1.0
    }
    assert [v.probability is None for v in first.verdicts] == [True] * 5 + [False]


@pytest.mark.faults
async def test_a_pattern_that_explodes_times_out_only_its_own_criterion(http: httpx2.AsyncClient) -> None:
    bomb = {"id": "bomb", "description": "x", "verification": {"method": "regex", "pattern": "(a+)+$"}}
    body = request(rubric={"criteria": [bomb, {"id": "judged", "description": "Is polite."}]}, deadline_s=30)
    body["groups"] = groups("a" * 60 + "!", "aaa")
    first, second = (await rewards(http, body)).groups[0].responses
    assert first.verdicts[0].failure is not None
    assert first.verdicts[0].failure.kind == "timeout"
    assert (first.reward, first.verdicts[1].status) == (None, "ok")
    assert second.verdicts[0].score == 1.0
    assert second.reward is not None


@pytest.mark.parametrize("protocol", ["binary", "stepwise", "graded"])
@pytest.mark.parametrize("per_call", [1, 2, "all"])
@pytest.mark.parametrize("rationale", [False, True])
async def test_verdicts_have_reasons_only_on_request(
    http: httpx2.AsyncClient, protocol: str, per_call: Any, rationale: bool
) -> None:
    judging = {"protocol": protocol, "criteria_per_call": per_call, "rationale": rationale}
    for response in (await rewards(http, request(STEPPED, "x", judging=judging))).groups[0].responses:
        assert {verdict.status for verdict in response.verdicts} == {"ok"}
        assert all(bool(verdict.rationale) == rationale for verdict in response.verdicts)
        assert all((verdict.step is not None) == (protocol == "stepwise") for verdict in response.verdicts)


async def test_a_verdict_of_a_judge_without_probabilities_has_none(serve: Serve) -> None:
    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        return Reply(text="Yes.") if isinstance(call.answer, TokenChoice) else by_hash(batch, call)

    (response,) = (await rewards(await serve(ScriptedEngine(script)), request("x", rubric=ONE))).groups[0].responses
    (verdict,) = response.verdicts
    assert (verdict.score, verdict.probability, verdict.choice_mass) == (1.0, None, None)


async def test_a_grounding_is_shown_up_to_its_budget_and_the_omission_is_reported(serve: Serve) -> None:
    seen: list[str] = []

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        seen.append(batch.shared)
        return by_hash(batch, call)

    grounding = "First sentence here. Second sentence here. Third sentence here."
    body = request(rubric=ONE, groups=groups("x", grounding=grounding), judging={"grounding_characters": 45})
    answer = await rewards(await serve(ScriptedEngine(script)), body)
    assert answer.groups[0].grounding_characters_omitted == len(grounding) - len(
        "First sentence here. Second sentence here."
    )
    assert "Second sentence here." in seen[0]
    assert "Third" not in seen[0]


@pytest.mark.parametrize(("part", "sees"), [("strip", (False, True)), ("keep", (True, True)), ("only", (True, False))])
async def test_thinking_is_judged_as_requested_and_spans_refer_to_the_text_as_sent(
    serve: Serve, part: str, sees: tuple[bool, bool]
) -> None:
    seen: list[str] = []

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        seen.append(batch.shared)
        return by_hash(batch, call)

    text = "<think>\nPerhaps 8.\n</think>\n\n### Step 1: try\nSo \\boxed{yes}"
    body = request(text, reward={"mode": "stepwise"}, judging={"reasoning": part})
    (response,) = (await rewards(await serve(ScriptedEngine(script)), body)).groups[0].responses
    assert ("Perhaps 8" in seen[0], "Step 1" in seen[0]) == sees
    for step in response.steps:
        if step.number == 1:
            assert text[step.start : step.end] == "### Step 1: try\nSo \\boxed{yes}"
    assert len(response.steps) == 1 + sees[1]


async def test_a_tool_calling_conversation_is_judged(http: httpx2.AsyncClient) -> None:
    response = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "7"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is 7."}]},
    ]
    answer = await rewards(http, request(rubric=ONE, groups=groups(response, {"text": response, "tokens": 3})))
    assert [r.status for r in answer.groups[0].responses] == ["scored", "scored"]
    assert answer.usage.judge_calls == 1
