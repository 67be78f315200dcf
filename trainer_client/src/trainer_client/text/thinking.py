"""Split a response into its thinking block and its answer, and select which of them is judged.

A thinking block is recognised only by the exact tags in `THINK_TAGS`; other text that sounds like thinking belongs to
the answer. All positions are Unicode code points.

DRO splits a response into its reasoning and its answer in its own way.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer_client.steps import Step
from trainer_client.text.final_answer import final_answer_line
from trainer_client.wire.groups import Message, Response
from trainer_client.wire.judging import ReasoningPart

__all__ = ["ReasoningSplit", "SplitRule", "find_answer", "split_reasoning"]


SplitRule = Callable[[str], int | None]
"""Returns where the answer of a response begins, in code points; None if it has no separate answer."""


class ReasoningSplit(NamedTuple):
    """The two parts of a response, and where its answer begins, in code points.

    The reasoning is everything before the answer, including tags and whitespace, so that reasoning + answer is the
    response and another answer can replace its own. If no separate answer was found, both are the whole response, and
    the answer begins at 0.
    """

    reasoning: str
    answer: str
    answer_start: int


def find_answer(text: str) -> int | None:
    r"""Find where the answer begins, by the default rule.

    The answer begins after the last closing tag of a thinking block and the whitespace that follows it
    (`thinking.split_thinking`); after thinking that was cut off, it is empty. Without such tags, it begins with the
    last `Final answer` line, or else with the line of the last `\boxed{…}` (`final_answer.final_answer_line`). None if
    the text has none of these.
    """
    return split_thinking(text).answer_start or final_answer_line(text)


def split_reasoning(text: str, *, rule: SplitRule = find_answer) -> ReasoningSplit:
    """Split a response into reasoning and answer (DRO, section 3.1).

    If the rule finds no separate answer, both are the whole text.

    Args:
        text: the response.
        rule: finds where the answer begins (ours: `find_answer`).

    Raises:
        ValueError: the rule returned a position outside the text.
    """
    start = rule(text)
    if start is None:
        return ReasoningSplit(text, text, 0)
    start = operator.index(start)
    if not 0 <= start <= len(text):
        raise ValueError(
            f"the rule returned {start} for a text of {len(text)} characters; return a position in the text, or None"
        )
    return ReasoningSplit(text[:start], text[start:], start)


THINK_TAGS = (
    ("<think>", "</think>"),  # DeepSeek, Qwen, GLM, Nemotron, Olmo, Phi and most others
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<longcat_think>", "</longcat_think>"),  # LongCat
    ("◁think▷", "◁/think▷"),  # Kimi
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
    ("<|channel|>analysis<|message|>", "<|channel|>final <|constrain|>json<|message|>"),
)
"""The tags that open and close a thinking block. Any closing tag closes any block."""

_OPENING = "|".join(sorted({re.escape(opening) for opening, _ in THINK_TAGS}))
_CLOSING = "|".join(re.escape(closing) for _, closing in THINK_TAGS)
_FIRST_CHARACTERS = "".join(sorted({tag[0] for tags in THINK_TAGS for tag in tags}))
_TAG = re.compile(
    f"(?=[{re.escape(_FIRST_CHARACTERS)}])"  # skips most characters quickly
    rf"(?:(?P<opening>{_OPENING})|(?:(?:<\|end\|>)?<\|start\|>assistant)?(?P<closing>{_CLOSING}))"
)
_QUOTES = frozenset(["``", '""', "''", "“”", "‘’", "«»"])


@dataclass(frozen=True, slots=True)
class ThinkingSplit:
    """The thinking of a text, and where its answer begins.

    The thinking is `text[thinking_start : thinking_start + len(thinking)]`, the answer `text[answer_start:]`.
    """

    thinking: str
    answer_start: int
    thinking_start: int = 0


@dataclass(frozen=True, slots=True)
class JudgedContent:
    """The part of a response that is judged.

    `text` is the input for steps, final answers and programs. It begins at `offset` of the response as sent, in code
    points (0 for messages). `messages` is what the judge sees of a response sent as messages; None for a text.
    `turns` are the assistant's messages that are judged, each numbered by its place among all of them, with its span in
    `text`; a text is one turn. `given` are the steps that the request gives, as far as they are judged.
    """

    text: str
    offset: int
    messages: tuple[Message, ...] | None
    turns: tuple[Step, ...] = ()
    given: tuple[Step, ...] = ()


def split_thinking(text: str) -> ThinkingSplit:
    """Split a text into thinking and answer.

    The answer is the text after the last closing tag. A closing tag needs no opening one, since chat templates often
    open the block in the prompt; the thinking then begins with the text. A block that is opened but not closed was cut
    off: there is no answer, and `answer_start` is the text's length. Without tags, the whole text is the answer.
    Whitespace around a tag belongs to neither part.

    A tag directly between a pair of backticks or quotation marks is a quotation and is ignored. Tags in code fences
    count: otherwise, thinking that leaves a fence open would hide the end of its block.
    """
    if not any(first in text for first in _FIRST_CHARACTERS):  # much faster than the pattern
        return ThinkingSplit("", 0)
    tags = [tag for tag in _TAG.finditer(text) if not _is_quoted(text, tag)]
    if not tags:
        return ThinkingSplit("", 0)
    first, last = tags[0], tags[-1]
    cut_off = last["opening"] is not None
    start = 0 if first["opening"] is None else first.end()
    end = len(text) if cut_off else last.start()
    start = _after_space(text, start, end)
    answer_start = len(text) if cut_off else _after_space(text, last.end(), len(text))
    return ThinkingSplit(text[start:end].rstrip(), answer_start, start)


def judged_part(text: str, part: ReasoningPart) -> tuple[str, int]:
    """Return the judged part of a text, and where it begins.

    `strip` selects its answer, `keep` the whole text, and `only` its thinking.
    """
    if part == "keep":
        return text, 0
    split = split_thinking(text)
    if part == "only":
        return split.thinking, split.thinking_start
    return text[split.answer_start :], split.answer_start


def judged_content(response: Response, part: ReasoningPart) -> JudgedContent:
    """Return the part of a response that is judged.

    In messages, the thinking is the `reasoning_content` of role `assistant` and the thinking blocks in its content.
    `strip` removes both and `keep` leaves them; tool calls and other messages stay. `only` leaves nothing but the
    thinking, as `reasoning_content`.
    """
    if isinstance(response.text, str):
        text, offset = judged_part(response.text, part)
        return JudgedContent(text, offset, None, (Step(1, 0, len(text)),), _given(response, text, offset))
    messages = response.text
    numbers = [n for n, _ in enumerate([m for m in messages if m.role == "assistant"], 1)]
    if part == "strip":
        messages = tuple([_without_thinking(message) for message in messages])
    elif part == "only":
        thoughts = [_thinking_of(message) for message in messages if message.role == "assistant"]
        numbers = [number for number, thought in zip(numbers, thoughts, strict=True) if thought]
        messages = tuple([Message(role="assistant", reasoning_content=thought) for thought in thoughts if thought])
    text, turns = _assistant_text(messages), _turns(messages, numbers)
    return JudgedContent(text, 0, messages, turns, _given(response, text, 0))


def response_text(response: Response) -> str:
    """Return a response as one text.

    For messages, this is the reasoning and the content of all assistant messages in order, separated by blank lines,
    without tool calls and tool results.
    """
    return response.text if isinstance(response.text, str) else _assistant_text(response.text)


def _is_quoted(text: str, tag: re.Match[str]) -> bool:
    return text[max(tag.start() - 1, 0) : tag.start()] + text[tag.end() : tag.end() + 1] in _QUOTES


def _after_space(text: str, start: int, end: int) -> int:
    return end - len(text[start:end].lstrip())


_BLANK_LINE = "\n\n"


def assistant_pieces(message: Message) -> list[str]:
    """Return the texts of a message that are part of a response's text: its thinking and its content."""
    if message.role != "assistant":
        return []
    return [piece for piece in (message.reasoning_content, message.content) if piece]


def _assistant_text(messages: tuple[Message, ...]) -> str:
    return _BLANK_LINE.join([piece for message in messages for piece in assistant_pieces(message)])


def _turns(messages: tuple[Message, ...], numbers: Sequence[int]) -> tuple[Step, ...]:
    """Return the span of each assistant's message in `_assistant_text`; empty for one without text."""
    turns: list[Step] = []
    at = 0
    spoken = [message for message in messages if message.role == "assistant"]
    for number, message in zip(numbers, spoken, strict=True):
        text = _BLANK_LINE.join(assistant_pieces(message))
        start = at + len(_BLANK_LINE) if at and text else at
        turns.append(Step(number, start, start + len(text)))
        at = start + len(text)
    return tuple(turns)


def _given(response: Response, text: str, offset: int) -> tuple[Step, ...]:
    """Return the steps that a request gives, as spans of the judged text."""
    clipped = [
        Step(number, max(start - offset, 0), min(end - offset, len(text)))
        for number, (start, end) in enumerate(response.steps, 1)
    ]
    return tuple([step for step in clipped if step.start < step.end])


def _without_thinking(message: Message) -> Message:
    if message.role != "assistant":
        return message
    content = message.content and judged_part(message.content, "strip")[0]
    if content == message.content and message.reasoning_content is None:
        return message  # as in most messages
    return message.model_copy(update={"content": content, "reasoning_content": None})


def _thinking_of(message: Message) -> str:
    if message.role != "assistant":
        return ""
    blocks = (message.reasoning_content, split_thinking(message.content or "").thinking)
    return "\n\n".join([block for block in blocks if block])
