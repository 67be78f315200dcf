"""`gate` and `graded`: DRO's yes/no criteria, and the graded rubrics that DRO compares itself with.

`gate` keeps only those yes/no criteria that the reference answer satisfies. `graded` writes positive and negative
criteria for graded judging.
"""

from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, JsonValue, WithJsonSchema, create_model

from judge_server.generation.kinds.base import (
    REFERENCE_ANSWER_ALIASES,
    QuestionRow,
    Sentence,
    TemplateGenerator,
    Text,
    WritingParameters,
    list_schema,
    with_criteria,
)
from judge_server.generation.structure import Draft, RubricRules, check_drafts, criteria_from_drafts
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import GeneratedRubric, RubricDiscarded, Writer
from trainer_client.wire import Criterion, RubricContent

Reason = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 100})]


class GateRow(QuestionRow):
    """A question and a good answer to it."""

    reference_answer: Annotated[Text, REFERENCE_ANSWER_ALIASES]


class GateParameters(WritingParameters):
    """How many criteria are written, `min_criteria` to `max_criteria`, and how many of them must remain: `kept`."""

    min_criteria: int = Field(default=3, ge=1, le=16)
    max_criteria: int = Field(default=8, ge=1, le=16)
    kept: int = Field(default=2, ge=1, le=16)


class GateRubric(BaseModel):
    """The model's output."""

    criteria: list[Sentence]


class GateVerdict(BaseModel):
    """Whether the reference answer satisfies one criterion."""

    id: int
    satisfied: bool
    justification: Reason


class GateVerdicts(BaseModel):
    """The verdicts of one call on all criteria."""

    criteria: list[GateVerdict]


class GateGenerator(TemplateGenerator[GateRow, GateParameters]):
    """Writes yes/no questions about a response and drops those that the reference answer does not satisfy."""

    kind = "gate"
    summary = "yes/no criteria that the reference answer satisfies (DRO)"
    Input = GateRow
    Parameters = GateParameters
    steps: ClassVar[tuple[str, ...]] = ("rubric", "check", "satisfied", "validity")
    prompt_templates = GeneratorTemplates("author.system", "checker.system", "gate.rubric", "gate.check")

    def source_of(self, row: GateRow) -> str:
        """Return the question."""
        return row.question

    async def make(self, row: GateRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`."""
        drafts = await self._write_drafts(row, writer)
        verdicts = await self._judge_drafts(row, drafts, writer)
        kept = [draft for draft, verdict in zip(drafts, verdicts, strict=True) if verdict.satisfied]
        if len(kept) < self.parameters.kept:
            raise RubricDiscarded(
                "not_satisfied_by_reference",
                f"the reference answer satisfies {len(kept)} of {len(drafts)} criteria; "
                f"at least {self.parameters.kept} are required",
            )
        criteria = criteria_from_drafts(kept)
        kept_metadata, flags = await self.validity(
            writer, criteria, question=row.question, correct=row.reference_answer
        )
        dropped: list[JsonValue] = [
            {"criterion": draft.description, "justification": verdict.justification}
            for draft, verdict in zip(drafts, verdicts, strict=True)
            if not verdict.satisfied
        ]
        return GeneratedRubric(
            content=RubricContent(criteria=criteria),
            metadata={"question": row.question, **kept_metadata},
            record={"reference_answer": row.reference_answer, "dropped": dropped},
            flags=flags,
        )

    async def _write_drafts(self, row: GateRow, writer: Writer) -> list[Draft]:
        parameters = self.parameters
        prompt = self.prompt_templates(
            "gate.rubric",
            question=row.question,
            reference_answer=row.reference_answer,
            min_criteria=parameters.min_criteria,
            max_criteria=parameters.max_criteria,
        )
        written = await self.write_draft(
            writer, with_criteria(GateRubric, parameters.min_criteria, parameters.max_criteria), prompt
        )
        drafts = [Draft(text) for text in written.criteria]
        check_drafts(
            drafts,
            RubricRules(parameters.min_criteria, parameters.max_criteria, ("point",), 1, 1),
            references=[row.reference_answer],
        )
        return drafts

    async def _judge_drafts(self, row: GateRow, drafts: list[Draft], writer: Writer) -> list[GateVerdict]:
        """Judge all criteria in one call and return the verdicts in order.

        Discards the rubric if the output repeats or omits a criterion.
        """
        prompt = self.prompt_templates(
            "gate.check",
            question=row.question,
            reference_answer=row.reference_answer,
            criteria=[draft.description for draft in drafts],
        )
        shape = with_criteria(GateVerdicts, len(drafts), len(drafts))
        verdicts = await writer.write_json(
            shape, prompt, system=self.prompt_templates("checker.system"), max_tokens=self.parameters.rubric_tokens
        )
        by_number = {verdict.id: verdict for verdict in verdicts.criteria}
        if sorted(by_number) != list(range(1, len(drafts) + 1)):
            raise RubricDiscarded(
                "wrong_shape",
                f"the verdicts are on criteria {[one.id for one in verdicts.criteria]}, not on 1 to {len(drafts)}",
            )
        return [by_number[number] for number in range(1, len(drafts) + 1)]


class GradedRow(QuestionRow):
    """A question and a good answer to it."""

    reference_answer: Annotated[Text, REFERENCE_ANSWER_ALIASES]


class GradedParameters(WritingParameters):
    """At least `min_criteria` positive criteria, at most `max_criteria` of each sign; the highest grade is `scale`."""

    min_criteria: int = Field(default=2, ge=1, le=8)
    max_criteria: int = Field(default=5, ge=1, le=8)
    scale: int = Field(default=4, ge=1, le=100)


class GradedRubric(BaseModel):
    """The model's output."""

    positive: list[Sentence]
    negative: list[Sentence]


@cache
def graded_rubric(min_criteria: int, max_criteria: int) -> type[GradedRubric]:
    """Derive the shape with `min_criteria` to `max_criteria` positive and 1 to `max_criteria` negative criteria."""
    positive: Any = (Annotated[list[Sentence], list_schema(Sentence, min_criteria, max_criteria)], ...)
    negative: Any = (Annotated[list[Sentence], list_schema(Sentence, 1, max_criteria)], ...)
    return create_model(
        f"GradedRubricOf{min_criteria}To{max_criteria}", __base__=GradedRubric, positive=positive, negative=negative
    )


class GradedGenerator(TemplateGenerator[GradedRow, GradedParameters]):
    """Writes positive criteria of weight 1 and negative ones of weight -1.

    The reward mode `graded_mean` inverts the grades of negative criteria.
    """

    kind = "graded"
    summary = "positive and negative criteria for graded judging, from a good answer (RaR, RLER)"
    Input = GradedRow
    Parameters = GradedParameters
    steps: ClassVar[tuple[str, ...]] = ("rubric", "check", "validity")
    prompt_templates = GeneratorTemplates("author.system", "graded.rubric")

    def source_of(self, row: GradedRow) -> str:
        """Return the question."""
        return row.question

    async def make(self, row: GradedRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`."""
        parameters = self.parameters
        prompt = self.prompt_templates(
            "graded.rubric",
            question=row.question,
            reference_answer=row.reference_answer,
            min_criteria=parameters.min_criteria,
            max_criteria=parameters.max_criteria,
        )
        written = await self.write_draft(
            writer, graded_rubric(parameters.min_criteria, parameters.max_criteria), prompt
        )
        _check_counts(written, parameters)
        signed = [(text, 1.0) for text in written.positive] + [(text, -1.0) for text in written.negative]
        drafts = [Draft(text, weight=sign) for text, sign in signed]
        check_drafts(
            drafts,
            RubricRules(parameters.min_criteria, 2 * parameters.max_criteria, ("point",), -1, 1),
            references=[row.reference_answer],
        )
        criteria = _criteria(drafts, parameters.scale)
        kept, flags = await self.validity(writer, criteria, question=row.question, correct=row.reference_answer)
        return GeneratedRubric(
            content=RubricContent(criteria=criteria),
            metadata={"question": row.question, **kept},
            record={"reference_answer": row.reference_answer},
            flags=flags,
        )


def _check_counts(written: GradedRubric, parameters: GradedParameters) -> None:
    if len(written.positive) < parameters.min_criteria:
        raise RubricDiscarded(
            "too_few",
            f"there are {len(written.positive)} positive criteria; at least {parameters.min_criteria} are required",
        )
    for sign, texts in (("positive", written.positive), ("negative", written.negative)):
        if len(texts) > parameters.max_criteria:
            raise RubricDiscarded(
                "too_many", f"there are {len(texts)} {sign} criteria; the limit is {parameters.max_criteria}"
            )


def _criteria(drafts: list[Draft], scale: int) -> tuple[Criterion, ...]:
    """Turn checked drafts into criteria with the ids `positive-1`, `negative-1`, …"""
    seen = {"positive": 0, "negative": 0}
    criteria = []
    for draft in drafts:
        sign = "positive" if draft.weight > 0 else "negative"
        seen[sign] += 1
        fields = {"description": draft.description, "weight": draft.weight, "scale": scale}
        criteria.append(Criterion.model_validate({"id": f"{sign}-{seen[sign]}", **fields}))
    return tuple(criteria)
