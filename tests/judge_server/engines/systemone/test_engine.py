"""The engine over decision servers of every dialect: requests, how they are split, and how answers are read."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from judge_server.engines import engine_from_url
from judge_server.engines.systemone.engine import SystemOneEngine
from judge_server.errors import EngineNotReady, EngineStartError, InvalidRequest
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import collect
from judge_server.ports import Batch, Call, CallFailure, LabelChoice, Option, Reply, TokenChoice
from tests.judge_server import support
from tests.judge_server.engines.fixtures import YES_NO, answers, asked, failures, replies
from tests.judge_server.engines.systemone.decision_answers import (
    MASS,
    MODEL,
    YES,
    LyingDecisionServer,
    llamacpp,
    openai,
    sglang,
    shares,
    vllm,
)

GRADES = TokenChoice(tuple([Option(str(grade), (str(grade),), f"level {grade}") for grade in range(5)]))
LETTERS = TokenChoice((Option("A", ("A",)), Option("B", ("B",))))
STEPS = TokenChoice(YES_NO.options, LabelChoice(("1", "2", "-1"), ", step ", "Which step?"))
DIALECTS = {"llamacpp": llamacpp, "vllm": vllm, "sglang": sglang, "openai": openai}


@asynccontextmanager
async def served(
    dialect: str = "llamacpp", **options: Any
) -> AsyncIterator[tuple[LyingDecisionServer, SystemOneEngine]]:
    """A server of the dialect, and a started engine over it."""
    server = LyingDecisionServer(DIALECTS[dialect])
    route = "decisions" if dialect == "openai" else "systemone"
    query = "&".join(f"{name}={value}" for name, value in options.items())
    engine = engine_from_url(f"systemone+{await server.start()}/v1/{route}?{query}", api_key="k")
    assert isinstance(engine, SystemOneEngine)
    try:
        await engine.start()
        server.asked.clear()
        yield server, engine
    finally:
        await engine.close()
        await server.close()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_form_of_question_is_asked_in_one_request(dialect: str) -> None:
    batch = Batch("", "7 is prime.", tuple([Call("Is it?", form) for form in (YES_NO, GRADES, LETTERS, STEPS)]))
    async with served(dialect) as (server, engine):
        yes_no, grade, letter, step = await replies(engine, batch)
    assert len(server.asked) == 1
    mass = MASS if dialect in ("vllm", "sglang") else 1.0
    assert yes_no.masses == pytest.approx((YES * mass, (1 - YES) * mass))
    assert grade.masses == pytest.approx([share * mass for share in shares(5)])
    assert letter.masses == pytest.approx([share * mass for share in shares(2)])
    assert step.chosen == "1"
    assert all(reply.masses_normalized == (mass == 1.0) for reply in (yes_no, grade, letter, step))
    assert sum(reply.tokens_computed + reply.tokens_reused for reply in (yes_no, grade, letter, step)) >= 100


async def test_a_shared_text_that_is_an_object_is_sent_as_an_object_with_the_guidelines() -> None:
    async with served() as (server, engine):
        await replies(engine, Batch("Judge.", '{"prompt": "p", "response": "r"}', (Call("Is it?", YES_NO),)))
        await replies(engine, Batch("Judge.", "a text", (Call("Is it?", YES_NO),)))
    assert [body["state"] for body in server.asked] == [
        {"guidelines": "Judge.", "prompt": "p", "response": "r"},
        "Judge.\n\na text",
    ]
    assert server.asked[0]["model"] == MODEL


async def test_questions_to_openai_have_names_and_omit_empty_fields() -> None:
    described = TokenChoice((Option("yes", ("yes",), "It is."), Option("no", ("no",), "It is not.")))
    calls = tuple([Call("Is it?", form) for form in (described, GRADES, LETTERS)])
    async with served("openai") as (server, engine):
        await replies(engine, Batch("", '{"response": "7 is prime."}', calls))
    (body,) = server.asked
    assert json.loads(body["input"]) == {"response": "7 is prime."}
    predicate, score, choice = body["questions"]
    assert predicate == {
        "type": "predicate",
        "name": "c0",
        "instructions": "Is it?\nTrue means: It is.\nFalse means: It is not.",
    }
    assert score["levels"][1] == {"label": "1", "description": "level 1"}
    assert choice["choices"] == [{"value": "A"}, {"value": "B"}]


async def test_a_refusal_fails_only_its_own_question() -> None:
    async with served("openai") as (_, engine):
        first, refused, last = await answers(engine, asked("Is it?", "refuse this", "Is it not?"))
    assert isinstance(first, Reply)
    assert isinstance(last, Reply)
    assert isinstance(refused, CallFailure)
    assert "refused" in refused.detail


async def test_many_questions_are_split_at_the_limit_of_the_server() -> None:
    batch = asked(*[f"Is {n} prime?" for n in range(150)])
    async with served() as (server, engine):
        await replies(engine, batch)
    assert [len(body["questions"]) for body in server.asked] == [64, 64, 22]


async def test_an_unknown_limit_is_found_by_halving() -> None:
    async with served(questions=100) as (server, engine):
        await replies(engine, asked(*[f"Is {n} prime?" for n in range(100)]))
    assert [len(body["questions"]) for body in server.asked] == [100, 50, 50]


async def test_a_request_is_split_by_tokens() -> None:
    async with served(request_tokens=1000) as (server, engine):
        await replies(engine, asked(*["word " * 60] * 20))
    assert len(server.asked) > 3
    assert sum(len(body["questions"]) for body in server.asked) == 20


async def test_a_question_that_is_too_long_fails_alone() -> None:
    async with served() as (_, engine):
        outcomes = await answers(engine, asked("a", "b", "too long", "d", "e"))
    assert [isinstance(outcome, Reply) for outcome in outcomes] == [True, True, False, True, True]
    assert getattr(outcomes[2], "kind", None) == "truncated_input"


def noul(value: Any, **more: Any) -> dict[str, Any]:
    """A server's answer to one yes-or-no question."""
    return {"model": MODEL, "answers": {"c0": {"type": "noul", "noul": value}}} | more


def one(answer: dict[str, Any]) -> dict[str, Any]:
    """A server's answer to one question."""
    return {"model": MODEL, "answers": {"c0": answer}}


WRONG = {
    "missing": (YES_NO, {"model": MODEL, "answers": {}}),
    "an error": (YES_NO, {"model": MODEL, "answers": None, "error": {"message": "GPU lost", "code": 503}}),
    "no answers": (YES_NO, {"model": MODEL}),
    "not a number": (YES_NO, noul(float("nan"))),
    "null": (YES_NO, noul(None)),
    "text": (YES_NO, noul("0.9")),
    "a boolean": (YES_NO, noul(True)),
    "above 1": (YES_NO, noul(1.2)),
    "another type": (YES_NO, one({"type": "score", "score": 1, "probabilities": {"0": 0.5, "1": 0.5}})),
    "another model": (YES_NO, noul(0.9) | {"model": "jev-2"}),
    "an impossible mass": (YES_NO, noul(0.9, diagnostics={"c0": {"label_mass": 1.5}})),
    "a missing level": (GRADES, one({"type": "score", "score": 1, "probabilities": {"0": 0.5, "1": 0.5}})),
    "a score out of range": (
        GRADES,
        one({"type": "score", "score": 9, "probabilities": {str(n): 0.2 for n in range(5)}}),
    ),
    "a sum of 2": (LETTERS, one({"type": "choice", "choice": "A", "probabilities": {"A": 1.0, "B": 1.0}})),
    "a choice not on offer": (LETTERS, one({"type": "choice", "choice": "C", "probabilities": {"A": 0.5, "B": 0.5}})),
    "a contradiction": (LETTERS, one({"type": "choice", "choice": "B", "probabilities": {"A": 0.9, "B": 0.1}})),
    "no choice": (LETTERS, one({"type": "choice", "probabilities": {"A": 0.9, "B": 0.1}})),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_impossible_answer_is_a_failure_and_never_a_zero(name: str) -> None:
    form, body = WRONG[name]
    async with served() as (server, engine):
        server.lie = 200, json.dumps(body).encode(), {}
        (failed,) = await failures(engine, asked("Is it?", answer=form))
    assert failed.kind == "engine", "a decision model writes nothing, so none of this is its answer"
    assert failed.detail


async def test_a_server_without_decisions_is_refused_at_the_start() -> None:
    server = LyingDecisionServer()
    root = await server.start()
    server.lie = 501, b'{"error": {"message": "This model is not a decision model"}}', {}
    engine = SystemOneEngine(f"{root}/v1/systemone")
    with pytest.raises(EngineStartError, match="not a decision model; serve a decision model there"):
        await engine.start()
    await engine.close()
    await server.close()
    absent = SystemOneEngine("http://127.0.0.1:9/v1/systemone")
    with pytest.raises(EngineNotReady):
        await absent.start()
    await absent.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("systemone+http://127.0.0.1:9?depth=3", "unknown option 'depth'"),
        ("systemone+http://127.0.0.1:9?key=s", "must not hold a key"),
        ("systemone+http://", "write systemone\\+http"),
    ],
)
def test_an_invalid_url_is_refused_with_the_reason(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        engine_from_url(url)


async def test_a_judge_sends_named_texts_and_the_meaning_of_each_answer() -> None:
    async with served("vllm") as (server, engine):
        judge = await support.judge(engine)  # type: ignore[arg-type]
        try:
            (plan,) = support.plans(judge, "7 is prime.", of=support.criteria("Says that 7 is prime.", "Is polite."))
            outcomes = await collect(judge.judge([plan], judge.clock() + 60))
            graded = judge.prepared(JudgingConfig("graded"))
            assert graded.fingerprint != judge.prepared(JudgingConfig("binary")).fingerprint
            for refused in ({"rationale": True}, {"per_call": "all"}, {"think_tokens": 9}):
                with pytest.raises(InvalidRequest, match="writes nothing"):
                    judge.prepared(JudgingConfig("binary", **refused))
            with pytest.raises(InvalidRequest, match="use graded"):
                judge.prepared(JudgingConfig("checklist", "all"))
        finally:
            await judge.close()
    first, second = [outcomes.by_digest[digest] for digest in plan.digests]
    assert not isinstance(first, CallFailure)
    assert not isinstance(second, CallFailure)
    assert first.probability == pytest.approx(YES)
    assert first.choice_mass == pytest.approx(MASS)
    body = server.asked[-1]
    assert len(body["questions"]) == 2
    assert list(body["state"]) == ["guidelines", "prompt", "response"]
    assert "7 is prime." in body["state"]["response"]
    (question, _) = body["questions"].values()
    assert question["instructions"].startswith("Is this true of the response? Says that 7 is prime.")
    assert set(question["criteria"]) == {"true", "false"}
