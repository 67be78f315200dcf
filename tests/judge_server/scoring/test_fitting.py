"""A response that is too long for the judge's context is shown without its middle, or refused."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine
from judge_server.judging.plan import ResponsePlan
from judge_server.ports import Batch
from judge_server.scoring.planner import fit_response
from tests.judge_server.support import criteria, group, plan, prepared

ENGINE = ScriptedEngine()
SETUP = prepared()


def fit(text: str, context: int, prompt: str = "Is 7 prime?", engine: ScriptedEngine = ENGINE) -> ResponsePlan:
    """Fit one response into the context, and return its plan."""
    of = criteria("Is right.", "Is a longer question than the other one is.")

    async def with_kept(keep: int | None) -> ResponsePlan:
        return plan(SETUP, group(text, prompt=prompt), text, of, keep=keep)

    return asyncio.run(fit_response(engine, context, len(text), with_kept))


def tokens(fitted: ResponsePlan) -> int:
    """The scripted engine's token count."""
    return asyncio.run(ENGINE.count_tokens(fitted.batch))


BARE = tokens(fit("", 10**6))


@given(
    st.integers(0, 20_000),
    st.sampled_from(["x", "long words ", "数学", "### Step 1: a\n", "<|im_start|>", "\x00"]),
    st.integers(BARE + BARE // 4, 5_000),
)
def test_a_response_fits_the_context_if_there_is_room_for_part_of_it(length: int, unit: str, context: int) -> None:
    text = (unit * length)[:length]
    fitted = fit(text, context)
    assert tokens(fitted) <= context
    assert 0 <= fitted.characters_omitted <= length
    whole = fit(text, 10**6)
    assert (fitted.characters_omitted == 0) == (tokens(whole) <= context)


@given(st.integers(1, 5_000), st.integers(1, BARE - 1))
def test_nothing_is_omitted_if_the_prompt_alone_is_too_long(length: int, context: int) -> None:
    fitted = fit("x" * length, context)
    assert fitted.characters_omitted == 0
    assert fitted.digests == fit("x" * length, 10**6).digests


def test_the_longest_question_decides_whether_a_response_fits() -> None:
    fitted = fit("x" * 8000, 500)
    batch = fitted.batch
    lengths = [asyncio.run(ENGINE.count_tokens(Batch(batch.system, batch.shared, (c,)))) for c in batch.calls]
    assert max(lengths) == tokens(fitted)
    assert max(lengths) > min(lengths)


def test_the_tokens_of_a_short_response_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine()
    monkeypatch.setattr(engine, "count_tokens", None)
    assert fit("short", 10_000, engine=engine).characters_omitted == 0


@pytest.mark.parametrize("way", [{"per_call": "all"}, {"rationale": True}, {"think_tokens": 400}], ids=str)
def test_room_is_left_for_the_output_of_the_judge(way: dict[str, Any]) -> None:
    text = "word " * 300
    of = criteria(*(f"Is {n}." for n in range(12)))

    async def with_kept(keep: int | None) -> ResponsePlan:
        return plan(prepared(**way), group(text), text, of, keep=keep)

    whole = tokens(asyncio.run(with_kept(None)))
    for context in (whole, whole - 1, whole - 100):
        fitted = asyncio.run(fit_response(ENGINE, context, len(text), with_kept))
        assert tokens(fitted) <= context
        assert (fitted.characters_omitted == 0) == (context == whole)
