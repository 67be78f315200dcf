"""What the judge is shown of a group: its material, and each response, whole or in passages. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from judge_server.judging.passages import Excerpt, PassageFinder, common_paragraphs, not_shown
from judge_server.judging.presentation import (
    decoy_for,
    material_characters,
    show_hidden,
    show_response,
    without_middle,
)
from judge_server.judging.prompts import Material, PromptTemplates
from judge_server.judging.prompts.disguises import normalise
from judge_server.judging.prompts.fencing import render_conversation
from judge_server.judging.prompts.library import MATERIAL
from judge_server.judging.questions import PreparedConfig
from trainer_client.steps import Step
from trainer_client.text.thinking import JudgedContent
from trainer_client.wire import Criterion, JudgingOptions, Prompt
from trainer_client.wire.judging import StepRule
from trainer_client.wire.verdicts import Passage

FINAL_ANSWER_CHARACTERS = 400
"""How many characters of an extracted final answer are shown again next to the correct one."""


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What the responses of a group share: the prompt, and the material that only the judge sees."""

    prompt: Prompt
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None

    def right_answers(self) -> set[str]:
        """Return the answers that the group gives as right ones, without white space around them."""
        return {text.strip() for text in (self.ground_truth, self.reference_answer) if text is not None}

    def shown(self, withheld: Collection[str]) -> Material:
        """Return what the judge is shown of it, without the material that a template set withholds."""
        material = [None if name in withheld else getattr(self, name) for name in MATERIAL]
        return Material(render_conversation(self.prompt), not isinstance(self.prompt, str), *material)


class OnPassages(NamedTuple):
    """What the call about one criterion is shown, after what all calls are, and the passages in it."""

    shown: str
    passages: tuple[Passage, ...]


class GroupDisplay:
    """Shows the judge the responses to one prompt. What they share is rendered once.

    Args:
        prepared: the judging configuration, made ready.
        templates: those of its templates that are used.
        context: the prompt and the material of the group.
        options: the defences in force, and what the steps of a response are.
        shows_hidden: whether a criterion is asked that a good response avoids. It is judged on the hidden text too.
    """

    def __init__(
        self,
        prepared: PreparedConfig,
        templates: PromptTemplates,
        context: GroupContext,
        options: JudgingOptions,
        *,
        shows_hidden: bool,
    ) -> None:
        self._templates = templates
        self._material = context.shown(prepared.declaration.withholds)
        self._defences = options.defences
        self._shows_hidden = shows_hidden
        self._steps: StepRule | None = options.steps if prepared.config.protocol == "stepwise" else None
        self._passages = prepared.config.passages
        grounding = self._material.grounding or ""
        is_long = self._passages is not None and len(grounding) > self._passages
        self._grounding_finder = PassageFinder(grounding) if is_long else None
        self._response_finder = lru_cache(maxsize=1)(PassageFinder)  # a response is planned again to fit the context

    def most_shown(self, judged: JudgedContent) -> int:
        """Return the most characters of a response that a call shows, notes left out."""
        length = material_characters(judged)
        return length if self._passages is None or judged.messages is not None else min(length, self._passages)

    def is_long(self, judged: JudgedContent) -> bool:
        """Whether a text is to be shown in passages. Responses sent as messages are judged on whole texts."""
        if self._passages is None or judged.messages is not None:
            return False
        return self._grounding_finder is not None or len(judged.text) > self._passages

    def in_passages(
        self, judged: JudgedContent, to_ask: tuple[Criterion, ...], final_answer: str | None, keep: int | None
    ) -> tuple[str, int, dict[str, OnPassages]]:
        """Return what all calls are shown, how many characters of the response none is shown, and what each is shown.

        What all calls are shown does not depend on the criteria, so that each call has the same digest beside others.
        """
        assert self._passages is not None
        characters = self._passages if keep is None else min(self._passages, keep)
        finder = self._response_finder(judged.text) if len(judged.text) > characters else None
        # the decoy first, so that a criterion of the rubric with its id keeps its own passages
        decoys = (decoy_for(judged.text),) if "decoy" in self._defences else ()
        hidden, hidden_omitted = without_middle(judged.hidden, characters)
        excerpts: list[Excerpt] = []
        shown: dict[str, OnPassages] = {}
        for criterion in (*decoys, *to_ask):
            response, grounding, passages = judged.text, None, list[Passage]()
            if finder is not None:
                excerpt = finder.excerpt(criterion.description, characters)
                excerpts += () if criterion in decoys else (excerpt,)
                response = excerpt.text
                passages += _passages_of("response", excerpt, judged.offset)
            if self._grounding_finder is not None:
                found = self._grounding_finder.excerpt(f"{criterion.description}\n{response}", self._passages)
                grounding = found.text
                passages += _passages_of("grounding", found)
            shortened = replace(judged, text=response, hidden=hidden)
            whole, _ = self.whole(shortened, (), (), final_answer, None, grounding)
            shown[criterion.id] = OnPassages(whole, tuple(passages))
        nothing = replace(judged, text=judged.text if finder is None else "", hidden=hidden)
        blank, _ = self.whole(nothing, (), (), final_answer, None, None if self._grounding_finder is None else " ")
        shared = common_paragraphs([blank, *[one.shown for one in shown.values()]])
        rest = {id_: one._replace(shown=one.shown[len(shared) :]) for id_, one in shown.items()}
        omitted = 0 if finder is None else not_shown(len(judged.text), excerpts)
        if self._shows_hidden:
            omitted += hidden_omitted
        return shared, omitted, rest

    def whole(
        self,
        judged: JudgedContent,
        steps: Sequence[Step],
        turns: Sequence[Step],
        final_answer: str | None,
        keep: int | None,
        grounding: str | None = None,
    ) -> tuple[str, int]:
        """Return what the judge is shown of a response, and how many characters of it are left out."""
        material = self._material if grounding is None else self._material._replace(grounding=grounding)
        show_final_answer = self._steps == "headings" or material.ground_truth is not None
        normalised = "normalise" in self._defences
        numbered: StepRule = "turns" if turns else self._steps or "headings"
        response, omitted = show_response(judged, steps, numbered, normalised=normalised, keep=keep)
        if judged.hidden and self._shows_hidden:
            hidden, more = show_hidden(judged.hidden, normalised=normalised, keep=keep)
            response, omitted = f"{response}\n\n{hidden}", omitted + more
        if final_answer is not None:
            final_answer = normalise(final_answer) if normalised else final_answer
            final_answer, _ = without_middle(final_answer, FINAL_ANSWER_CHARACTERS)
        shared = self._templates.shared(
            material,
            response,
            show_final_answer=show_final_answer,
            final_answer=final_answer if show_final_answer else None,
        )
        return shared, omitted


def _passages_of(text: Literal["response", "grounding"], excerpt: Excerpt, offset: int = 0) -> list[Passage]:
    """Return the passages that were found in a text, which begins at `offset` of the text as sent."""
    spans = excerpt.spans if excerpt.found else ()
    return [Passage(text=text, start=start + offset, end=end + offset) for start, end in spans]
