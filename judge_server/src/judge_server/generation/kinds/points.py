"""`points` (RuscaRL): criteria in the manner of HealthBench, with points from -10 to 10, from an ideal answer."""

from typing import Annotated

from pydantic import BaseModel, Field

from judge_server.generation.generator import (
    ANSWER_PROMPTS,
    GeneratedRubric,
    Generator,
    Parameters,
    QuestionRow,
    ReferenceAnswer,
    Sentence,
    integer_schema,
)
from judge_server.generation.structure import Draft, check_drafts, criteria_from_drafts
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer

MAX_POINTS = 10


class PointsRow(QuestionRow):
    """A question or a conversation and, optionally, an ideal answer."""

    ideal_answer: ReferenceAnswer = None


class PointsParameters(Parameters):
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


class PointsGenerator(Generator[PointsRow, PointsParameters]):
    """Writes an ideal answer if the input has none, then criteria with points, at least one of them positive."""

    kind = "points"
    summary = "criteria with points from -10 to 10, from an ideal answer that is written where none is given (RuscaRL)"
    Input = PointsRow
    Parameters = PointsParameters
    steps = ("answer", "rubric", "check", "validity")
    prompt_templates = GeneratorTemplates("author.system", "points.rubric", *ANSWER_PROMPTS)

    async def make(self, row: PointsRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`."""
        ideal = row.ideal_answer or await self.write_answer(writer, row.question)
        bounds = (self.parameters.min_criteria, self.parameters.max_criteria)
        written = await self.write_criteria(
            writer, PointsRubric, "points.rubric", bounds, question=row.question, ideal_answer=ideal
        )
        drafts = [Draft(item.description, weight=item.points) for item in written.criteria]
        check_drafts(drafts, weights=(-MAX_POINTS, MAX_POINTS), references=[ideal])
        return await self.finish(
            writer,
            criteria_from_drafts(drafts),
            {"question": row.question},
            correct=row.ideal_answer,
            record={"ideal_answer": ideal, "ideal_answer_given": row.ideal_answer is not None},
        )
