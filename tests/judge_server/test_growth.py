"""What reads a policy's or a judge's text takes time linear in its length, whatever the text is.

Processor time for n, 2n and 4n characters is compared, so a slow machine changes nothing: linear work takes four times
as long for 4n as for n, and quadratic work sixteen times.
"""

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from judge_server.judging.items import ItemForm, read_items
from judge_server.judging.plan import GroupPlanner
from judge_server.judging.presentation import (
    fit_grounding,
    has_content,
    shorten_messages,
    show_response,
    steps_of,
)
from judge_server.judging.prompts.disguises import normalise, undisguised
from judge_server.judging.prompts.fencing import neutralise, render_conversation
from judge_server.judging.replies import read_label_choice
from judge_server.judging.shown import GroupContext
from judge_server.judging.tolerant_json import find_values
from judge_server.ledger.rows import compressed
from judge_server.ports import LabelChoice
from judge_server.scoring.recorded import storable_text
from judge_server.verifiers import formulas, written_forms
from judge_server.verifiers.answers import read_answer, read_quantity, stated_value, with_decimal_point
from judge_server.verifiers.check import find, texts_equal
from judge_server.verifiers.notation import same_characters, strip_markup, tokens_of, with_digits
from judge_server.verifiers.schemas import last_block
from judge_server.verifiers.worker import decide
from rubric_store import FormatError
from rubric_store.formats.reading import read_document
from tests.cases import cases
from tests.judge_server.support import prepared
from trainer_client.adapters.areal import without_end
from trainer_client.final_answer import boxed_answer, extract_final_answer, final_answer_line
from trainer_client.measures import loops, rouge_l_f1, self_bleu
from trainer_client.steps import has_format, split_paragraphs, split_steps
from trainer_client.text.thinking import judged_content, split_reasoning, split_thinking
from trainer_client.wire import Criterion, Message, Response

FAMILIES: dict[str, Callable[[int], str]] = {
    **{
        name: lambda n, before=before, unit=unit, after=after: before + unit * (n // len(unit)) + after
        for name, before, unit, after in cases(__file__, "families")
    },
    "long words and accents": lambda n: ("a" * 997 + "1é ") * (n // 1000),
    "braces": lambda n: "{" * (n // 2) + "}" * (n // 2),
    "brackets": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "longer fences": lambda n: "\n".join("`" * length for length in range(3, int((2 * n) ** 0.5))),
    "let me and spaces": lambda n: ("let me" + " " * 200) * (n // 206),
}


def _show(text: str) -> None:
    for rule in ("headings", "paragraphs", "turns"):
        judged = judged_content(Response(text=text), "keep")
        show_response(judged, steps_of(judged, rule), rule, normalised=True, keep=None)


def _show_messages(text: str) -> None:
    messages = (Message(role="assistant", content=text), Message(role="tool", content=text))
    for rule in ("headings", "paragraphs", "turns"):
        judged = judged_content(Response(text=messages), "keep")
        show_response(judged, steps_of(judged, rule), rule, normalised=True, keep=None)
    shorten_messages(messages, 100)


def _call(text: str) -> None:
    call = {"function": {"name": text[:1000], "arguments": text}}
    render_conversation([Message(role="assistant", tool_calls=[call]), Message(role="tool", content=text)])


def _check(**verification: Any) -> Callable[[str], object]:
    criterion = Criterion.model_validate({"id": "c", "description": "d", "weight": -1, "verification": verification})

    def run(text: str) -> object:
        context = GroupContext("p", ground_truth="5")
        plan = GroupPlanner(prepared(), context, [criterion]).plan(judged_content(Response(text=text), "strip"))
        return [decide(check) for _, check in plan.checks]

    return run


def _rubric(format: str | None) -> Callable[[str], object]:
    def run(text: str) -> None:
        with suppress(FormatError):
            read_document(text, format)

    return run


OWN_FAMILIES = {
    "extract_final_answer": "announcements",
    "final_answer_line": "announcements",
}
"""Readers that read more texts than those of all, repetitions of the units in a table of their own."""

LABELS = LabelChoice(("yes", "no"))
FORMS = (ItemForm("grade", 4.0), ItemForm("satisfied", steps=(1, 2), reason=True))

READERS: dict[str, Callable[[str], object]] = {
    "normalise": normalise,
    "undisguised": undisguised,
    "has_content": has_content,
    "fit_grounding": lambda text: fit_grounding(text, len(text) - 1),
    "fit_grounding, half": lambda text: fit_grounding(text, len(text) // 2),
    "neutralise": neutralise,
    "show_response": _show,
    "show_response of messages": _show_messages,
    "render_conversation": _call,
    "split_thinking": split_thinking,
    "judged_content": lambda text: [judged_content(Response(text=text), part) for part in ("strip", "only")],
    "split_reasoning": split_reasoning,
    "extract_final_answer": extract_final_answer,
    "final_answer_line": final_answer_line,
    "boxed_answer": boxed_answer,
    "split_steps": split_steps,
    "split_paragraphs": split_paragraphs,
    "has_format": has_format,
    "loops": loops,
    "self_bleu": lambda text: self_bleu([text, text]),
    "rouge_l_f1": lambda text: rouge_l_f1(text, "a b c"),
    "texts_equal": lambda text: texts_equal(text, text, case_sensitive=False),
    "find": lambda text: find(text, ["aab"], ["ß", "ab"], case_sensitive=False),
    "strip_markup": strip_markup,
    "stated_value": stated_value,
    "same_characters": same_characters,
    "tokens_of": tokens_of,
    "read_answer": read_answer,
    "with_decimal_point": with_decimal_point,
    "with_digits": with_digits,
    "read_choice": written_forms.read_choice,
    "read_parts": written_forms.read_parts,
    "without_text_commands": written_forms.without_text_commands,
    "formulas.equal": lambda text: formulas.equal("5", text),
    "formulas.response_states": lambda text: formulas.response_states("5", text),
    "read_quantity": read_quantity,
    "last_block": last_block,
    "check: exact": _check(method="exact", of="response", expected="5"),
    "check: contains": _check(method="contains", all_of=["forbidden"]),
    "check: regex": _check(method="regex", pattern="forbidden"),
    "check: numeric": _check(method="numeric", of="response"),
    "check: json_schema": _check(method="json_schema", schema={"type": "object"}),
    "find_values": lambda text: list(find_values(text)),
    "read_items": lambda text: read_items(text, True, FORMS),
    "read_label_choice": lambda text: read_label_choice(text[: len(text) // 5], LABELS),
    "storable_text": storable_text,
    "compressed": lambda text: compressed(text.encode("utf-8", "surrogatepass")),
    "without_end": without_end,
    "rubrics, any format": _rubric(None),
    **{f"rubrics, {name}": _rubric(name) for name in ("dro", "frontierscience", "prometheus", "srar")},
}

LONGEST = 100_000
ALREADY_FAST_S = 0.02
"""So little processor time for the longest text that the work cannot be quadratic on any machine."""


def _seconds(read: Callable[[str], object], text: str) -> float:
    gc.disable()  # its passes over everything grow faster than the text
    try:
        began = time.process_time()
        read(text)
        return time.process_time() - began
    finally:
        gc.enable()


def _growth(read: Callable[[str], object], family: Callable[[int], str]) -> float:
    """How many times as long a text of 4n characters takes as one of n; the least of several tries.

    4n is 100,000 characters, or a quarter of that for a reader slow enough to be measured there.
    """
    shortest = family(LONGEST // 16)
    short = min(_seconds(read, shortest) for _ in range(2))  # the first call may load or compile something
    longest = LONGEST // 4 if short > ALREADY_FAST_S / 2 else LONGEST
    texts = [family(longest // part) for part in (4, 2, 1)]
    least = [float("inf")] * len(texts)
    for _ in range(10):  # until one try is not held up by what else the machine does
        for place, text in enumerate(texts):
            least[place] = min(least[place], _seconds(read, text))
            if least[0] < ALREADY_FAST_S / 40:
                return 0.0
            if place == 1 and least[1] > 3 * least[0] and least[0] > 5 * ALREADY_FAST_S:
                return (least[1] / least[0]) ** 2  # not to wait for the longest
        growth = least[-1] / max(least[0], ALREADY_FAST_S / 8)
        if least[-1] < ALREADY_FAST_S or growth < 6:
            break
    return growth if least[-1] >= ALREADY_FAST_S else 0.0


@pytest.mark.parametrize("name", READERS)
def test_reading_a_hostile_text_takes_linear_time(name: str) -> None:
    own = cases(__file__, OWN_FAMILIES[name]) if name in OWN_FAMILIES else []
    families = FAMILIES | {unit: lambda n, unit=unit: unit * (n // len(unit)) for unit in own}
    worse = {
        family: round(times, 1) for family, make in families.items() if (times := _growth(READERS[name], make)) > 9
    }
    assert worse == {}
