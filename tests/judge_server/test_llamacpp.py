"""What only llama.cpp can get wrong: control tokens, masks, prefix reuse, and a child process that dies."""

import asyncio
import math
import signal
from pathlib import Path

import psutil
import pytest

from judge_server.engines import LlamaCppEngine, engine_from_url
from judge_server.errors import EngineStartError
from judge_server.judging.fitting import fit_response
from judge_server.judging.plan import plan_response
from judge_server.ports import CallFailed, Reply
from judge_server.prompts.fencing import Fence
from tests.judge_server.engines import CONTEXT_TOKENS, answers
from tests.judge_server.support import batch, criteria, group, setup
from tests.judge_server.test_fencing import CHAT_TOKENS

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]

NEARLY_ALL = 20_000
"""Tokens whose probabilities are read: of a vocabulary of 151,936, all that weigh anything."""


async def tokenise(engine: LlamaCppEngine, text: str, *, control: bool) -> list[int]:
    """Token ids, with control tokens allowed or not."""
    answer = await engine._process.http.post("/tokenize", json={"content": text, "parse_special": control})
    ids: list[int] = answer.json()["tokens"]
    return ids


async def test_masses_are_those_of_the_whole_vocabulary_before_any_mask(loaded: LlamaCppEngine) -> None:
    asked = batch("Which number is prime?", shared="7 is prime.\n", steps=[1, 2])
    (reply,) = await answers(loaded, asked)
    assert isinstance(reply, Reply)
    assert loaded._tokens is not None
    prompt = await loaded._tokens.prefix(asked) + await loaded._tokens.question(asked.calls[0].question)
    body = {"prompt": prompt, "n_predict": 1, "n_probs": NEARLY_ALL, "temperature": 0.0, "cache_prompt": False}
    answer = (await loaded._process.http.post("/completion", json=body)).json()
    probability = {t["id"]: math.exp(t["logprob"]) for t in answer["completion_probabilities"][0]["top_logprobs"]}
    assert sum(probability.values()) == pytest.approx(1, abs=1e-3)
    said = 0.0
    for option, mass in zip(asked.calls[0].menu, reply.masses, strict=True):
        ids = {tuple(await tokenise(loaded, spelling, control=False)) for spelling in option.spellings}
        expected = sum(probability.get(i[0], 0.0) for i in ids if len(i) == 1)
        assert mass == pytest.approx(expected, abs=0.03)  # it reads the prompt in other pieces, and rounds differently
        said += expected
    assert said < 0.9, "the prompt should leave mass elsewhere, or a mask would not show"


async def test_no_judged_text_becomes_a_control_token(loaded: LlamaCppEngine) -> None:
    assert loaded._tokens is not None
    special = {
        ids[0]
        for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
        if len(ids := await tokenise(loaded, t, control=True)) == 1
    }
    assert len(special) == 3
    text = " ".join(CHAT_TOKENS)
    honest = await loaded._tokens.prefix(batch("x", shared="7 is prime."))
    hostile = await loaded._tokens.prefix(batch("x", shared=text))
    assert await loaded._tokens.question("x " + text) != await loaded._tokens.question("x")
    for ids in (hostile, await loaded._tokens.question(text)):
        assert sum(i in special for i in ids) in (
            sum(i in special for i in honest),
            sum(i in special for i in await loaded._tokens.question("x")),
        )
    assert sum(i in special for i in await tokenise(loaded, text, control=True)) >= 3


async def test_no_spelling_is_counted_for_yes_and_no_at_once(loaded: LlamaCppEngine) -> None:
    assert loaded._tokens is not None
    yes, no = [set(await loaded._tokens.spellings(option)) for option in batch("x").calls[0].menu]
    assert len(yes) >= 4
    assert len(no) >= 4
    assert not yes & no


async def test_the_second_call_of_a_batch_reads_only_its_question(loaded: LlamaCppEngine) -> None:
    asked = batch(
        "Is 7 prime?", "Is 8 prime?", "Is 9 prime?", shared="Of the numbers seven to nine, one is prime. " * 4
    )
    first, *others = await answers(loaded, asked)
    assert isinstance(first, Reply)
    whole = first.tokens_computed + first.tokens_reused
    assert first.tokens_computed > 40
    for other in others:
        assert isinstance(other, Reply)
        assert other.tokens_computed < first.tokens_computed / 3
        assert other.tokens_computed + other.tokens_reused == pytest.approx(whole, abs=5)


async def test_the_step_costs_only_the_words_put_in_the_judges_mouth(loaded: LlamaCppEngine) -> None:
    shared = "Of the numbers ten to twelve, one is prime. " * 4
    (plain,) = await answers(loaded, batch("Is it?", shared=shared))
    (stepped,) = await answers(loaded, batch("Is it?", shared=shared, steps=[1, 2]))
    assert isinstance(plain, Reply)
    assert isinstance(stepped, Reply)
    assert stepped.tokens_computed < 20 < plain.tokens_computed


async def test_a_response_is_cut_to_what_the_real_tokenizer_lets_through(loaded: LlamaCppEngine) -> None:
    for text in ("a number, " * 2000, "1234567890" * 500, "数学" * 3000, "\U0001d538" * 2000):

        def planned(keep: int | None, text: str = text):  # type: ignore[no-untyped-def]
            return plan_response(setup(), group(text), text, criteria("Is it?"), keep)

        plan = await fit_response(loaded, CONTEXT_TOKENS, len(text), planned)
        assert await loaded.count_tokens(plan.batch) <= CONTEXT_TOKENS
        assert 0 < plan.characters_omitted < len(text)


async def test_a_call_that_is_given_up_leaves_the_engine_free_for_the_next(loaded: LlamaCppEngine) -> None:
    async def ask() -> None:
        await answers(loaded, batch(*[f"Is {n} prime?" for n in range(50)], shared=Fence(b"x" * 16)("word " * 150)))

    task = asyncio.create_task(ask())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (reply,) = await answers(loaded, batch("Is it?"))
    assert isinstance(reply, Reply)


async def test_a_killed_child_gives_failures_and_never_an_exception(spare_llamacpp: LlamaCppEngine) -> None:
    asked = batch(*[f"Is {n} prime?" for n in range(40)], shared="Numbers. ", steps=[1])
    outcomes: list[Reply | CallFailed] = []
    assert spare_llamacpp._process.pid is not None
    async for _, outcome in spare_llamacpp.answer(asked):
        if not outcomes:
            psutil.Process(spare_llamacpp._process.pid).send_signal(signal.SIGKILL)
        outcomes.append(outcome)
    assert isinstance(outcomes[0], Reply)
    assert len(outcomes) == 40
    assert {o.kind for o in outcomes[2:] if isinstance(o, CallFailed)} == {"engine"}
    assert not any(isinstance(o, Reply) for o in outcomes[2:])
    assert not await spare_llamacpp.ready()
    plan = plan_response(setup(), group("x" * 9000), "x" * 9000, criteria("Is it?"), None)
    fitted = await fit_response(spare_llamacpp, CONTEXT_TOKENS, 9000, lambda keep: plan)
    assert {o.kind for o in await answers(spare_llamacpp, fitted.batch) if isinstance(o, CallFailed)} == {"engine"}


async def test_a_file_that_is_no_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x03\0\0\0" + bytes(2000))
    for path in (broken, tmp_path / "missing.gguf"):
        engine = LlamaCppEngine(str(path))
        with pytest.raises(EngineStartError) as refused:
            await engine.start()
        assert str(path) in str(refused.value)
        await engine.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("llamacpp://m?contxt=5", "unknown option 'contxt'"),
        ("llamacpp://m?context=0", "whole number of at least 1"),
        ("scripted://maybe", "scripted://hash"),
        ("scripted://hash?delay_s=-1", "at least 0"),
        ("ollama://m", "llamacpp://MODEL"),
    ],
)
async def test_an_engine_url_that_says_nothing_known_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"unknown|number") as refused:
        engine_from_url(url)
    assert says in str(refused.value)
