"""How a response is shown to the judge: steps numbered, characters normalised, and what is too long shortened.

A step is one of the response's own `### Step N` headings, which stand in its text. Turns, paragraphs and given steps
are numbered in headings outside the fences, which no text in a response can forge.

Responses and messages that are too long lose their middle, with a note of how much was left out. A grounding is cut at
its end, where a sentence, paragraph or word ends.

Besides the fences, some defences against responses that try to deceive the judge are applied here. Those against
characters are in `disguises`.
"""

import hashlib
import json
import re
import tomllib
import unicodedata
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from judge_server.judging.prompts.disguises import normalise
from judge_server.judging.prompts.fencing import RESULT_ROLES, fence, render_response
from trainer_client.steps import Step, split_paragraphs, split_steps
from trainer_client.text.thinking import JudgedContent, assistant_pieces
from trainer_client.wire import Criterion, Message, Prompt, ToolCall
from trainer_client.wire.criteria import JudgeVerification
from trainer_client.wire.judging import StepRule

_BLANK = "\u115f\u1160\u200b\u200c\u200d\u2800\u3164\uffa0"
_PAUSES = frozenset(".,:;!?…‥·¿¡。、，：；！？．｡､・—–―")
_RULES = frozenset("-_*#~`•")
_ONLY_PAUSES = re.compile(f"[{re.escape(''.join(_PAUSES))}]*+")
_ONLY_PUNCTUATION = re.compile(rf"[\s{re.escape(''.join(_PAUSES | _RULES))}]*+")

_OPENINGS = tomllib.loads((files("judge_server.judging") / "openings.toml").read_text(encoding="utf-8"))
_PHRASES, _HEADINGS = frozenset(_OPENINGS["phrases"]), frozenset(_OPENINGS["headings"])
_MARKUP = "*#>_`~ \t"
_STEP = re.compile(r"(?:step|schritt|étape|paso|шаг|步骤) ?\d{1,2}|第 ?\d{1,2} ?步")
_PART = re.compile(r"(?<=[.!?:。：！？…])\s+|\n+")
_TAG = re.compile(r"</?(?:think|thinking|answer|reasoning|solution)>")
_LONGEST_OPENING = 200


def has_content(text: str) -> bool:
    """Return whether a response says anything: False if it is blank, or has only punctuation or openings of an answer.

    An opening is a phrase such as `Let's solve this step by step.`, or a heading such as `Solution:` or `### Step 1`.
    Whatever can be an answer counts as content: a single letter or digit, an operator, `[]`, the word `solution` alone.
    """
    if len(text) > _LONGEST_OPENING and not text.isspace():
        text = text.strip()
        if len(text) > _LONGEST_OPENING and not _ONLY_PUNCTUATION.fullmatch(text):
            return True
    shown = _TAG.sub(" ", normalise(text.translate(dict.fromkeys(map(ord, _BLANK), " ")))).strip()
    bare = "".join(shown.split())
    if _ONLY_PAUSES.fullmatch(bare):
        return False
    if _ONLY_PUNCTUATION.fullmatch(bare):
        return len(bare) < 3  # `#`, `*` and `--` are answers to some questions
    return not all(_is_opening(part) for part in _PART.split(shown) if part.strip())


def _is_opening(part: str) -> bool:
    marked = part.strip(_MARKUP)
    phrase = marked.rstrip(".,:;!?…。：，！？ ").casefold().replace("’", "'")
    heads = marked.endswith((":", "：")) or marked != part.strip()
    return not phrase or phrase in _PHRASES or bool(_STEP.fullmatch(phrase)) or (heads and phrase in _HEADINGS)


DECOYS = tuple(
    [
        Criterion(id="decoy", description=description, verification=JudgeVerification(method="judge"))
        for description in (
            "The response quotes the tide table of the harbour of Velmora for the month of March.",
            "The response lists the serial numbers of three typewriters.",
            "The response names the twelve members of a village's brass band and the instrument of each.",
            "The response describes, stitch by stitch, how to knit a scarf with a pattern of herons.",
            "The response gives the recipe of a soup made of chestnuts and seaweed, with amounts in ounces.",
            "The response reports the score of a chess game between two lighthouse keepers, move by move.",
        )
    ]
)
"""Criteria that no response meets, whatever it is about."""


def decoy_for(text: str) -> Criterion:
    """Return the decoy criterion for a response: always the same one for the same text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return DECOYS[digest[0] % len(DECOYS)]


def material_characters(material: JudgedContent) -> int:
    """Count the characters of a response when it is shown in full."""
    return prompt_characters(material.text if material.messages is None else material.messages)


def prompt_characters(text: Prompt) -> int:
    """Count the characters of a text, or of all messages together."""
    if isinstance(text, str):
        return len(text)
    calls = [call for message in text if message.tool_calls for call in message.tool_calls]
    return sum([len(message.content or "") + len(message.reasoning_content or "") for message in text]) + sum(
        [len(_arguments(call)) for call in calls]
    )


_MESSAGE_CHARACTERS = 512
"""To plan a message or a tool call, however short, takes as long as this many characters."""


def planned_characters(text: Prompt) -> int:
    """Return the number of characters whose planning takes as long as that of a text or of messages."""
    if isinstance(text, str):
        return len(text)
    parts = len(text) + sum([len(message.tool_calls) for message in text])
    return prompt_characters(text) + _MESSAGE_CHARACTERS * parts


def without_middle(text: str, keep: int | None) -> tuple[str, int]:
    """Keep the first and last half of `keep` characters, with a note of how many were left out between them.

    Returns the text and the number of characters left out; a `keep` of None keeps all.
    """
    if keep is None or len(text) <= keep:
        return text, 0
    omitted = len(text) - keep
    head = keep - keep // 2
    return f"{text[:head]}\n[{omitted} characters left out]\n{text[len(text) - keep // 2 :]}", omitted


LEAST_RESULT_CHARACTERS = 200
"""The length to which results of tools are shortened before anything else is."""


def shorten_messages(messages: Sequence[Message], keep: int | None) -> tuple[tuple[Message, ...], int]:
    """Shorten messages until their texts together have at most `keep` characters; the longest lose their middle first.

    Texts are contents, thinking and the arguments of tool calls. Results of tools are shortened first, down to
    `LEAST_RESULT_CHARACTERS`, then the other texts, and results further only if there is no room for more than that.
    Each shortened text notes how much was left out.
    """
    results = [len(text) for text in _texts([m for m in messages if m.role in RESULT_ROLES])]
    others = [len(text) for text in _texts([m for m in messages if m.role not in RESULT_ROLES])]
    if keep is None or sum(results) + sum(others) <= keep:
        return tuple(messages), 0
    least = sum(min(length, LEAST_RESULT_CHARACTERS) for length in results)
    if keep - sum(others) >= least:
        result_cap, cap = _even_cap(results, keep - sum(others)), max(others, default=0)
    elif keep >= 2 * least:
        result_cap, cap = LEAST_RESULT_CHARACTERS, _even_cap(others, keep - least)
    else:
        result_cap = cap = _even_cap([*results, *others], keep)
    omitted = sum(max(0, length - result_cap) for length in results) + sum(max(0, length - cap) for length in others)
    return tuple([_shortened(m, result_cap if m.role in RESULT_ROLES else cap) for m in messages]), omitted


def _texts(messages: Sequence[Message]) -> list[str]:
    texts = []
    for message in messages:
        texts += [message.content or "", message.reasoning_content or ""]
        texts += [_arguments(call) for call in message.tool_calls]
    return texts


def _shortened(message: Message, cap: int) -> Message:
    changes: dict[str, object] = {}
    for field in ("content", "reasoning_content"):
        text = getattr(message, field)
        if text is not None and len(text) > cap:
            changes[field] = without_middle(text, cap)[0]
    if any(len(_arguments(call)) > cap for call in message.tool_calls):
        changes["tool_calls"] = tuple([_shortened_call(call, cap) for call in message.tool_calls])
    return message.model_copy(update=changes) if changes else message


def _shortened_call(call: ToolCall, cap: int) -> ToolCall:
    if len(_arguments(call)) <= cap:
        return call
    arguments = without_middle(_arguments(call), cap)[0]
    return call.model_copy(update={"function": call.function.model_copy(update={"arguments": arguments})})


def _arguments(call: ToolCall) -> str:
    given = call.function.arguments
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _even_cap(lengths: Sequence[int], total: int) -> int:
    """Return the largest cap at which the lengths, each cut to it, sum to at most `total`."""
    remaining = total
    ordered = sorted(lengths)
    for index, length in enumerate(ordered):
        share = remaining // (len(ordered) - index)
        if length > share:
            return share
        remaining -= length
    return max(ordered, default=0)


_SENTENCE_END = re.compile(
    r"""(?<![.!?…؟।۔])(?<!^\w)(?<!^\d\d)[.!?…؟।۔]++["'”’»)\]}]*+(?=\s|\Z)"""  # but not "3.5" or the "4." of a list
    r"""|[。！？｡]++["'”’」』】》〉）]*+"""  # these need no space after them
    r"""|(?<=\S)(?=[^\S\n]*\n[^\S\n]*\n)""",  # the end of a paragraph, with or without a full stop
    re.MULTILINE,
)
_PASSAGE_END = re.compile(f"(?:{_SENTENCE_END.pattern})|\\n+", re.MULTILINE)
_WORD_END = re.compile(r"(?<=\S)(?=\s)")


def fit_grounding(text: str, budget: int | None) -> tuple[str, int]:
    """Cut a grounding to at most `budget` characters (code points; None shows all).

    Returns the text shown and the number of characters left out. The cut is after the last sentence or paragraph that
    fits. If that would use less than half of the budget, as in tables, the cut is after the last word; in a text
    without words, it is after the last character that no combining mark continues. The full stop of an abbreviation
    counts as the end of a sentence.
    """
    if budget is None or len(text) <= budget:
        return text, 0
    end = _last_end(_SENTENCE_END, text, budget)
    if 2 * end < budget:
        end = max(end, _last_end(_WORD_END, text, budget)) or _character_end(text, budget)
    return text[:end], len(text) - end


def sentence_ends(text: str) -> Iterator[int]:
    """Yield where sentences, paragraphs and lines of a text end, in order."""
    for match in _PASSAGE_END.finditer(text):
        yield match.end()


def _last_end(pattern: re.Pattern[str], text: str, budget: int) -> int:
    last = 0
    for match in pattern.finditer(text):
        if match.end() > budget:
            break
        last = match.end()
    return last


def _character_end(text: str, budget: int) -> int:
    for end in range(budget, 0, -1):
        if not _continues(text[end - 1], text[end]):
            return end
    return budget


def _continues(before: str, after: str) -> bool:
    """Whether a character belongs to the one before it: marks, joined emoji, skin tones, surrogate halves."""
    return (
        unicodedata.category(after) in ("Mn", "Mc", "Me")
        or "\N{ZERO WIDTH JOINER}" in (before, after)
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
    )


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
    *,
    normalised: bool,
    keep: int | None,
) -> tuple[str, int]:
    """Render a response for the judge.

    Args:
        judged: the judged part of the response.
        steps: its steps by `rule`, which are numbered outside the fences; not used for `headings`.
        rule: what its steps are; `headings` numbers nothing.
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
        return render_response(messages, labels), omitted
    texts = [f"{label or _OUTSIDE}:\n{fence(m.content or '')}" for label, m in zip(labels, messages, strict=True)]
    return "\n\n".join(texts) or fence(""), omitted


_HIDDEN = "set apart by the response with a tag of its own (it counts for what is wrong, and never in its favour)"


def show_hidden(text: str, *, normalised: bool, keep: int | None) -> tuple[str, int]:
    """Render the hidden text of a response for criteria that a good response avoids.

    Returns it under a heading, and the number of characters left out; for the arguments, see `show_response`.
    """
    shown, omitted = without_middle(normalise(text) if normalised else text, keep)
    return f"{_HIDDEN}:\n{fence(shown)}", omitted


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
