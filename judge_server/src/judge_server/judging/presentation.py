"""How a response is shown to the judge: its steps numbered, its characters normalised, and too long a one shortened.

A step is one of the response's own `### Step N` headings, which stand in its text. Turns, paragraphs and given steps
are numbered in headings outside the fences, which no text in a response can forge.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from judge_server.judging.defences import normalise
from judge_server.judging.shortening import shorten_messages, without_middle
from judge_server.prompts.fencing import render_response
from trainer_client.steps import Step, split_paragraphs, split_steps
from trainer_client.text.thinking import JudgedContent, assistant_pieces
from trainer_client.wire import Message, Prompt
from trainer_client.wire.judging import StepRule

STEP_WORDS: dict[StepRule, tuple[str, str]] = {
    "headings": ("step", '"### Step N"'),
    "turns": ("turn", '"turn N"'),
    "paragraphs": ("step", '"step N"'),
    "given": ("step", '"step N"'),
}
"""What a step is called in questions to the judge, and how the judge sees it named."""

_OUTSIDE = "text outside the steps"


def steps_of(judged: JudgedContent, rule: StepRule) -> tuple[Step, ...]:
    """Return the steps of the judged part of a response, in order, with their spans in its text."""
    match rule:
        case "headings":
            return tuple(split_steps(judged.text))
        case "turns":
            return judged.turns
        case "paragraphs":
            return tuple(split_paragraphs(judged.text))
        case "given":
            return judged.given


def images_of(messages: Prompt) -> tuple[str, ...]:
    """Return the images of a conversation, in order; a text has none."""
    return () if isinstance(messages, str) else tuple([image for message in messages for image in message.images])


class _Part(NamedTuple):
    """A message, or a part of one, and the label of the step that it is; empty if it is none."""

    label: str
    message: Message


def show_response(
    judged: JudgedContent,
    steps: Sequence[Step],
    rule: StepRule,
    fence: Callable[[str], str],
    *,
    normalised: bool,
    keep: int | None,
) -> tuple[str, int]:
    """Render a response for the judge.

    Args:
        judged: the judged part of the response.
        steps: its steps by `rule`, which are numbered outside the fences; not used for `headings`.
        rule: what its steps are; `headings` numbers nothing.
        fence: wraps each text.
        normalised: whether invisible and disguised characters are replaced.
        keep: the most characters to show; None shows all.

    Returns:
        The rendered response, and the number of characters left out.
    """
    if judged.messages is None and rule == "headings":
        shown, omitted = without_middle(normalise(judged.text) if normalised else judged.text, keep)
        return fence(shown), omitted
    parts = _parts(judged, steps, rule)
    messages = tuple([_normalised(part.message) if normalised else part.message for part in parts])
    messages, omitted = shorten_messages(messages, keep)
    labels = [part.label for part in parts]
    if judged.messages is not None:
        return render_response(messages, labels, fence), omitted
    texts = [f"{label or _OUTSIDE}:\n{fence(m.content or '')}" for label, m in zip(labels, messages, strict=True)]
    return "\n\n".join(texts) or fence(""), omitted


def _normalised(message: Message) -> Message:
    texts = {"content": message.content, "reasoning_content": message.reasoning_content}
    changed = {name: normalise(text) for name, text in texts.items() if text is not None}
    return message if changed.items() <= texts.items() else message.model_copy(update=changed)


def _parts(judged: JudgedContent, steps: Sequence[Step], rule: StepRule) -> list[_Part]:
    if judged.messages is None:
        return [_Part(label, _said(text)) for label, text in _cut(judged.text, 0, steps, rule)]
    if rule == "headings":
        return [_Part("", message) for message in judged.messages]
    turns = iter(judged.turns)
    parts: list[_Part] = []
    for message in judged.messages:
        if message.role != "assistant":
            parts.append(_Part("", message))
            continue
        turn = next(turns)
        if rule == "turns":
            parts.append(_Part(f"turn {turn.number}", message))
        else:
            parts += _cut_message(message, turn.start, steps, rule)
    return parts


def _cut_message(message: Message, start: int, steps: Sequence[Step], rule: StepRule) -> list[_Part]:
    """Cut a message of the assistant at the steps; its tool calls stay with its last part."""
    parts: list[_Part] = []
    for piece in assistant_pieces(message):
        field = "content" if piece is message.content else "reasoning_content"
        parts += [
            _Part(label, Message.model_validate({"role": message.role, field: text}))
            for label, text in _cut(piece, start, steps, rule)
        ]
        start += len(piece) + len("\n\n")
    if not parts:
        return [_Part("", message)]
    if message.tool_calls:
        label, last = parts[-1]
        parts[-1] = _Part(label, last.model_copy(update={"tool_calls": message.tool_calls}))
    return parts


def _cut(text: str, start: int, steps: Sequence[Step], rule: StepRule) -> list[tuple[str, str]]:
    """Cut a text that begins at `start` of the response at the steps; white space outside of steps is left out."""
    word, _ = STEP_WORDS[rule]
    cuts: list[tuple[str, str]] = []
    at = 0
    for number, begin, end in sorted(steps, key=lambda step: step.start):
        first, last = max(begin - start, at), min(end - start, len(text))
        if last < first or (last == first and len(text)):
            continue
        cuts += [("", text[at:first]), (f"{word} {number}", text[first:last])]
        at = last
    cuts.append(("", text[at:]))
    return [(label, cut.rstrip().lstrip("\n")) for label, cut in cuts if label or cut.strip()]


def _said(text: str) -> Message:
    return Message(role="assistant", content=text)
