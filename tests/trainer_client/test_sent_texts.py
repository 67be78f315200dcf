import json

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.fake_service import ScriptedReply, rewarded
from trainer_client import Client, Group, Message, Response

GROUP = {"id": "q17", "prompt": "x?", "responses": ["42", "43"]}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("𝔸🙂é\0\u2028", "𝔸🙂é\0\u2028"),
        ("\ud7ff\ue000", "\ud7ff\ue000"),
        ("4\ud800 2", "4\ufffd 2"),
        ("\ud83d\ude00", "\ufffd\ufffd"),
        ("🙂\udfff", "🙂\ufffd"),
    ],
    ids=["any planes", "beside the surrogates", "the first half", "both halves, apart", "after a whole pair"],
)
def test_text_arrives_unchanged_except_for_lone_surrogates(service, connect, text, sent):
    service.script(ScriptedReply(body=rewarded))
    connect(service.url).rewards([GROUP | {"prompt": text, "responses": [text, "43"], "grounding": text}], "r")
    [group] = service.asked[0].json["groups"]
    assert group == GROUP | {"prompt": sent, "responses": [sent, "43"], "grounding": sent}


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_text_keeps_its_number_of_code_points_and_only_lone_surrogates_change(text):
    asked = []

    def answer(request):
        asked.append(request)
        return httpx2.Response(200, json=rewarded(json.loads(request.content)))

    transport = httpx2.MockTransport(answer)
    with Client("http://judge", transport=transport) as client:
        client.rewards([GROUP | {"responses": [text]}], "r")
    [arrived] = json.loads(asked[0].content)["groups"][0]["responses"]
    assert len(arrived) == len(text)
    assert all(a == ("\ufffd" if "\ud800" <= b <= "\udfff" else b) for a, b in zip(arrived, text, strict=True))


def test_each_lone_surrogate_inside_messages_becomes_one_replacement_character(service, connect):
    service.script(ScriptedReply(body=rewarded))
    call = {"function": {"name": "f", "arguments": {"\udc00": [None, "\ud800"]}}}
    connect(service.url).rewards([GROUP | {"responses": [[{"role": "assistant", "tool_calls": [call]}]]}], "r")
    [[message]] = service.asked[0].json["groups"][0]["responses"]
    assert message["tool_calls"][0]["function"]["arguments"] == {"\ufffd": [None, "\ufffd"]}


def test_responses_may_be_texts_messages_or_mappings_with_their_lengths(service, connect):
    service.script(ScriptedReply(body=rewarded))
    messages = [
        {"role": "assistant", "content": "42", "reasoning_content": "6 * 7"},
        {"role": "tool", "content": "ok"},
    ]
    responses = ["42", messages, {"text": "43", "tokens": 5, "stopped": False}, {"text": messages, "tokens": 9}]
    connect(service.url).rewards([GROUP | {"responses": responses}], "r")
    assert service.asked[0].json["groups"][0]["responses"] == responses


def test_responses_may_be_models(service, connect):
    service.script(ScriptedReply(body=rewarded))
    responses = (Response(text="42", tokens=3), (Message(role="assistant", content="43"),))
    connect(service.url).rewards([Group(id="q17", prompt="x?", responses=responses)], "r")
    [group] = service.asked[0].json["groups"]
    assert group["responses"] == [{"text": "42", "tokens": 3}, [{"role": "assistant", "content": "43"}]]
