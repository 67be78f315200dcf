"""The engine contract for decision models, over HTTP and in process, with a real model in llama.cpp.

Decision models write no text, so the suite's tests of written answers do not apply: such calls must fail and say why.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.engines.systemone.engine import SystemOneEngine
from judge_server.errors import EngineStartError
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import collect
from judge_server.ports import Call, CallFailure, Engine, LabelChoice, Option, Reasoning, Reply, TokenChoice
from judge_server.scoring.verdicts import verdict_of
from tests.judge_server import support
from tests.judge_server.engines.fixtures import YES_NO, answers, asked, failures, identity_of, replies, started
from tests.judge_server.engines.openai.fixtures import LlamaCppServer
from tests.judge_server.engines.systemone.decision_fixtures import (
    CONTEXT_TOKENS,
    DecisionServer,
    decision_gguf,
    decision_server,
)
from tests.judge_server.engines.test_contract import (
    HOSTILE,
    QUESTIONS,
    SHARED,
    STORY,
    STRANGE,
    WRITTEN,
    test_a_choice_is_always_one_of_its_labels,
    test_a_longer_text_counts_more_prompt_tokens,
    test_an_answer_that_is_abandoned_midway_leaves_the_engine_free,
    test_an_over_long_prompt_fails_as_truncated_input_and_the_next_one_works,
    test_every_call_gets_one_reply_aligned_with_it,
    test_masses_are_one_per_option_and_sum_to_at_most_1,
    test_the_choice_after_a_token_choice_is_always_one_of_its_labels,
    test_the_prompt_counted_is_the_longest_of_the_batch,
    test_the_same_batch_twice_gives_the_same_answers,
    test_token_counts_predict_whether_a_batch_fits_the_context,
)
from trainer_client.wire import Criterion, JudgingProtocol

__all__ = [
    "decision_gguf",
    "decision_server",
    "test_a_choice_is_always_one_of_its_labels",
    "test_a_longer_text_counts_more_prompt_tokens",
    "test_an_answer_that_is_abandoned_midway_leaves_the_engine_free",
    "test_an_over_long_prompt_fails_as_truncated_input_and_the_next_one_works",
    "test_every_call_gets_one_reply_aligned_with_it",
    "test_masses_are_one_per_option_and_sum_to_at_most_1",
    "test_the_choice_after_a_token_choice_is_always_one_of_its_labels",
    "test_the_prompt_counted_is_the_longest_of_the_batch",
    "test_the_same_batch_twice_gives_the_same_answers",
    "test_token_counts_predict_whether_a_batch_fits_the_context",
]

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]


def _over(server: DecisionServer) -> SystemOneEngine:
    return SystemOneEngine(f"{server.root}/v1/systemone", api_key=server.api_key)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def over_http(decision_server: DecisionServer) -> AsyncIterator[SystemOneEngine]:
    """The shared engine over llama.cpp's own server, which tests leave running."""
    engine = await started(_over(decision_server))
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def in_process(decision_gguf: Path) -> AsyncIterator[LlamaCppEngine]:
    """The shared engine with the model in a child process, which tests leave running."""
    engine = await started(LlamaCppEngine(str(decision_gguf), context_tokens=CONTEXT_TOKENS, threads=1))
    yield engine
    await engine.close()


@pytest.fixture(params=["over_http", "in_process"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """A started engine of each kind, which tests leave running."""
    made: Engine = request.getfixturevalue(request.param)
    return made


async def test_the_engine_reports_that_it_answers_typed_questions(engine: Engine) -> None:
    found = identity_of(engine)
    assert found.capabilities.typed_questions
    assert not found.capabilities.json_schema
    assert found.context_tokens >= CONTEXT_TOKENS


async def test_without_a_label_mass_the_masses_are_shares_and_marked_as_normalized(engine: Engine) -> None:
    grades = TokenChoice(tuple([Option(str(grade), (str(grade),)) for grade in range(5)]))
    letters = TokenChoice((Option("A", ("A",)), Option("B", ("B",))))
    for form in (YES_NO, grades, letters):
        (reply,) = await replies(engine, asked(QUESTIONS[0], answer=form, shared=SHARED))
        assert reply.masses is not None
        assert sum(reply.masses) == pytest.approx(1.0)
        assert reply.masses_normalized


async def test_a_state_of_named_texts_is_answered_too(engine: Engine) -> None:
    named = '{"response": "7 is prime, since neither 2 nor 3 divides it."}'
    await replies(engine, asked(*QUESTIONS, shared=named))


async def test_calls_that_need_written_text_fail_and_say_why(engine: Engine) -> None:
    calls = (
        Call("?", WRITTEN),
        Call("?", STORY),
        Call("?", YES_NO, Reasoning(10, "So?")),
        Call("?", YES_NO, think_tokens=10),
        Call(QUESTIONS[0], YES_NO),
    )
    batch = asked("x", shared=SHARED)
    *refused, answered = await answers(engine, type(batch)(batch.system, batch.shared, calls))
    assert isinstance(answered, Reply)
    for failed in refused:
        assert not isinstance(failed, Reply)
        assert failed.kind == "engine"
        assert "writes no text" in failed.detail


async def test_control_tokens_and_strange_text_get_replies(engine: Engine) -> None:
    await replies(engine, asked("Is it?", "", shared=HOSTILE + STRANGE))
    await replies(engine, asked("Is it?", shared=""))


async def test_a_call_with_too_many_steps_fails_alone(engine: Engine) -> None:
    steps = TokenChoice(YES_NO.options, LabelChoice(tuple(map(str, range(60))), ", step "))
    batch = asked("Is it?", shared=SHARED)
    calls = (Call("Is it?", steps), Call("Is it?", YES_NO))
    refused, answered = await answers(engine, type(batch)(batch.system, batch.shared, calls))
    assert isinstance(refused, CallFailure)
    assert "options" in refused.detail
    assert isinstance(answered, Reply)


async def test_after_close_every_call_fails_as_engine(decision_server: DecisionServer) -> None:
    spare = await started(_over(decision_server))
    assert await spare.ready()
    await spare.close()
    assert not await spare.ready()
    for failed in await failures(spare, asked("Is it?", "Is it not?")):
        assert failed.kind == "engine"
    await spare.close()


async def test_a_rubric_is_judged_under_every_protocol_that_needs_no_written_text(decision_gguf: Path) -> None:
    protocols: tuple[JudgingProtocol, ...] = ("binary", "stepwise", "graded", "likert")
    judge = await support.judge(LlamaCppEngine(str(decision_gguf), context_tokens=1024, threads=1))  # type: ignore[arg-type]
    try:
        criteria = [Criterion.model_validate(one) for one in support.CRITERIA[:4]]
        plans = [
            support.plan(judge.prepared(JudgingConfig(protocol)), support.group(), support.STEPPED, criteria)
            for protocol in protocols
        ]
        outcomes = await collect(judge.judge(plans, asyncio.get_running_loop().time() + 600))
    finally:
        await judge.close()
    for protocol, plan in zip(protocols, plans, strict=True):
        verdicts = [verdict_of(slot, outcomes) for slot in plan.pending]
        assert len(verdicts) == (1 if protocol == "likert" else 4)
        for verdict in verdicts:
            assert verdict.status == "ok", verdict.failure
            assert verdict.choice_mass is None
            assert (verdict.step is not None) == (protocol == "stepwise")
    assert outcomes.costs.tokens_computed > 0


async def test_a_chat_model_is_refused_at_the_start(llamacpp_server: LlamaCppServer) -> None:
    root = llamacpp_server.base_url.removesuffix("/v1")
    engine = SystemOneEngine(f"{root}/v1/systemone", api_key=llamacpp_server.api_key)
    with pytest.raises(EngineStartError, match="serve a decision model there"):
        await engine.start()
    await engine.close()
