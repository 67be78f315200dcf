"""A trainer's prompts and completions as the wire takes them: text, or messages of text.

What a policy wrote is never refused, whatever it is: only the user's mistakes are. Knows nothing of rubrics.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_CALLS_PER_MESSAGE = 128


class WireText(NamedTuple):
    """A text, or the fields of messages; and how many parts stand in it by name only, for they are no text."""

    value: str | list[dict[str, Any]]
    non_text_parts: int = 0

    @property
    def key(self) -> str:
        """The same for equal values, on every rank."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value)


def wire_text(given: object) -> WireText:
    """Read a prompt or a completion: text, or TRL's messages.

    Fields that the wire does not know are dropped, and so is None, with which Arrow fills messages up. A part that
    is no text is shown as its type in brackets, such as `[image]`.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(given, str):
        return WireText(given)
    if not isinstance(given, Sequence) or not all(isinstance(message, Mapping) for message in given):
        raise ValueError(f"what is of type {type(given).__name__} is neither text nor a list of messages")
    messages: list[dict[str, Any]] = []
    non_text_parts = 0
    for message in given:
        content, left_out = _content(message.get("content"))
        non_text_parts += left_out
        messages += _messages(message, content)
    return WireText(messages, non_text_parts)


def _messages(given: Mapping[str, Any], content: str | None) -> Iterator[dict[str, Any]]:
    """Give a message, followed by others with the tool calls that exceed what one may have."""
    message: dict[str, Any] = {"role": given.get("role")}
    thinking = given.get("reasoning_content") or given.get("thinking")
    called = given.get("tool_calls")
    calls = [_call(call) for call in called if isinstance(call, Mapping)] if isinstance(called, list | tuple) else []
    if thinking:
        message["reasoning_content"] = str(thinking)
    if content is not None or not (thinking or calls):
        message["content"] = content or ""
    for key in ("tool_call_id", "name"):
        if given.get(key) is not None:
            message[key] = str(given[key])
    if calls:
        message["tool_calls"] = calls[:_CALLS_PER_MESSAGE]
    yield message
    for start in range(_CALLS_PER_MESSAGE, len(calls), _CALLS_PER_MESSAGE):
        yield {"role": given.get("role"), "tool_calls": calls[start : start + _CALLS_PER_MESSAGE]}


def _content(given: object) -> tuple[str | None, int]:
    if given is None or isinstance(given, str):
        return given, 0
    if not isinstance(given, Sequence):
        return _json(given), 0
    texts: list[str] = []
    non_text_parts = 0
    for part in given:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else None
            texts.append(f"[{kind or type(part).__name__}]")
            non_text_parts += 1
    return "\n".join(texts), non_text_parts


def _call(given: Mapping[str, Any]) -> dict[str, Any]:
    """Give a tool call with its arguments as text, for what a policy wrote there may be no JSON."""
    function = given.get("function")
    named = function if isinstance(function, Mapping) else given
    arguments = named.get("arguments")
    call: dict[str, Any] = {
        "function": {
            "name": str(named.get("name") or ""),
            "arguments": arguments if isinstance(arguments, str) else "" if arguments is None else _json(arguments),
        }
    }
    if given.get("id") is not None:
        call["id"] = str(given["id"])
    return call


def _json(given: object) -> str:
    try:
        return json.dumps(given, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(given)
