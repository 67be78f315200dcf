"""Behaviour specific to llama.cpp: control tokens, masks, prefix reuse, and a child process that dies."""

import asyncio
import math
import re
import resource
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx2
import psutil
import pytest
import pytest_asyncio

from judge_server.engines import engine_from_url
from judge_server.engines.llamacpp.engine import LlamaCppEngine, LlamaCppTokenizer
from judge_server.errors import EngineStartError, EngineUnavailable
from judge_server.judging.plan import ResponsePlan
from judge_server.models import fetch
from judge_server.ports import (
    Batch,
    Call,
    CallFailure,
    JsonOutput,
    LabelChoice,
    Reasoning,
    Reply,
    SamplingOptions,
    TokenChoice,
)
from judge_server.scoring.planner import fit_response
from tests.judge_server.engines.fixtures import (
    CONTEXT_TOKENS,
    MODEL,
    NO,
    YES,
    YES_NO,
    answers,
    asked,
    failures,
    identity_of,
    llamacpp,
    replies,
)
from tests.judge_server.engines.systemone.decision_gguf import with_keys
from tests.judge_server.judging.prompts.test_fencing import CHAT_TOKENS
from tests.judge_server.support import criteria, group, plan, prepared

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]

NEARLY_ALL = 20_000
"""Tokens whose probabilities are read: all with noticeable mass, of a vocabulary of 151,936."""

STEPPED = TokenChoice((YES, NO), LabelChoice(("1", "2", "0", "-1"), ", step "))
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
)
"""The turns of gpt-oss' chat template."""
THINKS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{{ "<|im_start|>assistant\\n<think>\\n" }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ "\\n</think>\\n\\n" }}{% endif %}"""
"""A chat template that opens a thinking block unless it is told not to, as that of Qwen3.5-4B does."""

ENDLESS = JsonOutput('{"type": "array", "items": {"type": "integer"}, "minItems": 4000}', 3000)
"""Takes more than a minute to write."""


@pytest_asyncio.fixture(loop_scope="session")
async def roomy(fetched: None) -> AsyncIterator[LlamaCppEngine]:
    """A llama.cpp engine with room for long answers."""
    engine = await llamacpp(4096)
    yield engine
    await engine.close()


def kill(engine: LlamaCppEngine) -> None:
    """Kill the child process, as a crash would."""
    assert engine._process.pid is not None
    psutil.Process(engine._process.pid).send_signal(signal.SIGKILL)


async def busy(engine: LlamaCppEngine) -> bool:
    """Whether the model's slot is busy."""
    (slot,) = (await engine._process.http.get("/slots")).json()
    return bool(slot["is_processing"])


async def free(engine: LlamaCppEngine) -> bool:
    """Whether the model's slot is free."""
    return not await busy(engine)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition is true; time out after two minutes."""
    async with asyncio.timeout(120):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def until_busy(engine: LlamaCppEngine) -> None:
    """Wait until the slot is busy."""
    await until(lambda: busy(engine))


async def until_free(engine: LlamaCppEngine) -> None:
    """Wait until the slot is free; time out before its work could finish."""
    async with asyncio.timeout(30):
        await until(lambda: free(engine))


async def until_it_says(engine: LlamaCppEngine, *words: str) -> str:
    """Wait until a call succeeds or its failure has one of these words; return its detail, or an empty text."""

    async def said() -> bool:
        (outcome,) = await answers(engine, asked("Is it?"))
        found.append(outcome.detail if isinstance(outcome, CallFailure) else "")
        return not found[-1] or any(word in found[-1] for word in words)

    found: list[str] = []
    await until(said)
    return found[-1]


async def tokenise(engine: LlamaCppEngine, text: str, *, control: bool) -> list[int]:
    """Token ids, with control tokens allowed or not."""
    answer = await engine._process.http.post("/tokenize", json={"content": text, "parse_special": control})
    ids: list[int] = answer.json()["tokens"]
    return ids


async def test_masses_are_those_of_the_whole_vocabulary_before_any_mask(loaded: LlamaCppEngine) -> None:
    batch = asked("Which number is prime?", answer=STEPPED)
    (reply,) = await replies(loaded, batch)
    assert loaded._tokens is not None
    prompt = await loaded._tokens.prefix(batch) + await loaded._tokens.question(batch.calls[0].question)
    body = {"prompt": prompt, "n_predict": 1, "n_probs": NEARLY_ALL, "temperature": 0.0, "cache_prompt": False}
    answer = (await loaded._process.http.post("/completion", json=body)).json()
    probability = {t["id"]: math.exp(t["logprob"]) for t in answer["completion_probabilities"][0]["top_logprobs"]}
    assert sum(probability.values()) == pytest.approx(1, abs=1e-3)
    said = 0.0
    assert reply.masses is not None
    for option, mass in zip(STEPPED.options, reply.masses, strict=True):
        ids = {tuple(await tokenise(loaded, spelling, control=False)) for spelling in option.spellings}
        expected = sum(probability.get(i[0], 0.0) for i in ids if len(i) == 1)
        assert mass == pytest.approx(expected, abs=0.03)  # the engine splits the prompt and so rounds differently
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
    honest = await loaded._tokens.prefix(asked("x", shared="7 is prime."))
    hostile = await loaded._tokens.prefix(asked("x", shared=text))
    assert await loaded._tokens.question("x " + text) != await loaded._tokens.question("x")
    for ids in (hostile, await loaded._tokens.question(text)):
        assert sum(i in special for i in ids) in (
            sum(i in special for i in honest),
            sum(i in special for i in await loaded._tokens.question("x")),
        )
    assert sum(i in special for i in await tokenise(loaded, text, control=True)) >= 3


async def test_no_spelling_counts_for_both_yes_and_no(loaded: LlamaCppEngine) -> None:
    assert loaded._tokens is not None
    yes, no = [set(await loaded._tokens.spellings(option)) for option in YES_NO.options]
    assert len(yes) >= 4
    assert len(no) >= 4
    assert not yes & no


async def test_the_second_call_of_a_batch_reads_only_its_question(loaded: LlamaCppEngine) -> None:
    batch = asked(
        "Is 7 prime?", "Is 8 prime?", "Is 9 prime?", shared="Of the numbers seven to nine, one is prime. " * 4
    )
    first, *others = await replies(loaded, batch)
    whole = first.tokens_computed + first.tokens_reused
    assert first.tokens_computed > 40
    for other in others:
        assert other.tokens_computed < first.tokens_computed / 3
        assert other.tokens_computed + other.tokens_reused == pytest.approx(whole, abs=5)


async def test_a_batch_of_another_cache_salt_reuses_nothing(loaded: LlamaCppEngine) -> None:
    batch = asked("Is 7 prime?", shared="Of the numbers seven to nine, one is prime. " * 4)
    reused = []
    for salt in ("", "", "b", "b", ""):
        (reply,) = await replies(loaded, replace(batch, cache_salt=salt))
        reused.append(reply.tokens_reused)
    assert (reused[2], reused[4]) == (0, 0)
    assert min(reused[1], reused[3]) > 40


async def test_a_step_costs_only_the_tokens_of_its_lead(loaded: LlamaCppEngine) -> None:
    shared = "Of the numbers ten to twelve, one is prime. " * 4
    (plain,) = await replies(loaded, asked("Is it?", shared=shared))
    (stepped,) = await replies(loaded, asked("Is it?", answer=STEPPED, shared=shared))
    assert stepped.tokens_computed < 20 < plain.tokens_computed


async def test_a_response_is_cut_to_fit_by_the_real_tokenizer(loaded: LlamaCppEngine) -> None:
    for text in ("a number, " * 2000, "1234567890" * 500, "数学" * 3000, "\U0001d538" * 2000):

        async def planned(keep: int | None, text: str = text) -> ResponsePlan:
            return plan(prepared(), group(text), text, criteria("Is it?"), keep=keep)

        fitted = await fit_response(loaded, CONTEXT_TOKENS, len(text), planned)
        assert await loaded.count_tokens(fitted.batch) <= CONTEXT_TOKENS
        assert 0 < fitted.characters_omitted < len(text)


@pytest.mark.parametrize(
    "call", [Call("Count.", ENDLESS), Call("Count.", YES_NO, Reasoning(3000, "So?"))], ids=["written", "reasons"]
)
async def test_a_call_cancelled_while_it_writes_frees_the_slot(roomy: LlamaCppEngine, call: Call) -> None:
    story = SamplingOptions(1.5, 1)  # greedy reasons might end early
    batch = Batch("Write at length.", "A long story.\n", (replace(call, sample=story),))
    task = asyncio.create_task(answers(roomy, batch))
    await until_busy(roomy)
    await asyncio.sleep(0.5)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until_free(roomy)
    await replies(roomy, asked("Is it?"))


async def test_a_cancelled_prompt_is_not_read_to_its_end(roomy: LlamaCppEngine) -> None:
    batch = asked("Is it?", shared=" ".join(map(str, range(320))))
    unread = asyncio.create_task(answers(roomy, batch))
    await until_busy(roomy)
    unread.cancel()
    await asyncio.gather(unread, return_exceptions=True)
    await until_free(roomy)
    (again,) = await replies(roomy, batch)
    assert again.tokens_computed > 500, "tokens already read are cached and would not be computed again"


async def test_the_engine_is_ready_right_after_each_answer(loaded: LlamaCppEngine) -> None:
    for _ in range(20):
        await replies(loaded, asked("Is it?"))
        assert await loaded.ready()


async def test_a_conversation_has_the_tokens_of_the_rendered_chat_template(loaded: LlamaCppEngine) -> None:
    tokens, http = loaded._tokens, loaded._process.http
    assert tokens is not None
    batch = asked("Is it?")
    ids = await tokens.prefix(batch) + await tokens.question("Is it?")
    ids += await tokens.written("Reasons.") + await tokens.second_turn("So?")
    texts = (("system", batch.system), ("user", batch.shared + "Is it?"), ("assistant", "Reasons."), ("user", "So?"))
    messages = [{"role": role, "content": text} for role, text in texts]
    rendered = (await http.post("/apply-template", json={"messages": messages})).json()["prompt"]
    assert ids == await tokenise(loaded, rendered, control=True)


async def test_a_model_that_thinks_by_default_answers_at_once_unless_a_request_lets_it_think(tmp_path: Path) -> None:
    """Its template opens a thinking block; with enable_thinking false, it closes it before the answer."""
    file = with_keys(fetch("smollm2-135m"), tmp_path / "thinks.gguf", {"tokenizer.chat_template": THINKS})
    engine = LlamaCppEngine(str(file), context_tokens=CONTEXT_TOKENS, threads=1)
    await engine.start()
    try:
        turn = "<|im_end|>\n<|im_start|>assistant\n<think>\n"
        batch = asked("Is it?")
        thinking = replace(batch.calls[0], think_tokens=4)
        for call, ending in ((batch.calls[0], f"{turn}\n</think>\n\n"), (thinking, turn)):
            expected = await tokenise(engine, ending, control=True)
            assert (await engine.prompt_tokens(batch, call))[-len(expected) :] == expected
        (reply,) = await replies(engine, replace(batch, calls=(thinking,)))
        assert 1 < reply.tokens_written <= 5
    finally:
        await engine.close()


async def test_a_template_with_channels_gets_its_analysis_and_its_final_channel(tmp_path: Path) -> None:
    file = with_keys(fetch("smollm2-135m"), tmp_path / "channels.gguf", {"tokenizer.chat_template": CHANNELS})
    engine = LlamaCppEngine(str(file), context_tokens=CONTEXT_TOKENS, threads=1)
    await engine.start()
    try:
        batch = asked("Is it?")
        thinking = replace(batch.calls[0], think_tokens=4)
        for call, channel in ((batch.calls[0], "final"), (thinking, "analysis")):
            ending = f"<|end|><|start|>assistant<|channel|>{channel}<|message|>"
            expected = await tokenise(engine, ending, control=True)
            assert (await engine.prompt_tokens(batch, call))[-len(expected) :] == expected
        (reply,) = await replies(engine, replace(batch, calls=(thinking,)))
        assert reply.masses is not None
    finally:
        await engine.close()


async def test_a_lead_is_part_of_the_prompt_and_changes_what_comes_next(loaded: LlamaCppEngine) -> None:
    lead = '<|im_end|>{"score": "'
    plain = asked("Is it?")
    led = replace(plain, calls=(replace(plain.calls[0], answer=replace(YES_NO, lead=lead)),))
    (without,), (after,) = [await replies(loaded, batch) for batch in (plain, led)]
    longer = len(await tokenise(loaded, lead, control=True))
    assert (after.tokens_computed + after.tokens_reused) - (without.tokens_computed + without.tokens_reused) == longer
    assert after.masses != without.masses


async def test_nothing_that_the_model_wrote_becomes_a_control_token(loaded: LlamaCppEngine) -> None:
    assert loaded._tokens is not None
    special = {i for t in CHAT_TOKENS[:3] for i in await tokenise(loaded, t.partition(">")[0] + ">", control=True)}
    assert len(special) == 3
    assert not special & set(await loaded._tokens.written(" ".join(CHAT_TOKENS)))


async def test_reasons_are_not_read_twice(loaded: LlamaCppEngine) -> None:
    shared = "Of the numbers ten to twelve, one is prime. " * 8
    reasoning = Reasoning(30, "So?")
    (plain,) = await replies(loaded, asked("Is it?", shared=shared))
    (reasoned,) = await replies(loaded, asked("Is it?", shared=shared, reasoning=reasoning))
    assert reasoned.tokens_computed < 50 < plain.tokens_computed
    assert reasoned.tokens_written <= 31


async def test_a_single_turn_chat_template_still_answers_but_refuses_reasons(loaded: LlamaCppEngine) -> None:
    class SingleTurnTransport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            content = await request.aread()
            if request.url.path == "/apply-template" and b"assistant" in content:
                return httpx2.Response(500, json={"error": {"message": "only one turn is supported"}})
            answer = await loaded._process.http.post(request.url.path, content=content)
            return httpx2.Response(answer.status_code, content=answer.content)

    async with httpx2.AsyncClient(transport=SingleTurnTransport(), base_url="http://llama.test") as http:
        tokens = await LlamaCppTokenizer.load(http)
        assert loaded._tokens is not None
        assert tokens.warm_up == loaded._tokens.warm_up
        with pytest.raises(EngineUnavailable, match="allows no second turn"):
            await tokens.second_turn("So?")


async def test_a_killed_child_causes_failures_and_never_an_exception(spare_llamacpp: LlamaCppEngine) -> None:
    batch = asked(*[f"Is {n} prime?" for n in range(40)], answer=STEPPED, shared="Numbers. ")
    outcomes: list[Reply | CallFailure] = []
    async for _, outcome in spare_llamacpp.answer(batch):
        if not outcomes:
            kill(spare_llamacpp)
        outcomes.append(outcome)
    assert isinstance(outcomes[0], Reply)
    assert len(outcomes) == 40
    assert {o.kind for o in outcomes[2:] if isinstance(o, CallFailure)} == {"engine"}
    assert not any(isinstance(o, Reply) for o in outcomes[2:])
    assert not await spare_llamacpp.ready()
    whole = plan(prepared(), group("x" * 9000), "x" * 9000, criteria("Is it?"))

    async def planned(keep: int | None) -> ResponsePlan:
        return whole

    fitted = await fit_response(spare_llamacpp, CONTEXT_TOKENS, 9000, planned)
    assert {failed.kind for failed in await failures(spare_llamacpp, fitted.batch)} == {"engine"}


async def test_a_killed_child_is_restarted_with_the_same_model(spare_llamacpp: LlamaCppEngine) -> None:
    (before,) = await replies(spare_llamacpp, asked("Is it?"))
    for _ in range(2):
        dead = spare_llamacpp._process.pid
        kill(spare_llamacpp)
        assert await until_it_says(spare_llamacpp) == ""
        assert await spare_llamacpp.ready()
        (after,) = await replies(spare_llamacpp, asked("Is it?"))
        assert after.masses == pytest.approx(before.masses, abs=0.03)
        assert dead != spare_llamacpp._process.pid


async def test_a_sleeping_model_has_no_process_and_gives_the_same_answers_when_it_wakes(
    spare_llamacpp: LlamaCppEngine,
) -> None:
    batch = asked("Is it?", "Is it not?")
    before = [reply.masses for reply in await replies(spare_llamacpp, batch)]
    pid = spare_llamacpp._process.pid
    for _ in range(2):
        await spare_llamacpp.sleep()
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert not await spare_llamacpp.ready()
    with pytest.raises(EngineUnavailable, match="asleep"):
        await spare_llamacpp.count_tokens(batch)
    for _ in range(2):
        await spare_llamacpp.wake()
    assert await spare_llamacpp.ready()
    assert [reply.masses for reply in await replies(spare_llamacpp, batch)] == before
    kill(spare_llamacpp)
    assert await until_it_says(spare_llamacpp) == ""
    assert await spare_llamacpp.ready()


async def test_a_model_whose_file_has_changed_while_it_slept_does_not_wake(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(fetch(MODEL), model)
    engine = LlamaCppEngine(str(model), context_tokens=CONTEXT_TOKENS, threads=1)
    await engine.start()
    await engine.sleep()
    with model.open("ab") as file:
        file.write(b"another")
    with pytest.raises(EngineUnavailable, match="has changed; restart the service"):
        await engine.wake()
    shutil.copy(fetch(MODEL), model)
    await engine.wake()
    assert await engine.ready()
    await engine.close()


async def test_a_child_is_not_restarted_on_a_changed_model_file(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(fetch(MODEL), model)
    engine = LlamaCppEngine(str(model), context_tokens=CONTEXT_TOKENS, threads=1)
    await engine.start()
    with model.open("ab") as file:
        file.write(b"another")
    kill(engine)
    assert "restart the service" in await until_it_says(engine, "has changed")
    assert not await engine.ready()
    await engine.close()


async def test_closing_during_a_restart_leaves_no_child(fetched: None) -> None:
    engine = await llamacpp()
    dead = engine._process.pid
    kill(engine)

    async def started_again() -> bool:
        return engine._process.pid != dead

    await until(started_again)
    pid = engine._process.pid
    await engine.close()
    assert pid is not None
    assert not psutil.pid_exists(pid)
    (failed,) = await failures(engine, asked("Is it?"))
    assert "closed" in failed.detail


async def test_the_context_is_limited_to_what_the_model_was_trained_for(fetched: None) -> None:
    engine = await llamacpp(40_000)
    assert identity_of(engine).context_tokens == 32_768
    await engine.close()


async def test_a_context_too_large_for_memory_is_refused_with_a_fix(fetched: None) -> None:
    engine = LlamaCppEngine(MODEL, context_tokens=1_000_000, threads=1)  # 12 GB
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, limits[1]))  # the child inherits it
    try:
        with pytest.raises(EngineStartError, match=r"insufficient memory .* lower the engine's \?context="):
            await engine.start()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert not await engine.ready()
    await engine.close()


async def test_a_child_killed_while_it_loads_is_reported_as_killed(fetched: None) -> None:
    engine = LlamaCppEngine(MODEL, context_tokens=CONTEXT_TOKENS, threads=1)
    start = asyncio.create_task(engine.start())

    async def loading() -> bool:
        return engine._process.pid is not None

    await until(loading)
    kill(engine)
    with pytest.raises(EngineStartError, match="killed while it loaded, probably because memory ran out"):
        await start
    await engine.close()


async def test_an_invalid_model_file_is_refused_with_the_reason_and_a_fix(tmp_path: Path) -> None:
    texts = {
        "broken.gguf": (b"GGUF" + b"\x03\0\0\0" + bytes(2000), "unknown model architecture"),
        "cut.gguf": (fetch(MODEL).open("rb").read(50_000_000), "corrupted or incomplete"),
    }
    for name, (content, wrong) in texts.items():
        (tmp_path / name).write_bytes(content)
        engine = LlamaCppEngine(str(tmp_path / name))
        with pytest.raises(EngineStartError) as refused:
            await engine.start()
        assert f"could not load {tmp_path / name}: " in str(refused.value)
        assert wrong in str(refused.value)
        assert "choose a smaller model" in str(refused.value)
        await engine.close()


async def test_a_missing_file_or_another_format_is_refused_without_starting_a_child(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model " * 500)
    for name, says in (("text.gguf", r"text\.gguf is not a GGUF model"), ("missing.gguf", r"missing\.gguf")):
        engine = LlamaCppEngine(str(tmp_path / name))
        with pytest.raises(EngineStartError, match=says):
            await engine.start()
        assert engine._process.pid is None
        await engine.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("llamacpp://m?contxt=5", "unknown option 'contxt'"),
        ("llamacpp://m?context=0", "context=0: Input should be greater than 0"),
        ("scripted://maybe", "scripted://hash"),
        ("scripted://hash?delay_s=-1", "greater than or equal to 0"),
        ("ollama://m", "llamacpp://MODEL"),
    ],
)
async def test_an_invalid_engine_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        engine_from_url(url)
