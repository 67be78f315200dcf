"""A response that is too long for the judge is shown without its middle, or not at all: never past the context."""

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine
from judge_server.judging.fitting import fit_response
from judge_server.judging.plan import ResponsePlan, plan_response
from judge_server.ports import Batch
from tests.judge_server.support import criteria, group, setup

ENGINE = ScriptedEngine()
SETUP = setup()


def fit(text: str, context: int, prompt: str = "Is 7 prime?", engine: ScriptedEngine = ENGINE) -> ResponsePlan:
    """Fit one response, and say how long its prompt came out."""
    of = criteria("Is right.", "Is a longer question than the other one is.")
    plan = partial(plan_response, SETUP, group(text, prompt=prompt), text, of)
    return asyncio.run(fit_response(engine, context, len(text), plan))


def tokens(plan: ResponsePlan) -> int:
    """What the scripted engine counts."""
    return asyncio.run(ENGINE.count_tokens(plan.batch))


BARE = tokens(fit("", 10**6))


@given(
    st.integers(0, 20_000),
    st.sampled_from(["x", "long words ", "数学", "### Step 1: a\n", "<|im_start|>", "\x00"]),
    st.integers(BARE + BARE // 4, 5_000),
)
def test_with_room_for_some_of_it_every_response_fits_the_context(length: int, unit: str, context: int) -> None:
    text = (unit * length)[:length]
    plan = fit(text, context)
    assert tokens(plan) <= context
    assert 0 <= plan.characters_omitted <= length
    whole = fit(text, 10**6)
    assert (plan.characters_omitted == 0) == (tokens(whole) <= context)


@given(st.integers(1, 5_000), st.integers(1, BARE - 1))
def test_where_the_prompt_alone_is_too_long_nothing_is_left_out_and_the_engine_refuses(
    length: int, context: int
) -> None:
    plan = fit("x" * length, context)
    assert plan.characters_omitted == 0
    assert plan.digests == fit("x" * length, 10**6).digests


def test_the_longest_question_decides_whether_it_fits() -> None:
    plan = fit("x" * 8000, 500)
    lengths = [
        asyncio.run(ENGINE.count_tokens(Batch(plan.batch.system, plan.batch.shared, (c,)))) for c in plan.batch.calls
    ]
    assert max(lengths) == tokens(plan)
    assert max(lengths) > min(lengths)


def test_a_short_response_is_not_even_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine()
    monkeypatch.setattr(engine, "count_tokens", None)
    assert fit("short", 10_000, engine=engine).characters_omitted == 0
