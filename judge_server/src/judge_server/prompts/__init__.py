"""Render the judge's prompts in two parts: the response, then the question about it.

The shared part, with everything about a response, comes first and the criterion last, so that an engine that reuses
prefixes reads a response once for all its criteria. Every text written by a user or a policy is fenced before it
reaches a template, so that no template can forget to. The templates' digest is part of the judge fingerprint.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from jinja2 import Template

from judge_server.prompts.fencing import fence, neutralise
from judge_server.prompts.library import (
    ALLOWED_VARIABLES,
    ENVIRONMENT,
    CriterionView,
    InvalidTemplate,
    builtin_templates,
    decision_templates,
)
from rubric_store.byte_cache import ByteCache
from trainer_client.wire import Criterion, UsedProtocol
from trainer_client.wire.criteria import GUIDANCE_FIELDS
from trainer_client.wire.judging import StepRule


@dataclass(frozen=True, slots=True)
class PromptForm:
    """What selects the wording: the protocol, whether a rationale comes first, and one criterion or several.

    `typed` selects the form of decision models: short questions about a state, which is a JSON object of named texts.
    `steps` says what the steps of a response are: where a template speaks of `### Step N`, it speaks of `turn N` for
    turns, and of `step N` for paragraphs and given steps.
    """

    protocol: UsedProtocol
    rationale: bool = False
    several: bool = False
    typed: bool = False
    steps: StepRule = "headings"


class Material(NamedTuple):
    """What the judge is shown beside a response: a fenced prompt, and texts that are not fenced yet."""

    prompt: str
    is_conversation: bool = False
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None


class PromptTemplates:
    """The templates of one prompt form, compiled once. `replaced` holds a user's own templates by file name."""

    def __init__(self, form: PromptForm, replaced: Mapping[str, str] | None = None) -> None:
        self.form = form
        self._sources = {**builtin_templates(), **(decision_templates() if form.typed else {}), **(replaced or {})}
        if form.steps != "headings":
            name = "turn N" if form.steps == "turns" else "step N"
            self._sources = {file: text.replace("### Step N", name) for file, text in self._sources.items()}
        self._names_texts = form.typed and _BODY[form.protocol][0] not in (replaced or {})
        names = [f"{form.protocol}.system.j2", *_BODY[form.protocol], *(["verdict.j2"] if form.rationale else [])]
        parts = [self._sources[name] for name in sorted(names)] + ["typed"] * self._names_texts
        self.digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        self.system = self._render(f"{form.protocol}.system.j2")
        self.ask = self._render("verdict.j2")
        self._key = f"{form.rationale}{form.several}{self.digest}"

    def shared(self, material: Material, response: str, *, show_final_answer: bool, final_answer: str | None) -> str:
        """Render the part about one response, which is fenced already; the final answer is not.

        What the responses of a group share comes first, so that an engine reads it once too. For a decision model this
        is a JSON object, unless the template is a user's own.
        """
        shown: dict[str, Any] = {
            "prompt": material.prompt,
            "grounding": _fenced(material.grounding),
            "reference_answer": _fenced(material.reference_answer),
            "response": response,
            "ground_truth": _fenced(material.ground_truth),
            "final_answer": None if final_answer is None else fence(final_answer),
        }
        if self._names_texts:
            return _as_object(
                shown | ({"final_answer": "none stated"} if show_final_answer and not final_answer else {})
            )
        return self._render(
            "shared.j2", **shown, conversation=material.is_conversation, show_final_answer=show_final_answer
        )

    def pair(self, material: Material, a: str, b: str) -> str:
        """Render the part about two responses, which are fenced already."""
        shown = {
            "prompt": material.prompt,
            "grounding": _fenced(material.grounding),
            "reference_answer": _fenced(material.reference_answer),
        }
        if self._names_texts:
            return _as_object(shown | {"response_a": a, "response_b": b})
        return self._render("pair.j2", **shown, a=a, b=b, conversation=material.is_conversation)

    def comparison(self, criteria: Sequence[Criterion], asked: str) -> str:
        """Render the question about two responses."""
        return self._render("comparison.j2", criteria=[_view(c) for c in criteria], asked=neutralise(asked))

    def question(self, criterion: Criterion) -> str:
        """Render the question about one criterion."""
        return self._rendered_question("question.j2", (criterion,), lambda: {"criterion": _view(criterion)})

    def questions(self, criteria: tuple[Criterion, ...]) -> str:
        """Render the question about several criteria."""
        return self._rendered_question("questions.j2", criteria, lambda: {"criteria": [_view(c) for c in criteria]})

    def holistic(self, criteria: tuple[Criterion, ...]) -> str:
        """Render the question about the whole response, with the criteria that guide it."""
        return self._rendered_question("holistic.j2", criteria, lambda: {"criteria": [_view(c) for c in criteria]})

    def _rendered_question(
        self, name: str, criteria: tuple[Criterion, ...], values: Callable[[], dict[str, Any]]
    ) -> str:
        """Return a question from the cache, or render it."""
        key = self._key, name, criteria
        return _QUESTIONS.get_or_create(key, lambda: self._render(name, **values()))

    def _render(self, name: str, **values: Any) -> str:
        known = {"protocol": self.form.protocol, "rationale": self.form.rationale, "several": self.form.several}
        given = {key: value for key, value in known.items() if key in ALLOWED_VARIABLES[name]}
        return _compiled(self._sources[name]).render(**given, **values)


def _fenced(text: str | None) -> str | None:
    return fence(text) if text else None


_QUESTIONS: ByteCache[tuple[str, str, tuple[Criterion, ...]], str] = ByteCache(32 * 2**20)
"""Recently rendered questions of all judges and prompt forms."""

_BODY: Mapping[str, tuple[str, ...]] = {  # first the part about the responses, then the questions
    "binary": ("shared.j2", "question.j2", "questions.j2"),
    "stepwise": ("shared.j2", "question.j2", "questions.j2"),
    "graded": ("shared.j2", "question.j2", "questions.j2"),
    "checklist": ("shared.j2", "questions.j2"),
    "likert": ("shared.j2", "holistic.j2"),
    "comparison": ("pair.j2", "comparison.j2"),
}


def _as_object(texts: Mapping[str, str | None]) -> str:
    """Return the texts that there are as a JSON object."""
    return json.dumps({name: text for name, text in texts.items() if text is not None}, ensure_ascii=False)


@lru_cache(maxsize=256)
def _compiled(source: str) -> Template:
    return ENVIRONMENT.from_string(source)


def _view(criterion: Criterion) -> CriterionView:
    return CriterionView(
        description=neutralise(criterion.description),
        kind=criterion.kind,
        scale=criterion.scale,
        points=f"{points(criterion):g}",
        negative=criterion.weight < 0 or criterion.kind == "pitfall",
        **{field: _text(getattr(criterion, field)) for field in GUIDANCE_FIELDS},
    )


def _text(value: str | tuple[str, ...] | None) -> str:
    return neutralise("; ".join(value) if isinstance(value, tuple) else value or "")


def points(criterion: Criterion) -> float:
    """Return the points a checklist can award for a criterion: the absolute weight, or 1 if the weight is 0."""
    return abs(criterion.weight) or 1.0


__all__ = ["CriterionView", "InvalidTemplate", "Material", "PromptForm", "PromptTemplates", "points"]
