"""The OpenAI chat API engine against llama.cpp's real server and a real model."""

import math

import pytest

from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.errors import EngineStartError
from judge_server.ports import (
    Batch,
    Call,
    CallFailure,
    LabelChoice,
    Reply,
    TokenChoice,
)
from tests.judge_server.engines.openai.fixtures import CONTEXT_TOKENS, YES_NO, LlamaCppServer, batch, outcomes

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]


async def replies(engine: OpenAIEngine, asked: Batch) -> list[Reply]:
    """The outcomes, which must all be replies."""
    found = await outcomes(engine, asked)
    assert all(isinstance(outcome, Reply) for outcome in found), found
    return [outcome for outcome in found if isinstance(outcome, Reply)]


async def test_the_engine_detects_the_capabilities_of_llamacpp(spare_openai: OpenAIEngine) -> None:
    identity = await spare_openai.start()
    able = identity.capabilities
    assert (able.logprobs, able.json_schema, able.seeds) == (True, True, True)
    assert (able.token_menus, able.prompt_logprobs, able.prefix_in_flight) == (False, False, False)
    assert identity.engine == "OpenAI chat API of llamacpp (llama.cpp)"
    assert identity.context_tokens == CONTEXT_TOKENS
    assert len(identity.chat_template_digest) == 64
    assert identity.weights_digest.startswith("declared by the endpoint: ")


async def test_masses_are_those_that_the_server_gives_the_first_token(
    openai_over_llamacpp: OpenAIEngine, llamacpp_server: LlamaCppServer
) -> None:
    asked = batch("Is it prime?")
    (reply,) = await replies(openai_over_llamacpp, asked)
    messages = [
        {"role": "system", "content": asked.system},
        {"role": "user", "content": asked.shared + asked.calls[0].question},
    ]
    body = {"messages": messages, "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 2000}
    http = openai_over_llamacpp._http
    found = await http.post_for_object(f"{llamacpp_server.base_url}/chat/completions", body)
    tops = found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert reply.masses is not None
    for mass, option in zip(reply.masses, YES_NO.options, strict=True):
        whole = sum(math.exp(top["logprob"]) for top in tops if top["token"] in option.spellings)
        assert mass == pytest.approx(whole, abs=0.02)  # it rounds differently, and 20 tokens are not all
        assert mass > 0


async def test_the_calls_of_a_batch_reuse_their_shared_prefix(openai_over_llamacpp: OpenAIEngine) -> None:
    shared = "Of the numbers twenty to thirty, two are prime. " * 4
    calls = tuple(Call(f"Is {n} prime?", YES_NO) for n in (21, 22, 23))
    first, *others = await replies(openai_over_llamacpp, Batch("Answer yes or no.", shared, calls))
    assert first.tokens_computed > 40
    for other in others:
        assert other.tokens_reused > 40
        assert other.tokens_computed < first.tokens_computed / 3


async def test_token_counts_are_the_servers_and_an_overlong_prompt_is_truncated_input(
    openai_over_llamacpp: OpenAIEngine,
) -> None:
    asked = batch("Is it?", "word " * 40)
    second = (await replies(openai_over_llamacpp, asked))[1]
    counted = await openai_over_llamacpp.count_tokens(asked)
    assert counted == second.tokens_computed + second.tokens_reused + 1
    for words in (1000, 20_000):
        (refused,) = await outcomes(openai_over_llamacpp, batch("word " * words))
        assert isinstance(refused, CallFailure)
        assert refused.kind == "truncated_input"
        assert await openai_over_llamacpp.count_tokens(batch("word " * words)) > CONTEXT_TOKENS


async def test_a_step_is_given_in_text_alongside_the_masses(openai_over_llamacpp: OpenAIEngine) -> None:
    question = "Which step says so? Answer like this: yes, step 1"
    (reply,) = await replies(
        openai_over_llamacpp, batch(Call(question, TokenChoice(YES_NO.options, LabelChoice(("1", "2")))))
    )
    assert reply.masses is not None
    assert sum(reply.masses) > 0
    assert reply.text


async def test_a_label_after_a_token_choice_is_asked_for_in_a_separate_turn_and_constrained(
    openai_over_llamacpp: OpenAIEngine,
) -> None:
    labels = ("41", "52", "0", "-1")
    then = LabelChoice(labels, ", step ", "Which step says so? Answer with its number.")
    plain, stepped = await replies(
        openai_over_llamacpp, batch(Call("Is 7 prime?", YES_NO), Call("Is 7 prime?", TokenChoice(YES_NO.options, then)))
    )
    assert stepped.masses == pytest.approx(plain.masses, abs=0.05)
    assert stepped.chosen in labels
    assert stepped.text is None
    assert stepped.tokens_written > plain.tokens_written


async def test_llamacpp_gets_one_call_at_a_time_unless_configured_otherwise(llamacpp_server: LlamaCppServer) -> None:
    for given, held in ((None, 1), (3, 3)):
        engine = OpenAIEngine(llamacpp_server.base_url, api_key=llamacpp_server.api_key, concurrency=given)
        assert (await engine.start()).concurrent_batches == held
        await engine.close()


async def test_llamacpp_refuses_a_wrong_key_and_a_model_it_does_not_serve(llamacpp_server: LlamaCppServer) -> None:
    wrong = {"refused the key": {"api_key": "nope"}, "does not serve 'other'": {"model": "other"}}
    for says, options in wrong.items():
        engine = OpenAIEngine(llamacpp_server.base_url, **({"api_key": llamacpp_server.api_key} | options))
        with pytest.raises(EngineStartError, match=says) as refused:
            await engine.start()
        assert llamacpp_server.api_key not in str(refused.value)
        await engine.close()
