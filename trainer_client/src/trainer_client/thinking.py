"""Parts a response into its thinking block and its answer, and says which of them is judged.

A thinking block is known by the tags in `THINK_TAGS`, written exactly so, and by nothing else: prose that only sounds
like thinking is an answer. All positions are Unicode code points.
"""

import re
from dataclasses import dataclass

from trainer_client.wire.groups import Message, Response
from trainer_client.wire.judging import ReasoningPart

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
"""The tags that open and close a thinking block. Any of the closing ones closes any block."""

_OPENING = "|".join(sorted({re.escape(opening) for opening, _ in THINK_TAGS}))
_CLOSING = "|".join(re.escape(closing) for _, closing in THINK_TAGS)
_FIRST = "".join(sorted({re.escape(tag[0]) for tags in THINK_TAGS for tag in tags}))
_TAG = re.compile(
    f"(?=[{_FIRST}])"  # most characters begin no tag, which this tells at once
    rf"(?:(?P<opening>{_OPENING})|(?:(?:<\|end\|>)?<\|start\|>assistant)?(?P<closing>{_CLOSING}))"
)
_QUOTES = frozenset(["``", '""', "''", "“”", "‘’", "«»"])


@dataclass(frozen=True, slots=True)
class ThinkingSplit:
    """The thinking of a text and where its answer begins.

    The thinking is `text[thinking_start : thinking_start + len(thinking)]`, the answer `text[answer_start:]`.
    """

    thinking: str
    answer_start: int
    thinking_start: int = 0


@dataclass(frozen=True, slots=True)
class JudgedContent:
    """What of a response is judged.

    `text` is what steps, final answers and programs read; it begins at `offset` of the response as sent, in code
    points (0 for messages). `messages` is what is shown of a response sent as messages, None where it is a text.
    """

    text: str
    offset: int
    messages: tuple[Message, ...] | None


def split_thinking(text: str) -> ThinkingSplit:
    """Part a text into thinking and answer.

    The answer is what follows the last closing tag. A closing tag needs no opening one, since chat templates often
    open the block in the prompt; the thinking then begins with the text. A block that is opened and never closed was
    cut off: there is no answer, and `answer_start` is the text's length. Without a tag all is answer. Space around
    a tag belongs to neither part.

    A tag set directly between a pair of backticks or quotation marks is being spoken of and is none. Code fences
    protect no tag: thinking that leaves a fence open would swallow the end of its block.
    """
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
    """Give the part of a text that is judged, and where in the text it begins.

    That is its answer (`strip`), all of it (`keep`), or its thinking (`only`).
    """
    if part == "keep":
        return text, 0
    split = split_thinking(text)
    if part == "only":
        return split.thinking, split.thinking_start
    return text[split.answer_start :], split.answer_start


def judged_content(response: Response, part: ReasoningPart) -> JudgedContent:
    """Give what of a response is judged.

    Of messages, those of role `assistant` think: in their `reasoning_content`, and in blocks of their content. Under
    `strip` they come without either, under `keep` as they are; tool calls and all other messages stay. Under `only`
    nothing is left but the thinking, as `reasoning_content`.
    """
    if isinstance(response.text, str):
        text, offset = judged_part(response.text, part)
        return JudgedContent(text, offset, None)
    messages = response.text
    if part == "strip":
        messages = tuple([_without_thinking(message) for message in messages])
    elif part == "only":
        messages = tuple([Message(role=m.role, reasoning_content=t) for m in messages if (t := _thinking_of(m))])
    return JudgedContent(_assistant_text(messages), 0, messages)


def response_text(response: Response) -> str:
    """Give all that a response says as one text: itself, or what its assistant messages think and say.

    Their pieces stand in order with a blank line between them. Tool calls and what tools answered are not among them.
    """
    return response.text if isinstance(response.text, str) else _assistant_text(response.text)


def _is_quoted(text: str, tag: re.Match[str]) -> bool:
    return text[max(tag.start() - 1, 0) : tag.start()] + text[tag.end() : tag.end() + 1] in _QUOTES


def _after_space(text: str, start: int, end: int) -> int:
    return end - len(text[start:end].lstrip())


def _assistant_text(messages: tuple[Message, ...]) -> str:
    texts = [piece for m in messages if m.role == "assistant" for piece in (m.reasoning_content, m.content)]
    return "\n\n".join([piece for piece in texts if piece])


def _without_thinking(message: Message) -> Message:
    if message.role != "assistant":
        return message
    content = message.content and judged_part(message.content, "strip")[0]
    return message.model_copy(update={"content": content, "reasoning_content": None})


def _thinking_of(message: Message) -> str:
    if message.role != "assistant":
        return ""
    blocks = (message.reasoning_content, split_thinking(message.content or "").thinking)
    return "\n\n".join([block for block in blocks if block])
