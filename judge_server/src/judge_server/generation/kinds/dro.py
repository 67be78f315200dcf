"""`gate` and `graded`: DRO's yes/no criteria, and the graded rubrics that DRO compares itself with.

`gate` keeps only those yes/no criteria that the reference answer satisfies. `graded` writes positive and negative
criteria for graded judging.
"""

from typing import Annotated

from pydantic import BaseModel, Field, JsonValue, WithJsonSchema

from judge_server.generation.generator import (
    AnsweredRow,
    GeneratedRubric,
    Generator,
    Parameters,
    Sentence,
    bounded,
)
from judge_server.generation.structure import Draft, check_drafts, criteria_from_drafts
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import RubricDiscarded, Writer

Reason = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 100})]


class GateParameters(Parameters):
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


class GateGenerator(Generator[AnsweredRow, GateParameters]):
    """Writes yes/no questions about a response and drops those that the reference answer does not satisfy."""

    kind = "gate"
    summary = "yes/no criteria that the reference answer satisfies (DRO)"
    Input = AnsweredRow
    Parameters = GateParameters
    steps = ("rubric", "check", "satisfied", "validity")
    prompt_templates = GeneratorTemplates("author.system", "checker.system", "gate.rubric", "gate.check")

    async def make(self, row: AnsweredRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`."""
        shown = {"question": row.question, "reference_answer": row.reference_answer}
        bounds = (self.parameters.min_criteria, self.parameters.max_criteria)
        written = await self.write_criteria(writer, GateRubric, "gate.rubric", bounds, **shown)
        drafts = [Draft(text) for text in written.criteria]
        check_drafts(drafts, weights=(1, 1), references=[row.reference_answer])
        verdicts = await self._judge_drafts(row, drafts, writer)
        judged = list(zip(drafts, verdicts, strict=True))
        kept = [draft for draft, verdict in judged if verdict.satisfied]
        if len(kept) < self.parameters.kept:
            raise RubricDiscarded(
                "not_satisfied_by_reference",
                f"the reference answer satisfies {len(kept)} of {len(drafts)} criteria; "
                f"at least {self.parameters.kept} are required",
            )
        dropped: list[JsonValue] = [
            {"criterion": draft.description, "justification": verdict.justification}
            for draft, verdict in judged
            if not verdict.satisfied
        ]
        return await self.finish(
            writer,
            criteria_from_drafts(kept),
            {"question": row.question},
            correct=row.reference_answer,
            record={"reference_answer": row.reference_answer, "dropped": dropped},
        )

    async def _judge_drafts(self, row: AnsweredRow, drafts: list[Draft], writer: Writer) -> list[GateVerdict]:
        """Judge all criteria in one call and return the verdicts in order.

        Discards the rubric if the output repeats or omits a criterion.
        """
        prompt = self.prompt_templates(
            "gate.check",
            question=row.question,
            reference_answer=row.reference_answer,
            criteria=[draft.description for draft in drafts],
        )
        shape = bounded(GateVerdicts, criteria=(len(drafts), len(drafts)))
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


class GradedParameters(Parameters):
    """At least `min_criteria` positive criteria, at most `max_criteria` of each sign; the highest grade is `scale`."""

    min_criteria: int = Field(default=2, ge=1, le=8)
    max_criteria: int = Field(default=5, ge=1, le=8)
    scale: int = Field(default=4, ge=1, le=100)


class GradedRubric(BaseModel):
    """The model's output."""

    positive: list[Sentence]
    negative: Annotated[list[Sentence], Field(json_schema_extra={"minItems": 1})]  # asked for, but not required


class GradedGenerator(Generator[AnsweredRow, GradedParameters]):
    """Writes positive criteria of weight 1 and negative ones of weight -1.

    The reward mode `graded_mean` inverts the grades of negative criteria.
    """

    kind = "graded"
    summary = "positive and negative criteria for graded judging, from a good answer (RaR, RLER)"
    Input = AnsweredRow
    Parameters = GradedParameters
    steps = ("rubric", "check", "validity")
    prompt_templates = GeneratorTemplates("author.system", "graded.rubric")

    async def make(self, row: AnsweredRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`."""
        least, most = self.parameters.min_criteria, self.parameters.max_criteria
        prompt = self.prompt_templates(
            "graded.rubric",
            question=row.question,
            reference_answer=row.reference_answer,
            min_criteria=least,
            max_criteria=most,
        )
        shape = bounded(GradedRubric, positive=(least, most), negative=(0, most))
        written = await self.write_draft(writer, shape, prompt)
        drafts = [Draft(text) for text in written.positive] + [Draft(text, weight=-1.0) for text in written.negative]
        check_drafts(drafts, weights=(-1, 1), references=[row.reference_answer])
        return await self.finish(
            writer,
            criteria_from_drafts(drafts, _sign, scale=self.parameters.scale),
            {"question": row.question},
            correct=row.reference_answer,
            record={"reference_answer": row.reference_answer},
        )


def _sign(draft: Draft) -> str:
    return "positive" if draft.weight > 0 else "negative"
