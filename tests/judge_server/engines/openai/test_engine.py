"""The OpenAI chat API engine when calls succeed, against a server process with many behaviours."""

import asyncio
import json
from contextlib import aclosing

import pytest

from judge_server.ports import Call, JsonOutput, LabelChoice, Reasoning, Reply, SamplingOptions, TokenChoice
from tests.judge_server.engines.openai import fixtures as openai_fixtures
from tests.judge_server.engines.openai.fixtures import YES_NO, Endpoint, batch, outcomes
from tests.judge_server.engines.servers.misbehaving import TRIGGER

pytestmark = pytest.mark.asyncio(loop_scope="session")

endpoint = openai_fixtures.endpoint

STEPS = TokenChoice(YES_NO.options, LabelChoice(("1", "2", "0", "-1"), ", step "))
OK = '{"type":"object","properties":{"ok":{"type":"boolean"}}}'


@pytest.mark.parametrize(
    ("name", "said", "sent"),
    [
        ("llama", "<zorp>[ZORP] the <b> <zorp", "< zorp>[ ZORP] the <b> <zorp"),
        ("vllm", "<zorp>[zorp]<:zorp:> [ZORP]", "< zorp>[ zorp]< :zorp:> [ZORP]"),
    ],
)
async def test_control_tokens_that_an_endpoint_reports_are_broken_up_in_all_text_sent_to_it(
    endpoint: Endpoint, name: str, said: str, sent: str
) -> None:
    await endpoint.reply(name, f"Is it {said}?")
    (asked,) = endpoint.chats(of="Is it ")
    assert asked["messages"][-1]["content"].endswith(f"Is it {sent}?")


async def test_masses_sum_the_spellings_among_the_likeliest_first_tokens(endpoint: Endpoint) -> None:
    reply = await endpoint.reply("good", "Is it?")
    assert reply.masses == pytest.approx((0.5 + 0.125, 0.25))
    assert (reply.text, reply.chosen, reply.cut) == (None, None, False)
    (asked,) = endpoint.chats(of="Is it?")
    assert (asked["max_tokens"], asked["temperature"], asked["top_logprobs"]) == (1, 0, 20)
    assert "response_format" not in asked


async def test_whitespace_before_the_answer_is_skipped(endpoint: Endpoint) -> None:
    reply = await endpoint.reply("spaced", "Is it?")
    assert reply.masses == pytest.approx((0.625, 0.25))
    (asked,) = endpoint.chats(of="Is it?")
    assert asked["max_tokens"] == 2


async def test_without_an_option_among_the_likeliest_tokens_masses_are_zero_and_the_text_is_kept(
    endpoint: Endpoint,
) -> None:
    reply = await endpoint.reply("good", "Is it none of the menu?")
    assert reply.masses == (0.0, 0.0)
    assert reply.text == "Yes"


async def test_a_token_choice_without_log_probabilities_is_answered_in_text(endpoint: Endpoint) -> None:
    reply = await endpoint.reply("plain", "Is it?")
    assert reply.masses is None
    assert reply.text == "Yes, step 2, since it is so."


async def test_the_label_after_a_token_choice_is_given_in_text_alongside_the_masses(endpoint: Endpoint) -> None:
    reply = await endpoint.reply("good", Call("Which step?", STEPS))
    assert reply.masses == pytest.approx((0.625, 0.25))
    assert reply.chosen is None
    assert reply.text is not None
    assert reply.text.startswith("Yes, step 2")


async def test_a_choice_is_constrained_to_its_labels_where_the_endpoint_supports_it(endpoint: Endpoint) -> None:
    choice = Call("Which?", LabelChoice(("1", "2", "10")))
    held = await endpoint.reply("good", choice)
    assert (held.chosen, held.text) == ("10", None)
    said = await endpoint.reply("plain", choice)
    assert (said.chosen, said.text) == (None, "Yes, step 2, since it is so.")


async def test_a_label_that_was_not_offered_is_not_chosen(endpoint: Endpoint) -> None:
    reply = await endpoint.reply("straying", Call(TRIGGER, LabelChoice(("1", "2"))))
    assert (reply.chosen, reply.text) == (None, '{"answer": "99"}')


async def test_json_output_is_constrained_by_its_schema_and_marked_when_cut(endpoint: Endpoint) -> None:
    reply = await endpoint.reply("good", Call("Write.", JsonOutput(OK, 40)))
    assert (reply.text, reply.cut) == ('{"answer": "written"}', False)
    (asked,) = endpoint.chats(of="Write.")
    assert asked["response_format"]["json_schema"]["schema"] == json.loads(OK)
    assert asked["max_tokens"] == 40
    cut = await endpoint.reply("plain", Call("Write.", JsonOutput(OK, 3)))
    assert (cut.text, cut.cut) == ("Yes, step", True)


async def test_a_schema_the_endpoint_refuses_is_left_out_and_the_text_is_read(endpoint: Endpoint) -> None:
    schema = '{"type":"object","properties":{"verdicts":{"type":"array","prefixItems":[{}]}}}'
    reply = await endpoint.reply("picky", Call("Write.", JsonOutput(schema, 40)))
    assert reply.text == "Yes, step 2, since it is so."
    assert ["response_format" in body for body in endpoint.chats(of="Write.")] == [True, False]


async def test_reasons_are_requested_before_the_answer(endpoint: Endpoint) -> None:
    reply = await endpoint.reply("good", Call("Is it?", YES_NO, reasoning=Reasoning(4, "So, yes or no?")))
    assert reply.reasoning == "Yes, step 2"
    assert reply.masses == pytest.approx((0.625, 0.25))
    first, second = endpoint.chats(of="Is it?")
    assert first["max_tokens"] == 4
    assert "logprobs" not in first
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert [m["content"] for m in second["messages"][2:]] == ["Yes, step 2", "So, yes or no?"]
    assert (reply.tokens_computed, reply.tokens_reused, reply.tokens_written) == (72, 128, 2)


async def test_thinking_is_dropped_together_with_the_masses(endpoint: Endpoint) -> None:
    for thinking in (0, 50):
        reply = await endpoint.reply("thinker", Call("Is it?", YES_NO, think_tokens=thinking))
        assert reply.masses is None
        assert reply.text == "Yes"
    unhelped, given_room = endpoint.chats(of="Is it?")
    assert given_room["max_tokens"] == unhelped["max_tokens"] + 50
    unasked = await endpoint.reply("pensive", Call(TRIGGER, YES_NO))
    assert (unasked.masses, unasked.text) == (None, "No")


LED = TokenChoice(YES_NO.options, lead="<think>\n</think>\n<score>")


async def test_the_verdict_after_a_lead_that_the_model_writes_is_read_at_its_own_place(endpoint: Endpoint) -> None:
    reply = await endpoint.reply("led", Call("Is it?", LED))
    assert reply.masses == pytest.approx((0.7, 0.2), abs=1e-6)
    assert reply.text is None
    straight = await endpoint.reply("instruct", Call("Is it?", LED))
    assert straight.masses == (await endpoint.reply("instruct", "Is it?")).masses
    unclear = await endpoint.reply("glued", Call("Is it?", LED))
    assert (unclear.masses, unclear.text) == (None, "<score>yes </score>")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sorted-channels", "yes"),
        ("channels", "yes"),
        ("bare-channels", "yes"),
        ("analysis-only", ""),
        ("two-finals", ""),
    ],
)
async def test_the_final_channel_of_gpt_oss_is_the_answer_whether_or_not_the_server_sorts_channels(
    endpoint: Endpoint, name: str, text: str
) -> None:
    reply = await endpoint.reply(name, Call("Is it?", YES_NO, think_tokens=64))
    assert (reply.masses, reply.text) == (None, text)
    (body,) = endpoint.chats(of="Is it?")
    assert body["max_tokens"] == 64 + 12


async def test_a_sample_uses_its_temperature_and_where_supported_its_seed(endpoint: Endpoint) -> None:
    call = Call("Is it?", YES_NO, sample=SamplingOptions(0.7, 41))
    await endpoint.reply("good", call)
    await endpoint.reply("refusing", call)
    seeded, unseeded = endpoint.chats(of="Is it?")
    assert (seeded["temperature"], seeded["seed"]) == (0.7, 41)
    assert unseeded["temperature"] == 0.7
    assert "seed" not in unseeded


async def test_text_with_a_lone_surrogate_is_still_sent(endpoint: Endpoint) -> None:
    await endpoint.reply("good", "Is \ud800 it \x00?")
    (asked,) = endpoint.chats(of="Is ? it")
    assert asked["messages"][1]["content"] == "7 is prime.\nIs ? it \x00?"


async def test_the_first_call_is_sent_alone_where_prefixes_are_not_shared_in_flight(endpoint: Endpoint) -> None:
    engine, _ = await endpoint.started("slow")
    await outcomes(engine, batch(*[f"{TRIGGER} {n}" for n in range(3)]))
    asked = [e for e in endpoint.events if e[-1].isdigit()]
    assert asked[:2] == ["begin 0", "end 0"]
    assert {*asked[2:4]} == {"begin 1", "begin 2"}


async def test_calls_are_sent_together_where_prefixes_are_shared_in_flight(endpoint: Endpoint) -> None:
    engine, _ = await endpoint.started("slow-vllm")
    await outcomes(engine, batch(*[f"{TRIGGER} {n}" for n in range(3)]))
    asked = [e for e in endpoint.events if e[-1].isdigit()]
    assert {*asked[:3]} == {"begin 0", "begin 1", "begin 2"}


async def test_concurrent_calls_are_limited_across_all_batches(endpoint: Endpoint) -> None:
    engine, identity = await endpoint.started("slow-vllm", concurrency=2)
    assert identity.concurrent_batches == 2
    asked = [batch(*[f"{TRIGGER} {n}" for n in range(4)]) for _ in range(2)]
    await asyncio.gather(*[outcomes(engine, one) for one in asked])
    under_way, most = 0, 0
    for event in endpoint.events:
        if event[-1].isdigit():
            under_way += 1 if event.startswith("begin") else -1
            most = max(most, under_way)
    assert most == 2


async def test_each_outcome_is_yielded_as_soon_as_it_is_known(endpoint: Endpoint) -> None:
    engine, _ = await endpoint.started("slow-vllm")
    found = [index async for index, _ in engine.answer(batch(f"{TRIGGER} 0", "quick"))]
    assert found == [1, 0]


@pytest.mark.parametrize("way", ["closing", "cancelling"])
async def test_closing_or_cancelling_disconnects_from_the_server(endpoint: Endpoint, way: str) -> None:
    engine, _ = await endpoint.started("silent-vllm")
    asked = batch("quick", f"{TRIGGER} 1", f"{TRIGGER} 2")

    async def ask() -> None:
        async with aclosing(engine.answer(asked)) as answers:
            async for _ in answers:
                if way == "closing":
                    await endpoint.until("begin 1", "begin 2")
                    return

    task = asyncio.create_task(ask())
    if way == "cancelling":
        await endpoint.until("begin 1", "begin 2")
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await endpoint.until("gone", "gone")
    assert isinstance((await outcomes(engine, batch("quick")))[0], Reply)
