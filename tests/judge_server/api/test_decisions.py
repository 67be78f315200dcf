"""`POST /v1/systemone`: any judge answers typed questions, and a failed question never has a probability."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from judge_server.api.decisions import (
    ChoiceAnswer,
    ChoiceQuestion,
    LevelQuestion,
    SystemOneRequest,
    choice_answer,
    level_answer,
)
from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.ports import Batch, Call, CallFailure, Capabilities, Reply
from rubric_store import RubricStore
from tests.judge_server import support
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.api.recording import post, recording, verdicts

STATE = {"question": "Is 7 prime?", "response": "Yes: neither 2 nor 3 divides it.", "answer": "Yes."}
QUESTIONS: dict[str, Any] = {
    "prime": {"type": "noul", "instructions": "Does it say that 7 is prime?", "criteria": {"true": "It does."}},
    "tone": {"type": "choice", "instructions": "What is its tone?", "criteria": {"calm": None, "angry": "It shouts."}},
    "reason": {"type": "score", "instructions": "How good is its reason?", "criteria": ["none", "some", "full"]},
}
BODY: dict[str, Any] = {"model": "default", "state": STATE, "questions": QUESTIONS}


def script(batch: Batch, call: Call) -> Reply | CallFailure:
    """Fail questions about anger and those that say `unknown`."""
    if '"angry": It shouts' in call.question or "unknown" in call.question:
        return CallFailure("parse", "it said something else")
    return by_hash(batch, call)


@pytest.fixture
async def recorded(store: RubricStore, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service with a ledger."""
    judges = {"default": await support.judge(ScriptedEngine()), "failing": await support.judge(ScriptedEngine(script))}
    blind = Capabilities(False, False, False, False, False)
    judges["blind"] = await support.judge(ScriptedEngine(capabilities=blind))
    async with recording(store, tmp_path, **judges) as http:
        yield http
    for judge in judges.values():
        await judge.close()


async def test_every_type_of_question_is_answered_in_the_form_of_system_one(recorded: httpx2.AsyncClient) -> None:
    answer = await recorded.post("/v1/systemone", json=BODY)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["model"] == "scripted"
    assert said["usage"]["input_tokens"] > 0
    assert "failures" not in said
    noul, choice, score = [said["answers"][name] for name in QUESTIONS]
    assert noul["type"] == "noul"
    assert 0 <= noul["noul"] <= 1
    assert choice["choice"] == max(choice["probabilities"], key=choice["probabilities"].__getitem__)
    assert sum(choice["probabilities"].values()) == pytest.approx(1)
    assert score["legend"] == {"0": "none", "1": "some", "2": "full"}
    assert sum(score["probabilities"].values()) == pytest.approx(1)
    assert score["score"] == pytest.approx(sum(int(n) * p for n, p in score["probabilities"].items()))


async def test_verdicts_are_cached_and_recorded_as_by_the_verdicts_route(recorded: httpx2.AsyncClient) -> None:
    body = BODY | {"run": "decisions"}
    answer = await post(recorded, body, "/v1/systemone")
    rows = await verdicts(recorded, run="decisions")
    assert sorted(row["verdict"]["criterion"] for row in rows) == ["q0", "q1.0", "q1.1", "q2.1", "q2.2"]
    same = SystemOneRequest.model_validate(BODY).verdicts("default").model_dump(mode="json")
    judged = (await recorded.post("/v1/verdicts", json=same)).json()
    assert judged["usage"]["cached"] == 5
    probabilities = {v["criterion"]: v["probability"] for v in judged["groups"][0]["responses"][0]["verdicts"]}
    assert answer.json()["answers"]["prime"]["noul"] == probabilities["q0"]


async def test_a_failed_question_is_reported_and_the_others_are_answered(recorded: httpx2.AsyncClient) -> None:
    answer = await recorded.post("/v1/systemone", json=BODY | {"model": "failing"})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert list(said["answers"]) == ["prime", "reason"]
    assert said["failures"] == {"tone": {"kind": "parse", "detail": "it said something else"}}


async def test_a_request_without_any_answer_fails(recorded: httpx2.AsyncClient) -> None:
    questions = {"x": {"type": "noul", "instructions": "Is it unknown?"}}
    answer = await recorded.post("/v1/systemone", json=BODY | {"model": "failing", "questions": questions})
    assert answer.status_code == 502
    assert "questions.x: parse: it said something else" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "jev-latest"}, "there is no judge 'jev-latest'; use one of default, failing, blind"),
        ({"model": "blind"}, "returns no probabilities"),
        ({"questions": {}}, "at least 1"),
        ({"questions": {"a": {"type": "box", "instructions": "?"}}}, "box"),
        ({"questions": {"a": {"type": "noul"}}}, "at least 1 character"),
        ({"questions": {"a": {"type": "score", "instructions": "?", "criteria": ["one"]}}}, "at least 2"),
        ({"questions": {"a": {"type": "choice", "instructions": "?", "criteria": {}}}}, "at least 1"),
        ({"questions": {"a": {"type": "noul", "instructions": "x" * 30_000}}}, "at most 20000"),
        ({"judging": {"protocol": "graded"}}, "leave protocol out"),
        ({"images": ["data:image/png;base64,AA=="]}, "images"),
    ],
)
async def test_an_invalid_request_is_refused_with_the_reason(
    recorded: httpx2.AsyncClient, change: dict[str, Any], says: str
) -> None:
    problem = checked_problem(await recorded.post("/v1/systemone", json=BODY | change))
    assert says in json.dumps(problem)


async def test_too_many_options_in_total_and_deep_states_are_refused(recorded: httpx2.AsyncClient) -> None:
    many = {"type": "choice", "instructions": "?", "criteria": dict.fromkeys(map(str, range(255)))}
    refused = await recorded.post("/v1/systemone", json=BODY | {"questions": {str(n): many for n in range(9)}})
    assert refused.status_code == 422
    deep = b'{"model": "default", "questions": {}, "state": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    refused = await recorded.post("/v1/systemone", content=deep, headers={"Content-Type": "application/json"})
    assert refused.status_code == 422


def test_a_state_of_known_texts_is_a_prompt_a_response_and_a_reference() -> None:
    (group,) = SystemOneRequest.model_validate(BODY).verdicts("default").groups
    assert (group.prompt, group.reference_answer) == ("Is 7 prime?", "Yes.")
    assert group.responses == ("Yes: neither 2 nor 3 divides it.",)


@pytest.mark.parametrize(
    "state",
    ["a text", ["a", 1], {"response": "r", "mood": "good"}, {"response": 7}, {"response": "r", "output": "o"}],
    ids=str,
)
def test_any_other_state_is_shown_whole(state: Any) -> None:
    made = SystemOneRequest.model_validate(BODY | {"state": state}).verdicts("default")
    assert made.groups[0].responses == (state if isinstance(state, str) else json.dumps(state),)
    assert made.judging.reasoning == "keep"


probabilities = st.floats(0, 1)


@given(st.lists(probabilities, min_size=1, max_size=9))
def test_levels_have_probabilities_whose_mean_is_the_score(reached: list[float]) -> None:
    question = LevelQuestion(type="score", instructions="?", criteria=[f"level {n}" for n in range(len(reached) + 1)])
    answer = level_answer(question, reached)
    shares = list(answer.probabilities.values())
    assert all(share >= 0 for share in shares)
    assert math.fsum(shares) == pytest.approx(1)
    assert answer.score == pytest.approx(sum(n * share for n, share in enumerate(shares)))
    assert 0 <= answer.confidence <= 1


def test_the_score_of_two_levels_is_the_probability_of_the_upper_one() -> None:
    answer = level_answer(LevelQuestion(type="score", criteria=["Incorrect", "Correct"]), [0.9])
    assert answer.score == 0.9
    assert answer.probabilities == pytest.approx({"0": 0.1, "1": 0.9})
    assert answer.confidence == pytest.approx(0.8)


@given(st.lists(probabilities, min_size=1, max_size=9))
@example([0.89453125, 0.9999999999999999, 1.0])  # two shares that round to the same number
def test_a_choice_is_the_likeliest_option_or_a_failure(right: list[float]) -> None:
    question = ChoiceQuestion(type="choice", instructions="?", criteria=dict.fromkeys(map(str, range(len(right)))))
    answer = choice_answer(question, right)
    assert isinstance(answer, ChoiceAnswer) == (sum(right) > 0)
    if isinstance(answer, ChoiceAnswer):
        assert answer.choice == str(right.index(max(right)))
        assert math.fsum(answer.probabilities.values()) == pytest.approx(1)
        assert 0 <= answer.confidence <= 1
