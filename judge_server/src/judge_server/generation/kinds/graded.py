"""`graded` (the graded rubrics DRO compares itself with): positive and negative criteria for graded judging."""

from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, create_model

from judge_server.generation.discards import RubricDiscarded
from judge_server.generation.generator import GeneratedRubric
from judge_server.generation.kinds.base import (
    REFERENCE_ANSWER_ALIASES,
    QuestionRow,
    TemplateGenerator,
    Text,
    WritingParameters,
)
from judge_server.generation.kinds.shapes import Sentence, list_schema
from judge_server.generation.structure import Draft, RubricRules, check_drafts
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer
from trainer_client.wire import Criterion, RubricContent


class GradedRow(QuestionRow):
    """A question and a good answer to it."""

    reference_answer: Annotated[Text, REFERENCE_ANSWER_ALIASES]


class GradedParameters(WritingParameters):
    """`fewest` positive criteria, at most `most` of either sign, and the highest grade, `scale`."""

    fewest: int = Field(default=2, ge=1, le=8)
    most: int = Field(default=5, ge=1, le=8)
    scale: int = Field(default=4, ge=1, le=100)


class GradedRubric(BaseModel):
    """What the model writes."""

    positive: list[Sentence]
    negative: list[Sentence]


@cache
def graded_rubric(fewest: int, most: int) -> type[GradedRubric]:
    """The shape with its bounds."""
    positive: Any = (Annotated[list[Sentence], list_schema(Sentence, fewest, most)], ...)
    negative: Any = (Annotated[list[Sentence], list_schema(Sentence, 1, most)], ...)
    return create_model(f"GradedRubricOf{fewest}To{most}", __base__=GradedRubric, positive=positive, negative=negative)


class GradedGenerator(TemplateGenerator[GradedRow, GradedParameters]):
    """Positive criteria weigh 1, negative ones -1: the reward mode `graded_mean` counts those inversely."""

    kind = "graded"
    summary = "positive and negative criteria for graded judging, from a good answer (RaR, RLER)"
    Input = GradedRow
    Parameters = GradedParameters
    steps: ClassVar[tuple[str, ...]] = ("rubric", "check", "validity")
    prompt_templates = GeneratorTemplates("author.system", "graded.rubric")

    def source_of(self, row: GradedRow) -> str:
        """The question."""
        return row.question

    async def make(self, row: GradedRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`."""
        parameters = self.parameters
        prompt = self.prompt_templates(
            "graded.rubric",
            question=row.question,
            reference_answer=row.reference_answer,
            fewest=parameters.fewest,
            most=parameters.most,
        )
        written = await self.write_draft(writer, graded_rubric(parameters.fewest, parameters.most), prompt)
        _check_counts(written, parameters)
        signed = [(text, 1.0) for text in written.positive] + [(text, -1.0) for text in written.negative]
        drafts = [Draft(text, weight=sign) for text, sign in signed]
        check_drafts(
            drafts,
            RubricRules(parameters.fewest, 2 * parameters.most, ("point",), -1, 1),
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
    if len(written.positive) < parameters.fewest:
        raise RubricDiscarded(
            "too_few", f"{len(written.positive)} positive criteria; at least {parameters.fewest} are needed"
        )
    for sign, texts in (("positive", written.positive), ("negative", written.negative)):
        if len(texts) > parameters.most:
            raise RubricDiscarded("too_many", f"{len(texts)} {sign} criteria, and at most {parameters.most} are taken")


def _criteria(drafts: list[Draft], scale: int) -> tuple[Criterion, ...]:
    """Criteria of drafts that were checked, called `positive-1`, `negative-1`, …"""
    seen = {"positive": 0, "negative": 0}
    made = []
    for draft in drafts:
        sign = "positive" if draft.weight > 0 else "negative"
        seen[sign] += 1
        fields = {"description": draft.description, "weight": draft.weight, "scale": scale}
        made.append(Criterion.model_validate({"id": f"{sign}-{seen[sign]}", **fields}))
    return tuple(made)
