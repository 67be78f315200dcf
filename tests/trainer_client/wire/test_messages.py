"""The forms of prompts and responses."""

from typing import Any

import pytest
from pydantic import ValidationError

from trainer_client.wire import Group, Message, Response, as_response
from trainer_client.wire.problems import field_errors

CALL = {"function": {"name": "search", "arguments": '{"q": "x"}'}, "id": "call_1", "type": "function"}

CONVERSATION = [
    {"role": "assistant", "content": None, "reasoning_content": "I should look.", "tool_calls": [CALL]},
    {"role": "tool", "content": "found it", "tool_call_id": "call_1", "name": "search"},
    {"role": "assistant", "content": "Here it is."},
]


def group(**changes: Any) -> Group:
    return Group.model_validate({"id": "g", "prompt": "Greet.", "responses": ["hello"]} | changes)


def problems(**changes: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as refused:
        group(**changes)
    return {error.field: error.message for error in field_errors(refused.value.errors())}


def test_a_response_is_text_or_messages_optionally_with_its_length() -> None:
    told = {"text": CONVERSATION, "tokens": 12, "stopped": False}
    text, messages, response = group(responses=["hello", CONVERSATION, told]).responses
    assert text == "hello"
    assert isinstance(messages, tuple)
    assert isinstance(response, Response)
    assert response.text == messages
    assert (response.tokens, response.stopped) == (12, False)
    plain = as_response(text)
    assert (plain.text, plain.tokens, plain.stopped) == ("hello", None, None)
    assert as_response(messages).text == messages


def test_arguments_of_a_tool_call_may_be_an_object() -> None:
    arguments = {"q": ["x", {"deep": None}], "n": 1.5}
    call = {"function": {"name": "search", "arguments": arguments}}
    message = Message.model_validate({"role": "assistant", "tool_calls": [call]})
    assert message.tool_calls[0].function.arguments == arguments


def test_a_group_survives_a_json_round_trip() -> None:
    sent = group(prompt=CONVERSATION, responses=["hello", CONVERSATION, {"text": CONVERSATION, "stopped": True}])
    assert Group.model_validate_json(sent.model_dump_json()) == sent


def test_text_parts_are_joined_with_a_line_each() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert Message.model_validate({"role": "user", "content": parts}).content == "one\ntwo"
    assert Message.model_validate({"role": "user", "content": []}).content == ""


@pytest.mark.parametrize("part", [{"type": "video_url"}, {"type": "input_audio"}])
def test_a_part_that_is_neither_text_nor_an_image_is_refused_with_its_type(part: dict[str, Any]) -> None:
    found = problems(prompt=[{"role": "user", "content": [{"type": "text", "text": "Look:"}, part]}])
    message = f"a part of type {part['type']!r} cannot be judged; use only parts of type 'text' and 'image_url'"
    assert found == {"prompt.0.content": message}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"content": "no role"}, "role"),
        ({"role": "two words", "content": ""}, "role"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "contents": "x"}, "contents"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 7}}]}, "tool_calls.0.function.name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}, "type": "code"}]}, "tool_calls.0.type"),
        ({"role": "assistant", "tool_calls": [CALL] * 129}, "tool_calls"),
    ],
)
def test_an_error_in_a_message_is_named_by_its_index_in_the_conversation(message: dict[str, Any], field: str) -> None:
    assert list(problems(prompt=[{"role": "system", "content": "Be kind."}, message])) == [f"prompt.1.{field}"]
    assert list(problems(responses=["hello", [message]])) == [f"responses.1.0.{field}"]


@pytest.mark.parametrize("prompt", [5, None, {"role": "user"}])
def test_a_prompt_of_another_type_is_refused_with_the_valid_types(prompt: Any) -> None:
    assert problems(prompt=prompt) == {"prompt": "expected text, or a list of messages"}


@pytest.mark.parametrize(
    ("response", "field"),
    [
        (5, ""),
        ({}, ".text"),
        ({"text": "x", "tokens": -1}, ".tokens"),
        ({"text": "x", "tokens": 1.5}, ".tokens"),
        ({"text": "x", "stop": True}, ".stop"),
        ({"text": 5}, ".text"),
    ],
)
def test_an_error_in_a_response_is_named_by_its_index(response: Any, field: str) -> None:
    assert list(problems(responses=["hello", response])) == [f"responses.1{field}"]


def test_a_conversation_has_at_most_4096_messages() -> None:
    said = {"role": "assistant", "content": "a"}
    for field in ("prompt", "responses"):
        fields = {"id": "g", "prompt": "p", "responses": ["r"]}
        fields |= {"prompt": [said] * 4097} if field == "prompt" else {"responses": [[said] * 4097]}
        with pytest.raises(ValidationError, match="at most 4096 items"):
            Group.model_validate(fields)
