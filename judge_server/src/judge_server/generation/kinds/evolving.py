"""`evolving` (RLER): new criteria that discriminate between current responses, as a new version of the rubric."""

import hashlib
import re
from dataclasses import replace
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from judge_server.generation.generator import (
    GeneratedRubric,
    Generator,
    Parameters,
    QuestionRow,
    Responses,
    Sentence,
    enum_schema,
)
from judge_server.generation.structure import Draft, check_drafts, words
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import RubricDiscarded, Writer
from trainer_client.wire import Criterion
from trainer_client.wire.rubrics import parse_reference


def _is_reference(text: str) -> str:
    parse_reference(text)
    return text


EVOLVED_TAG = "evolved"
"""The tag of criteria that this generator wrote; criteria without it are never dropped."""

_OTHER_RESPONSE = re.compile(
    r"\bresponses?\s+(?:#|no\.?\s*)?\d|\b(?:better|worse|best|worst|first|second|other)\s+(?:response|answer|one)s?\b",
    re.IGNORECASE,
)
"""Phrases that refer to one response among several; a judge sees only one response."""


class EvolvingRow(QuestionRow):
    """A query, its rubric, and responses to it. A name that does not exist yet starts a new rubric."""

    rubric: Annotated[str, AfterValidator(_is_reference)]
    responses: Responses = Field(min_length=2)

    @property
    def rubric_name(self) -> str | None:
        """The rubric's name, or None for a reference without a name."""
        return parse_reference(self.rubric).name


class EvolvingParameters(Parameters):
    """How much a rubric may change at a time.

    Attributes:
        min_criteria: minimum number of new criteria to write.
        max_criteria: maximum number of new criteria to write.
        scale: the highest grade.
        min_spread: minimum difference between a criterion's highest and lowest grade of the responses.
        max_evolved: maximum number of evolved criteria in a rubric; the newest are kept.
        shown: maximum number of responses to compare.
        response_characters: number of leading characters of each response to read.
        show_known: show the rubric's criteria to the model that writes new ones. A small model copies them; repeated
            criteria are dropped either way.
    """

    min_criteria: int = Field(default=1, ge=1, le=8)
    max_criteria: int = Field(default=3, ge=1, le=8)
    scale: int = Field(default=4, ge=1, le=10)
    min_spread: int = Field(default=1, ge=1, le=10)
    max_evolved: int = Field(default=12, ge=1, le=256)
    shown: int = Field(default=8, ge=2, le=64)
    response_characters: int = Field(default=4_000, ge=100)
    show_known: bool = True


class EvolvingItem(BaseModel):
    """A criterion as the model writes it."""

    sign: Annotated[str, enum_schema("positive", "negative")]
    description: Sentence


class EvolvingRubric(BaseModel):
    """The model's output."""

    criteria: list[EvolvingItem]


class EvolvingGenerator(Generator[EvolvingRow, EvolvingParameters]):
    """Writes criteria from the responses, drops those that grade all responses alike, and appends the others."""

    kind = "evolving"
    summary = "new criteria that tell current responses apart, as a new version of the query's rubric (RLER)"
    Input = EvolvingRow
    Parameters = EvolvingParameters
    steps = ("rubric", "check", "grades", "validity")
    revises = True
    prompt_templates = GeneratorTemplates("author.system", "checker.system", "evolving.rubric", "evolving.grade")

    async def make(self, row: EvolvingRow, writer: Writer) -> GeneratedRubric:
        """Make the next version; see `Generator.make`. Flag: `new_rubric`."""
        parameters = self.parameters
        parent = await self.find(row.rubric) if self.find is not None else None
        if parent is None and ("@" in row.rubric or row.rubric.startswith("sha256:")):
            raise RubricDiscarded("empty_source", f"the rubric {row.rubric} does not exist")
        known = parent.criteria if parent is not None else ()
        responses = [one[: parameters.response_characters] for one in row.responses[: parameters.shown]]
        drafts = await self._write_drafts(row, responses, known, writer)
        grades = await self._grades(row, responses, drafts, writer)
        discriminating = [draft for draft in drafts if max(grades[draft]) - min(grades[draft]) >= parameters.min_spread]
        if not discriminating:
            raise RubricDiscarded("no_contrast", f"each of the {len(drafts)} new criteria grades all responses alike")
        criteria = self._merge_criteria(known, discriminating)
        table: list[JsonValue] = [{"criterion": draft.description, "grades": [*grades[draft]]} for draft in drafts]
        made = await self.finish(
            writer,
            criteria,
            {**(parent.metadata if parent is not None else {}), "question": row.question},
            judged=criteria[-len(discriminating) :],
            record={"responses": len(responses), "grades": table},
            flags=["new_rubric"] if parent is None else [],
        )
        return made if parent is None else replace(made, name=parent.name, parent_reference=parent.reference)

    async def _write_drafts(
        self, row: EvolvingRow, responses: list[str], known: tuple[Criterion, ...], writer: Writer
    ) -> list[Draft]:
        """Write new criteria and drop those that repeat one of the rubric's."""
        parameters = self.parameters
        written = await self.write_criteria(
            writer,
            EvolvingRubric,
            "evolving.rubric",
            (parameters.min_criteria, parameters.max_criteria),
            question=row.question,
            responses=responses,
            known=[one.description for one in known] if parameters.show_known else [],
        )
        drafts = [_draft(number, item) for number, item in enumerate(written.criteria, 1)]
        check_drafts(drafts, weights=(-1, 1), references=responses, positive=not known)
        known_texts = {tuple(words(one.description)) for one in known}
        new = [draft for draft in drafts if tuple(words(draft.description)) not in known_texts]
        if not new:
            raise RubricDiscarded("duplicate_criteria", "the rubric already has all of the new criteria")
        return new

    async def _grades(
        self, row: EvolvingRow, responses: list[str], drafts: list[Draft], writer: Writer
    ) -> dict[Draft, list[int]]:
        """Grade every response by every criterion.

        All calls about one response run in a row because their prompts share a prefix.
        """
        labels = [str(grade) for grade in range(self.parameters.scale + 1)]
        grades: dict[Draft, list[int]] = {draft: [] for draft in drafts}
        for response in responses:
            for draft in drafts:
                prompt = self.prompt_templates(
                    "evolving.grade",
                    question=row.question,
                    response=response,
                    description=draft.description,
                    scale=self.parameters.scale,
                )
                grade = await writer.choose(labels, prompt, system=self.prompt_templates("checker.system"))
                grades[draft].append(int(grade))
        return grades

    def _merge_criteria(self, known: tuple[Criterion, ...], new: list[Draft]) -> tuple[Criterion, ...]:
        """Append the new criteria to the rubric; keep only the newest of the older evolved ones, with their ids."""
        added = [
            Criterion(
                id="evolved-" + hashlib.sha256(" ".join(words(draft.description)).encode()).hexdigest()[:12],
                description=draft.description,
                weight=draft.weight,
                scale=self.parameters.scale,
                tags=(EVOLVED_TAG,),
            )
            for draft in new
        ]
        older = [one for one in known if EVOLVED_TAG in one.tags]
        remaining = max(0, self.parameters.max_evolved - len(added))
        retained = older[len(older) - remaining :] if remaining < len(older) else older
        return (*(one for one in known if EVOLVED_TAG not in one.tags or one in retained), *added)


def _draft(number: int, item: EvolvingItem) -> Draft:
    if item.sign not in ("positive", "negative"):
        raise RubricDiscarded("unknown_kind", f"criterion {number} is {item.sign!r}, not positive or negative")
    if named := _OTHER_RESPONSE.search(item.description):
        raise RubricDiscarded(
            "not_self_contained", f"criterion {number} mentions {named[0]!r}, which its reader does not see"
        )
    return Draft(item.description, weight=1.0 if item.sign == "positive" else -1.0)
