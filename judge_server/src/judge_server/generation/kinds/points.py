"""`points` (RuscaRL): criteria in the manner of HealthBench, with points from -10 to 10, from an ideal answer."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from judge_server.generation.kinds.base import (
    ANSWER_PROMPTS,
    QuestionRow,
    ReferenceAnswer,
    Sentence,
    TemplateGenerator,
    WritingParameters,
    integer_schema,
    with_criteria,
    write_answer,
)
from judge_server.generation.structure import Draft, RubricRules, check_drafts, criteria_from_drafts
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import GeneratedRubric, Writer
from trainer_client.wire import Criterion, RubricContent

MAX_POINTS = 10


class PointsRow(QuestionRow):
    """A question or a conversation and, optionally, an ideal answer."""

    ideal_answer: ReferenceAnswer = None


class PointsParameters(WritingParameters):
    """The minimum and maximum number of criteria, `min_criteria` and `max_criteria`."""

    min_criteria: int = Field(default=3, ge=1, le=20)
    max_criteria: int = Field(default=10, ge=1, le=20)


class PointsItem(BaseModel):
    """A criterion as the model writes it."""

    description: Sentence
    points: Annotated[float, integer_schema(-MAX_POINTS, MAX_POINTS)]


class PointsRubric(BaseModel):
    """The model's output."""

    criteria: list[PointsItem]


class PointsGenerator(TemplateGenerator[PointsRow, PointsParameters]):
    """Writes an ideal answer if the input has none, then criteria with points, at least one of them positive."""

    kind = "points"
    summary = "criteria with points from -10 to 10, from an ideal answer that is written where none is given (RuscaRL)"
    Input = PointsRow
    Parameters = PointsParameters
    steps: ClassVar[tuple[str, ...]] = ("answer", "rubric", "check", "validity")
    prompt_templates = GeneratorTemplates("author.system", "points.rubric", *ANSWER_PROMPTS.names)

    def source_of(self, row: PointsRow) -> str:
        """Return the question."""
        return row.question

    async def make(self, row: PointsRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`."""
        parameters = self.parameters
        ideal = row.ideal_answer or await write_answer(
            writer,
            row.question,
            prompt_templates=self.prompt_templates,
            max_tokens=parameters.answer_tokens,
            temperature=0.0,
            seed=parameters.seed,
        )
        criteria = await self._criteria(row, ideal, writer)
        kept, flags = await self.validity(writer, criteria, question=row.question, correct=row.ideal_answer)
        return GeneratedRubric(
            content=RubricContent(criteria=criteria),
            metadata={"question": row.question, **kept},
            record={"ideal_answer": ideal, "ideal_answer_given": row.ideal_answer is not None},
            flags=flags,
        )

    async def _criteria(self, row: PointsRow, ideal: str, writer: Writer) -> tuple[Criterion, ...]:
        parameters = self.parameters
        prompt = self.prompt_templates(
            "points.rubric",
            question=row.question,
            ideal_answer=ideal,
            min_criteria=parameters.min_criteria,
            max_criteria=parameters.max_criteria,
        )
        written = await self.write_draft(
            writer, with_criteria(PointsRubric, parameters.min_criteria, parameters.max_criteria), prompt
        )
        drafts = [Draft(item.description, weight=item.points) for item in written.criteria]
        rules = RubricRules(parameters.min_criteria, parameters.max_criteria, ("point",), -MAX_POINTS, MAX_POINTS)
        check_drafts(drafts, rules, references=[ideal])
        return criteria_from_drafts(drafts)
