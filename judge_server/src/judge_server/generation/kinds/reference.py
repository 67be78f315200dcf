"""`reference` (RGR-GRPO): factual and process criteria from a reference answer that agrees with the ground truth."""

from typing import Annotated

from pydantic import BaseModel, Field

from judge_server.generation.generator import (
    AGREEMENT_PROMPTS,
    ANSWER_PROMPTS,
    GeneratedRubric,
    Generator,
    GroundTruth,
    Parameters,
    QuestionRow,
    ReferenceAnswer,
    Sentence,
    enum_schema,
    integer_schema,
)
from judge_server.generation.structure import Draft, check_drafts, contains_result, criteria_from_drafts
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import RubricDiscarded, Writer
from trainer_client.wire import Criterion


class ReferenceRow(QuestionRow):
    """A question, its known final answer and, optionally, a worked-out answer."""

    ground_truth: GroundTruth
    reference_answer: ReferenceAnswer = None


class ReferenceParameters(Parameters):
    """Bounds of a rubric.

    Attributes:
        min_criteria, max_criteria: minimum and maximum number of criteria.
        reference_characters: maximum length of a reference answer; an input with a longer one is discarded.
    """

    min_criteria: int = Field(default=3, ge=1, le=10)
    max_criteria: int = Field(default=10, ge=1, le=10)
    reference_characters: int = Field(default=8_000, ge=1)


class ReferenceItem(BaseModel):
    """A criterion as the model writes it."""

    kind: Annotated[str, enum_schema("process", "factual")]
    description: Sentence
    weight: Annotated[float, integer_schema(1, 5)]


class ReferenceRubric(BaseModel):
    """The model's output."""

    criteria: list[ReferenceItem]


class ReferenceGenerator(Generator[ReferenceRow, ReferenceParameters]):
    """Verifies a reference answer, then writes factual and process criteria with weights from 1 to 5."""

    kind = "reference"
    summary = "factual and process criteria from a reference answer that is verified against the ground truth (RGR)"
    Input = ReferenceRow
    Parameters = ReferenceParameters
    steps = ("answer", "verify", "rubric", "check", "validity")
    prompt_templates = GeneratorTemplates("author.system", "reference.rubric", *ANSWER_PROMPTS, *AGREEMENT_PROMPTS)

    async def make(self, row: ReferenceRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`. Flag: `result_not_named`, if no factual criterion names the result."""
        reference = await self._verified_reference(row, writer)
        criteria = await self._criteria(row, reference, writer)
        facts = [one.description for one in criteria if one.kind == "factual"]
        named = any(contains_result(fact, row.ground_truth) for fact in facts)
        return await self.finish(
            writer,
            criteria,
            {"question": row.question, "ground_truth": row.ground_truth},
            correct=row.ground_truth,
            record={"reference_answer": reference, "reference_answer_given": row.reference_answer is not None},
            flags=[] if named else ["result_not_named"],
        )

    async def _verified_reference(self, row: ReferenceRow, writer: Writer) -> str:
        reference = row.reference_answer or await self.write_answer(writer, row.question)
        limit = self.parameters.reference_characters
        if len(reference) > limit:
            raise RubricDiscarded(
                "too_long", f"the reference answer has {len(reference)} characters; the limit is {limit}"
            )
        agreement = await self.answers.compare(writer, reference, question=row.question, ground_truth=row.ground_truth)
        if agreement != "right":
            fault = "is not right" if agreement == "wrong" else "states no final answer that can be compared"
            raise RubricDiscarded(
                "wrong_reference_answer", f"the reference answer {fault}; it ends {reference[-80:]!r}"
            )
        return reference

    async def _criteria(self, row: ReferenceRow, reference: str, writer: Writer) -> tuple[Criterion, ...]:
        written = await self.write_criteria(
            writer,
            ReferenceRubric,
            "reference.rubric",
            (self.parameters.min_criteria, self.parameters.max_criteria),
            question=row.question,
            reference_answer=reference,
            ground_truth=row.ground_truth,
        )
        drafts = [
            Draft(_without_prefix(item.description), item.kind.strip().casefold(), item.weight)
            for item in written.criteria
        ]
        check_drafts(drafts, kinds=("factual", "process"), weights=(1, 5), references=[reference])
        return criteria_from_drafts(drafts)


def _without_prefix(description: str) -> str:
    """Remove the paper's prefix, such as `Factual Criteria:`, which the criterion's kind already states."""
    for prefix in ("Factual Criteria:", "Process Criteria:"):
        if description.strip().casefold().startswith(prefix.casefold()):
            return description.strip()[len(prefix) :].strip()
    return description.strip()
