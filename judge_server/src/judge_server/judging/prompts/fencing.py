"""Fence judged text, conversations included, so that nothing in it can pass for an instruction or close the fence.

Each text stands between two marker lines, which are the same in every deployment, so that verdicts are too. A text
cannot close its fence, because every marker in it is broken, and so is everything that looks like one.

In a conversation, only roles and tool names stand outside a fence, because a policy writes both: a role must be a known
one, and a tool name that is not plain is moved inside the fence.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from judge_server.judging.prompts.disguises import INVISIBLE, shown_as
from trainer_client.text.pieces import PIECE, find_in_pieces
from trainer_client.wire.groups import Message, ToolCall

MARKER = "material"
"""The name of the tags around judged text."""

_SAME_SHAPE = {"e": "Ёё", "i": "1l|", "l": "1IІΙӀ|", "r": "ᴦ"}
"""What is taken for a letter of the marker at a glance, beside what is shown as it."""

_INVISIBLE = f"{INVISIBLE}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\U000e0080-\U000e00ff"
_OPENING = "<＜﹤‹〈⟨〈❬❮˂ᐸ≺«《"
_SLASH = "[/\\\\∕⁄／⧸╱]"


def _letter_pattern(letter: str) -> str:
    """Return a pattern of a letter and of what passes for it, with up to four invisible characters after it."""
    shown = "".join([letter, letter.upper(), shown_as(letter), _SAME_SHAPE.get(letter, "")])
    return f"[{re.escape(shown)}][{_INVISIBLE}]{{0,4}}"


def _marker_pattern() -> re.Pattern[str]:
    """Return a pattern of the first half of a tag with the marker's name, or with what looks like it.

    White space may stand in a closing tag only, or `a < material cost` would be one. Every match is shorter than
    `LONGEST_TOKEN`.
    """
    letters, half = [_letter_pattern(letter) for letter in MARKER], len(MARKER) // 2
    begin, rest = "".join(letters[:half]), "".join(letters[half:])
    closing = rf"[\s{_INVISIBLE}]{{0,8}}{_SLASH}{{1,2}}[\s{_INVISIBLE}]{{0,8}}"
    return re.compile(rf"[{_OPENING}](?:{closing}|[{_INVISIBLE}]{{0,4}}){begin}(?={rest}(?![A-Za-z]))")


_MARKER = _marker_pattern()

_CHAT_TOKEN = re.compile(
    r"<(?=[|｜]"  # <|im_start|>, <｜User｜> and the like
    r"|</?SYS>"  # <<SYS>>
    r"|/?(?=[\w:-])(?:[\w:-]{3,40}[|｜]>"  # <turn|>, <channel|>
    r"|seed:"  # <seed:bos>, <seed:think> and the like
    r"|(?:SYS|s|bos|eos|pad|unk|mask|cls|sep|sop|eop|bos_token|eos_token|pad_token|unk_token|start_of_turn|end_of_turn"
    r"|end_of_utterance|guardian|no-think|fake_token_around_image|start_of_image|end_of_image|eoh|eoa|eos[yu]s|eoc|eot|think|role|tool_call"
    r"|tool_calls|tool_response|tool_result|function_calls|(?:extra_id|reserved|special)_\d{1,4}|unused\d{1,4})>))"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|MODEL_SETTINGS"
    r"|THINK|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|gMASK|sMASK|CLS|SEP|MASK|PAD|UNK|BOS|EOS)\])"
    r"|\[(?=\|[a-z_]{1,40}\|\])"  # [|assistant|], [|endofturn|]
    r"|\](?=~!b\[|~b\])|\[(?=e~\[)",  # ]~b], ]~!b[, [e~[
    re.IGNORECASE,
)
LONGEST_TOKEN = 64
"""Characters of the longest control token that is broken."""

_MARKED_UP = re.compile(r"<[^\s<>]{1,62}>|\[[^\s\[\]]{1,62}\]|\{[^\s{}]{1,62}\}")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_ASCII_UNPRINTABLE = {code: "\N{REPLACEMENT CHARACTER}" for code in range(128) if _UNPRINTABLE.match(chr(code))}


def control_token_pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches where to break these control tokens of a model; None if there are none.

    Only tokens marked up as such count: `<…>`, `[…]` or `{…}` without white space, of 3 to 64 characters. A model may
    also have words or white space as control tokens, but these occur in every text.
    """
    marked = sorted({token for token in tokens if _MARKED_UP.fullmatch(token)})
    return re.compile("|".join(f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in marked)) if marked else None


def break_tokens(pattern: re.Pattern[str], text: str) -> str:
    """Put a space behind every match; with a function, this is two to four times as fast as with a template."""
    if len(text) <= PIECE:
        return pattern.sub(_with_space, text)
    pieces, end = list[str](), 0
    for found in find_in_pieces(pattern, text, LONGEST_TOKEN):
        pieces += [text[end : found.end()], " "]
        end = found.end()
    return "".join([*pieces, text[end:]])


def _with_space(found: re.Match[str]) -> str:
    return found[0] + " "


def neutralise(text: str) -> str:
    """Break chat-template tokens and markers with a space, replace control characters by U+FFFD, keep all else."""
    if "<" in text or "[" in text or "]" in text:  # every match of the pattern begins with one of them
        text = break_tokens(_CHAT_TOKEN, text)
    text = break_tokens(_MARKER, text)
    if text.isascii():  # then a table is four times as fast
        return text.translate(_ASCII_UNPRINTABLE)
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def fence(text: str, marker: str = MARKER) -> str:
    """Return the neutralised text between its two marker lines."""
    return f"<{marker}>\n{neutralise(text)}\n</{marker}>"


RESULT_ROLES = frozenset({"tool", "function"})
"""Roles whose messages are results of tools."""

ROLES = frozenset({"system", "developer", "user", "assistant"})
"""Roles that are shown in the heading; any other is shown inside the fence."""

MAX_NAME_LENGTH = 32
MAX_NAME_WORDS = 4
"""Limits of a tool name that may be shown in the heading; it has only letters, digits, `_` and `-`."""

_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_A_TOOL = "a tool"
_SPEAKER = "another speaker"


def render_conversation(messages: str | Sequence[Message]) -> str:
    """Render messages one after the other, or a plain text, with all content in fences.

    The thinking, content and tool calls of a message each have a heading line, such as `assistant calls search:`. If
    one message calls a tool several times, calls and results are numbered. Without messages, an empty text is fenced.

    A role that is in neither `ROLES` nor `RESULT_ROLES` is headed `another speaker`. A tool name longer than
    `MAX_NAME_LENGTH`, with more than `MAX_NAME_WORDS` words or with other characters is headed `a tool`. The actual
    role or name is then the first line inside the fence.
    """
    if isinstance(messages, str):
        return fence(messages)
    called: dict[str, str] = {}
    pieces = [piece for message in messages for piece in _pieces(message, called)]
    return "\n\n".join([f"{heading}:\n{fence(text)}" for heading, text in pieces]) or fence("")


NOT_OWN_WORDS = "(not the response's words)"
"""What a heading says of a message in a response that the policy did not write, such as the result of a tool."""


def render_response(messages: Sequence[Message], labels: Sequence[str]) -> str:
    """Render the messages of a response as `render_conversation` does, and say which are not the policy's own words.

    Args:
        messages: M messages.
        labels: M names of steps, such as `turn 2`; empty for a message that is no step. A message of the assistant is
            headed by its own: `assistant (turn 2) calls search`.
    """
    called: dict[str, str] = {}
    pieces: list[tuple[str, str]] = []
    for message, label in zip(messages, labels, strict=True):
        own = message.role == "assistant"
        for heading, text in _pieces(message, called, label):
            pieces.append((heading if own else f"{heading} {NOT_OWN_WORDS}", text))
    return "\n\n".join([f"{heading}:\n{fence(text)}" for heading, text in pieces]) or fence("")


def _pieces(message: Message, called: dict[str, str], label: str = "") -> Iterator[tuple[str, str]]:
    """Yield a message's headings and texts. `called` maps call ids to tools, and gets the calls of this message."""
    known = message.role in ROLES or message.role in RESULT_ROLES
    speaker, speaker_line = (message.role, "") if known else (_SPEAKER, f"role: {message.role}\n")
    speaker += f" ({label})" if label else ""
    if message.reasoning_content:
        yield f"{speaker} thinks", speaker_line + message.reasoning_content
    if message.content or not (message.reasoning_content or message.tool_calls):
        if message.role in RESULT_ROLES:
            answered = called.get(message.tool_call_id or "")
            shown, tool_line = (answered, "") if answered else _named(message.name)
            yield f"result of {shown}", tool_line + (message.content or "")
        else:
            yield speaker, speaker_line + (message.content or "")
    for call, number in zip(message.tool_calls, _numbers(message.tool_calls), strict=True):
        shown, tool_line = _named(call.function.name)
        if call.id:
            called[call.id] = shown + number
        yield f"{speaker} calls {shown}{number}", speaker_line + tool_line + _arguments(call.function.arguments)


def _named(name: str | None) -> tuple[str, str]:
    """Return a tool's name for a heading, and the line inside the fence that names it if the heading cannot."""
    if not name:
        return _A_TOOL, ""
    plain = len(name) <= MAX_NAME_LENGTH and _PLAIN_NAME.fullmatch(name) and len(_WORD.findall(name)) <= MAX_NAME_WORDS
    return (name, "") if plain else (_A_TOOL, f"name: {name}\n")


def _numbers(calls: Sequence[ToolCall]) -> list[str]:
    names = [_named(call.function.name)[0] for call in calls]
    total = Counter(names)
    seen: Counter[str] = Counter()
    numbers = []
    for name in names:
        seen[name] += 1
        numbers.append(f" ({seen[name]} of {total[name]})" if total[name] > 1 else "")
    return numbers


def _arguments(arguments: str | dict[str, Any]) -> str:
    """Render arguments as JSON, one per line. Text that this would change in more than spelling is kept as it is."""
    if isinstance(arguments, dict):
        return _lines(arguments)
    try:
        parsed = json.loads(
            arguments,
            object_pairs_hook=_object,
            parse_int=_lossless_parser(int),
            parse_float=_lossless_parser(float),
            parse_constant=_reject_constant,
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
        raise ValueError("a name occurs twice")
    return members


def _lossless_parser(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(written: str) -> Any:
        if repr(value := kind(written)) != written:
            raise ValueError(f"{written} would be written otherwise")
        return value

    return parse


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
