"""`points` (RuscaRL): HealthBench-like criteria with points from -10 to 10, from an ideal answer."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from judge_server.generation.generator import Made
from judge_server.generation.kinds.answers import ANSWER_WORDING, write_answer
from judge_server.generation.kinds.base import QuestionRow, ReferenceAnswer, WordedGenerator, WritingParameters
from judge_server.generation.kinds.shapes import Line, whole, with_criteria
from judge_server.generation.structure import Draft, Rules, check_drafts, named_by_kind
from judge_server.generation.wording import Wording
from judge_server.generation.writer import Writer
from trainer_client.wire import Criterion, RubricContent

MOST_POINTS = 10


class PointsRow(QuestionRow):
    """A question or a conversation, and an ideal answer, if there is one."""

    ideal_answer: ReferenceAnswer = None


class PointsParameters(WritingParameters):
    """`fewest` and `most` criteria."""

    fewest: int = Field(default=3, ge=1, le=20)
    most: int = Field(default=10, ge=1, le=20)


class PointsItem(BaseModel):
    """A criterion as the model writes it."""

    description: Line
    points: Annotated[float, whole(-MOST_POINTS, MOST_POINTS)]


class PointsRubric(BaseModel):
    """What the model writes."""

    criteria: list[PointsItem]


class PointsGenerator(WordedGenerator[PointsRow, PointsParameters]):
    """The ideal answer, written if there is none; then criteria with points, at least one of them positive."""

    kind = "points"
    summary = "criteria with points from -10 to 10, from an ideal answer that is written where none is given (RuscaRL)"
    Input = PointsRow
    Parameters = PointsParameters
    steps: ClassVar[tuple[str, ...]] = ("answer", "rubric", "check", "validity")
    wording = Wording("author.system", "points.rubric", *ANSWER_WORDING.names)

    def source_of(self, row: PointsRow) -> str:
        """The question."""
        return row.question

    async def make(self, row: PointsRow, writer: Writer) -> Made:
        """Make one rubric; see `Generator.make`."""
        told = self.parameters
        ideal = row.ideal_answer or await write_answer(
            writer,
            row.question,
            wording=self.wording,
            max_tokens=told.answer_tokens,
            temperature=0.0,
            seed=told.seed,
        )
        criteria = await self._criteria(row, ideal, writer)
        kept, flags = await self.validity(writer, criteria, question=row.question, correct=row.ideal_answer)
        return Made(
            content=RubricContent(criteria=criteria),
            metadata={"question": row.question, **kept},
            record={"ideal_answer": ideal, "ideal_answer_given": row.ideal_answer is not None},
            flags=flags,
        )

    async def _criteria(self, row: PointsRow, ideal: str, writer: Writer) -> tuple[Criterion, ...]:
        told = self.parameters
        prompt = self.wording(
            "points.rubric", question=row.question, ideal_answer=ideal, fewest=told.fewest, most=told.most
        )
        written = await self.drafted(writer, with_criteria(PointsRubric, told.fewest, told.most), prompt)
        drafts = [Draft(item.description, weight=item.points) for item in written.criteria]
        rules = Rules(told.fewest, told.most, ("point",), -MOST_POINTS, MOST_POINTS)
        check_drafts(drafts, rules, references=[ideal])
        return named_by_kind(drafts)
