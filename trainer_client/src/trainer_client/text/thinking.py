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

from trainer_client.final_answer import final_answer_line
from trainer_client.steps import Step
from trainer_client.text.pieces import find_in_pieces
from trainer_client.wire.groups import Message, Prompt, Response
from trainer_client.wire.judging import OpeningTag, PromptOpens, ReasoningPart

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


THINK_TAGS: tuple[tuple[OpeningTag, str], ...] = (
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
"""The tags that open and close a thinking block, by family. A closing tag closes a block of its own family only."""

ASSUMED_TAG: OpeningTag = "<think>"
"""The only tag that is assumed to stand in the prompt: most templates that open the block there use it."""

_FAMILY_OF: dict[str, OpeningTag] = {tag: opening for opening, closing in THINK_TAGS for tag in (opening, closing)}
_OPENING = "|".join(sorted({re.escape(opening) for opening, _ in THINK_TAGS}))
_CLOSING = "|".join(re.escape(closing) for _, closing in THINK_TAGS)
_FIRST_CHARACTERS = "".join(sorted({tag[0] for tags in THINK_TAGS for tag in tags}))
_TAG = re.compile(
    f"(?=[{re.escape(_FIRST_CHARACTERS)}])"  # skips most characters quickly
    rf"(?:(?P<opening>{_OPENING})|(?:(?:<\|end\|>)?<\|start\|>assistant)?(?P<closing>{_CLOSING}))"
)
_LONGEST_TAG = len("<|end|><|start|>assistant") + max(len(tag) for tags in THINK_TAGS for tag in tags)
_END_CHARACTERS = 200
"""How much of the end of a prompt is searched for a tag; only white space may follow it."""

_QUOTES = frozenset(["``", '""', "''", "“”", "‘’", "«»"])


@dataclass(frozen=True, slots=True)
class ThinkingSplit:
    """The thinking of a text, and where its answer begins.

    The thinking is `text[thinking_start : thinking_start + len(thinking)]`, the answer `text[answer_start:]`.
    `said_from` is where the block at the beginning ends; what follows it was said openly, even if a later tag separates
    it from the answer.
    """

    thinking: str
    answer_start: int
    thinking_start: int = 0
    said_from: int = 0


@dataclass(frozen=True, slots=True)
class JudgedContent:
    """The part of a response that is judged.

    `text` is the input for steps, final answers and programs. It begins at `offset` of the response as sent, in code
    points (0 for messages). `messages` is what the judge sees of a response sent as messages; None for a text.
    `turns` are the assistant's messages that are judged, each numbered by its place among all of them, with its span in
    `text`; a text is one turn. `given` are the steps that the request gives, as far as they are judged.

    `hidden` is the text that tags separate from the answer outside the block at the beginning. It earns nothing, but
    criteria that a good response avoids look at it too. `said` is each turn with its hidden text; empty if nothing is
    hidden. `characters_left_out` counts what is not judged, thinking and tags included.
    """

    text: str
    offset: int
    messages: tuple[Message, ...] | None
    turns: tuple[Step, ...] = ()
    given: tuple[Step, ...] = ()
    hidden: str = ""
    said: tuple[str, ...] = ()
    characters_left_out: int = 0


def opened_by(prompt: Prompt, given: PromptOpens | None) -> PromptOpens | None:
    """Return the tag of the thinking block that a prompt leaves open: its own end says so, or else `given`.

    The end of a prompt is that of a text, or of the last message if the assistant began it.
    """
    text = prompt
    if not isinstance(text, str):
        last = text[-1] if text else None
        text = (last.content or "") if last is not None and last.role == "assistant" else ""
    end = text[-_END_CHARACTERS:].rstrip()
    for tag, family in _FAMILY_OF.items():
        if end.endswith(tag):
            return family if tag == family else "none"
    return given


def split_thinking(text: str, opens: PromptOpens | None = None, *, cut_off: bool = False) -> ThinkingSplit:
    """Split a text into thinking and answer.

    The answer is the text after the last closing tag of the family in force: that of the tag that the prompt opens, or
    else of the first opening tag of the text. A block that is opened but not closed has no answer, and `answer_start`
    is the text's length. Without tags of that family, the whole text is the answer. Whitespace around a tag belongs to
    neither part.

    A closing tag that nothing opened is text, with one exception: if it is not known what the prompt opens, `</think>`
    counts as opened in the prompt. Then, and after any tag behind the block at the beginning, `said_from` is smaller
    than `answer_start`.

    A tag directly between a pair of backticks or quotation marks is a quotation and is ignored. Tags in code fences
    count: otherwise, thinking that leaves a fence open would hide the end of its block.

    Args:
        text: the text.
        opens: the tag with which the prompt opens a block, `none` if it opens none, None if that is not known.
        cut_off: whether the text was cut off at a limit. A block without an end is then thinking for certain.
    """
    tags = _tags_in_force(text, opens)
    in_prompt = opens not in (None, "none")
    if not tags and not in_prompt:
        return ThinkingSplit("", 0)
    unclosed = not tags or tags[-1].opens
    at_start = bool(tags) and tags[0].opens and not text[: tags[0].start].strip()
    start = tags[0].end if tags and tags[0].opens and (at_start or not in_prompt) else 0
    end = len(text) if unclosed else tags[-1].start
    start = _after_space(text, start, end)
    answer_start = len(text) if unclosed else _after_space(text, tags[-1].end, len(text))
    said_from = 0
    if in_prompt or at_start:
        closed = next((tag.end for tag in tags if not tag.opens), None)
        if closed is not None:
            said_from = _after_space(text, closed, len(text))
        elif cut_off:
            said_from = len(text)
    return ThinkingSplit(text[start:end].rstrip(), answer_start, start, said_from)


class _Tag(NamedTuple):
    start: int
    end: int
    opens: bool


def _tags_in_force(text: str, opens: PromptOpens | None) -> list[_Tag]:
    """Return the tags of the family in force, in order; empty if no family is."""
    family: OpeningTag | None = None if opens == "none" else opens
    tags: list[_Tag] = []
    if not any(character in text for character in _FIRST_CHARACTERS):  # a hundred times as fast as the search
        return tags
    for found in find_in_pieces(_TAG, text, _LONGEST_TAG):
        if _is_quoted(text, found):
            continue
        opening = found["opening"]
        own = _FAMILY_OF[opening or found["closing"]]
        if family is None and (opening or (opens is None and own == ASSUMED_TAG)):
            family = own
        if own == family:
            tags.append(_Tag(found.start(), found.end(), opening is not None))
    return tags


def without_tags(text: str) -> str:
    """Return a text without the tags of any family, quoted or not."""
    return _TAG.sub("", text)


def judged_content(response: Response, part: ReasoningPart, opens: PromptOpens | None = None) -> JudgedContent:
    """Return the part of a response that is judged.

    In messages, the thinking is the `reasoning_content` of role `assistant` and the thinking blocks in its content.
    `strip` removes both and `keep` leaves them; tool calls and other messages stay. `only` leaves nothing but the
    thinking, as `reasoning_content`.

    Args:
        response: the response.
        part: which part is judged.
        opens: the tag with which the prompt opens a thinking block, `none` if it opens none, None if that is not known
            (`opened_by`). It is about every message of the assistant.
    """
    stopped = response.stopped
    if isinstance(response.text, str):
        whole = response.text
        split = split_thinking(whole, opens, cut_off=stopped is False)
        text, offset = _select(whole, split, part)
        hidden, said = _hidden([(whole, split)]) if part == "strip" else ("", ())
        turns = (Step(1, 0, len(text)),)
        left_out = len(whole) - len(text)
        return JudgedContent(text, offset, None, turns, _given(response, text, offset), hidden, said, left_out)
    messages = response.text
    spoken = [message for message in messages if message.role == "assistant"]
    numbers = list(range(1, len(spoken) + 1))
    hidden, said = "", tuple[str, ...]()
    if part != "keep":
        splits = [_split_message(one, opens, cut_off=stopped is False and one is spoken[-1]) for one in spoken]
        if part == "strip":
            hidden, said = _hidden([(one.content or "", split) for one, split in zip(spoken, splits, strict=True)])
            left = iter(splits)
            messages = tuple([_without_thinking(m, next(left)) if m.role == "assistant" else m for m in messages])
        else:
            thoughts = [_thinking_of(one, split) for one, split in zip(spoken, splits, strict=True)]
            numbers = [number for number, thought in zip(numbers, thoughts, strict=True) if thought]
            messages = tuple([Message(role="assistant", reasoning_content=thought) for thought in thoughts if thought])
    text, judged_turns = _assistant_text(messages), _turns(messages, numbers)
    left_out = sum([len(piece) for one in spoken for piece in assistant_pieces(one)])
    left_out -= sum([len(piece) for one in messages for piece in assistant_pieces(one)])
    given = _given(response, text, 0)
    return JudgedContent(text, 0, messages, judged_turns, given, hidden, said, max(left_out, 0))


def _select(text: str, split: ThinkingSplit, part: ReasoningPart) -> tuple[str, int]:
    if part == "keep":
        return text, 0
    if part == "only":
        return split.thinking, split.thinking_start
    return text[split.answer_start :], split.answer_start


def _hidden(turns: Sequence[tuple[str, ThinkingSplit]]) -> tuple[str, tuple[str, ...]]:
    """Return what tags hide of these turns without being thinking for certain, and all that each turn says."""
    hidden = [text[split.said_from : split.answer_start] for text, split in turns]
    if not any(hidden):
        return "", ()
    return _BLANK_LINE.join(filter(None, hidden)), tuple([text[split.said_from :] for text, split in turns])


def _split_message(message: Message, opens: PromptOpens | None, *, cut_off: bool) -> ThinkingSplit:
    """Split the content of an assistant's message, unless the trainer has taken thinking or tool calls out of it."""
    content = message.content or ""
    if message.reasoning_content is not None:
        return split_thinking(content, "none", cut_off=cut_off)
    split = split_thinking(content, opens, cut_off=cut_off)
    never_closed = split.answer_start == len(content) and not _tags_in_force(content, opens)
    return split_thinking(content, "none") if never_closed and message.tool_calls else split


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


def _without_thinking(message: Message, split: ThinkingSplit) -> Message:
    content = message.content and message.content[split.answer_start :]
    if content == message.content and message.reasoning_content is None:
        return message  # as in most messages
    return message.model_copy(update={"content": content, "reasoning_content": None})


def _thinking_of(message: Message, split: ThinkingSplit) -> str:
    return _BLANK_LINE.join([block for block in (message.reasoning_content, split.thinking) if block])
