"""Shows a conversation to the judge: who says what, what is called and what comes back.

Only roles and names stand outside a fence, and of a name only what can be part of one: a policy writes names too.
Which messages are shown is not decided here.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from judge_server.prompts.fencing import neutralise
from trainer_client.wire.messages import Message, ToolCall

RESULT_ROLES = frozenset({"tool", "function"})
"""Roles whose messages are what a tool answered."""

_NO_NAME = re.compile(r"[^A-Za-z0-9_.:/-]")
_LONGEST_NAME = 64


def render_conversation(messages: str | Sequence[Message], fence: Callable[[str], str]) -> str:
    """Render messages one after the other, or a text as it is; `fence` wraps everything that was written in them.

    A message's thinking, content and tool calls each have a heading line, such as `assistant calls search:`. Where one
    message calls a tool several times, calls and results are numbered. Without messages an empty text is fenced.
    """
    if isinstance(messages, str):
        return fence(messages)
    called: dict[str, str] = {}
    pieces = [piece for message in messages for piece in _pieces(message, called)]
    return "\n\n".join([f"{neutralise(heading)}:\n{fence(text)}" for heading, text in pieces]) or fence("")


def _pieces(message: Message, called: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A message's headings and texts. `called` knows the calls so far by their ids, and learns those of the message."""
    if message.reasoning_content:
        yield f"{message.role} thinks", message.reasoning_content
    if message.content or not (message.reasoning_content or message.tool_calls):
        yield _speaker(message, called), message.content or ""
    for call, name in zip(message.tool_calls, _numbered(message.tool_calls), strict=True):
        if call.id:
            called[call.id] = name
        yield f"{message.role} calls {name}", _arguments(call.function.arguments)


def _speaker(message: Message, called: dict[str, str]) -> str:
    if message.role not in RESULT_ROLES:
        return message.role
    return f"result of {called.get(message.tool_call_id or '') or _named(message.name)}"


def _named(name: str | None) -> str:
    """A name with a question mark for each character that none has."""
    return _NO_NAME.sub("?", name)[:_LONGEST_NAME] if name else "a tool"


def _numbered(calls: Sequence[ToolCall]) -> list[str]:
    names = [_named(call.function.name) for call in calls]
    return [
        f"{name} ({names[: i + 1].count(name)} of {names.count(name)})" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


def _arguments(arguments: str | dict[str, Any]) -> str:
    """One argument to a line, in JSON. A text that this would change in more than its spelling stays as it is."""
    if isinstance(arguments, dict):
        return _lines(arguments)
    try:
        parsed = json.loads(
            arguments, object_pairs_hook=_object, parse_int=_same(int), parse_float=_same(float), parse_constant=_no
        )
        return _lines(parsed) if isinstance(parsed, dict) else arguments
    except (ValueError, RecursionError):
        return arguments


def _lines(arguments: dict[str, Any]) -> str:
    lines = [f"  {_json(name)}: {_json(value)}" for name, value in arguments.items()]
    return "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members := dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return members


def _same(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(written: str) -> Any:
        if repr(value := kind(written)) != written:
            raise ValueError(f"{written} would be written otherwise")
        return value

    return parse


def _no(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
