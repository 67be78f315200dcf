"""TRL's prompts and completions in wire format; no text of a policy is refused."""

import warnings

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.small_tokenizers import said_by
from tests.trainer_client.trl.judges import FakeJudgeTransport, Trainer, response, rewarding, stream, summary
from tests.trainer_client.trl.judges import groups as group_lines
from trainer_client import InvalidRequest
from trainer_client.rows.messages import wire_text
from trainer_client.trl import RubricRewardWarning
from trainer_client.wire import Response

CALL = {"type": "function", "id": "7", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}


def message(**fields):
    return {"role": "assistant", **fields}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (message(content="x"), message(content="x")),
        (message(content="x", tool_calls=None, name=None, mask=1), message(content="x")),
        (message(content=None), message(content="")),
        (message(), message(content="")),
        (message(content=[{"type": "text", "text": "x", "image": None}, "y"]), message(content="x\ny")),
        (message(content={"ok": True}), message(content='{"ok": true}')),
        (message(content="x", thinking="t"), message(reasoning_content="t", content="x")),
        (message(reasoning_content="t", content=None), message(reasoning_content="t")),
        (
            message(content=None, tool_calls=[CALL]),
            message(tool_calls=[{"id": "7", "function": {"name": "add", "arguments": '{"a": 1, "b": null}'}}]),
        ),
        (
            message(tool_calls=[{"name": "add", "arguments": '{"a'}, "no call"]),
            message(tool_calls=[{"function": {"name": "add", "arguments": '{"a'}}]),
        ),
        (
            message(tool_calls=[{"function": {"name": None, "arguments": float("nan")}}]),
            message(tool_calls=[{"function": {"name": "", "arguments": "NaN"}}]),
        ),
        (
            {"role": "tool", "name": "add", "tool_call_id": 7, "content": "3"},
            {"role": "tool", "tool_call_id": "7", "name": "add", "content": "3"},
        ),
    ],
)
def test_a_message_keeps_the_fields_that_a_judge_reads(given, sent):
    assert wire_text([given]).value == [sent]
    Response.model_validate({"text": [sent]})


def test_arguments_that_arrow_fills_in_do_not_reach_the_judge_and_a_policys_own_null_does():
    arguments = {"a": 1, "b": None, "c": [{"d": 2, "e": None}, None]}
    conversation = [message(tool_calls=[{"function": {"name": "add", "arguments": arguments}}])]
    asked = wire_text(conversation, padded=True).value[0]["tool_calls"][0]["function"]["arguments"]
    assert asked == '{"a": 1, "c": [{"d": 2}, null]}'
    said = wire_text(conversation).value[0]["tool_calls"][0]["function"]["arguments"]
    assert said == '{"a": 1, "b": null, "c": [{"d": 2, "e": null}, null]}'


async def test_a_prompt_from_arrow_is_sent_without_its_nulls():
    def calling(name, **arguments):
        return [message(tool_calls=[{"function": {"name": name, "arguments": arguments}}])]

    table = pyarrow.Table.from_pylist([{"prompt": calling("add", a=1)}, {"prompt": calling("find", text="x")}])
    judge = FakeJudgeTransport()
    await rewarding(judge)(table.column("prompt").to_pylist(), ["1", "1"])
    calls = [group["prompt"][0]["tool_calls"][0]["function"] for group in judge.asked[0]["groups"]]
    assert calls == [{"name": "add", "arguments": '{"a": 1}'}, {"name": "find", "arguments": '{"text": "x"}'}]


def test_tool_calls_beyond_the_limit_of_a_message_continue_in_further_messages():
    sent = wire_text([message(content="x", tool_calls=[CALL] * 300)]).value
    assert [len(m["tool_calls"]) for m in sent] == [128, 128, 44]
    assert [m.get("content") for m in sent] == ["x", None, None]
    Response.model_validate({"text": sent})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["content", "reasoning_content", "thinking", "tool_calls", "tool_call_id", "name", "other"]


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), ANYTHING), max_size=3))
def test_any_message_of_a_policy_can_be_sent(fields):
    sent = wire_text([message(**given) for given in fields]).value
    Response.model_validate({"text": sent}).model_dump_json()


@pytest.mark.parametrize("prompt", [None, 7, {"role": "user"}, ["text"], [["text"]]])
def test_a_prompt_that_is_neither_text_nor_messages_is_a_user_error(prompt):
    with pytest.raises(ValueError, match="neither text nor a list of messages"):
        wire_text(prompt)


async def test_an_unknown_role_is_named_with_its_row():
    with pytest.raises(InvalidRequest, match=r"row 1: prompt\.0\.role"):
        await rewarding(FakeJudgeTransport())(["a", [{"role": "the user", "content": "x"}]], ["1", "1"])


async def test_an_image_is_shown_by_name_and_reported_once():
    judge = FakeJudgeTransport()
    reward = rewarding(judge)
    prompt = [{"role": "user", "content": [{"type": "image", "image": object()}, {"type": "text", "text": "What?"}]}]
    with pytest.warns(RubricRewardWarning, match=r"sees an image in a prompt as \[image\]"):
        await reward([prompt], ["1"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await reward([prompt], ["1"])
    assert judge.asked[1]["groups"][0]["prompt"] == [{"role": "user", "content": "[image]\nWhat?"}]


async def test_step_positions_refer_to_the_judged_text_of_the_response():
    judge = FakeJudgeTransport(lambda body: stream(*group_lines(body, lambda said: response(1.0)), summary()))
    reward = rewarding(judge)
    said = [message(content="<think>t</think>x"), {"role": "tool", "content": "y"}, message(content="z")]
    await reward(["a", "a"], ["<think>t</think>x", said])
    assert [row.text for row in reward.last.rows] == ["<think>t</think>x", "x\n\nz"]
    keeping = rewarding(judge, reasoning="keep")
    await keeping(["a"], [said])
    assert keeping.last.rows[0].text == "<think>t</think>x\n\nz"


TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is not defined or enable_thinking %}"
    "<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
ASKED = [{"role": "user", "content": "Q"}]


@pytest.mark.parametrize(
    ("template", "marks", "prompt", "options", "sent"),
    [
        (TEMPLATE, {}, ASKED, {}, "<think>"),
        (TEMPLATE, {"chat_template_kwargs": {"enable_thinking": False}}, ASKED, {}, None),
        (TEMPLATE, {"chat_template": "no block"}, ASKED, {}, None),
        ("{{ raise_exception('no') }}", {}, ASKED, {}, None),
        (TEMPLATE, {}, "Q", {}, None),  # TRL renders no template for a text
        (TEMPLATE, {}, ASKED, {"prompt_opens": "none"}, "none"),
        (None, {}, ASKED, {}, None),
    ],
)
async def test_the_thinking_block_that_the_chat_template_opens_is_sent(template, marks, prompt, options, sent):
    tokenizer = said_by(b"a")
    tokenizer.chat_template = template
    judge = FakeJudgeTransport()
    function = rewarding(judge, **options)
    trainer = Trainer([function], processing_class=tokenizer, **marks)
    await function([prompt], [[message(content="1")]], **trainer.logs)
    assert judge.asked[-1].get("judging", {}).get("prompt_opens") == sent
    assert function.judging_options[1].get("prompt_opens") == sent
