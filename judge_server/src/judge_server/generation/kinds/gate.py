"""`gate` (DRO): yes/no criteria, of which those stay that the reference answer satisfies."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field, JsonValue, WithJsonSchema

from judge_server.generation.discards import RubricDiscarded
from judge_server.generation.generator import GeneratedRubric
from judge_server.generation.kinds.base import (
    REFERENCE_ANSWER_ALIASES,
    QuestionRow,
    TemplateGenerator,
    Text,
    WritingParameters,
)
from judge_server.generation.kinds.shapes import Sentence, with_criteria
from judge_server.generation.structure import Draft, RubricRules, check_drafts, criteria_from_drafts
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer
from trainer_client.wire import RubricContent

Reason = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 100})]


class GateRow(QuestionRow):
    """A question and a good answer to it."""

    reference_answer: Annotated[Text, REFERENCE_ANSWER_ALIASES]


class GateParameters(WritingParameters):
    """`fewest` and `most` criteria that are written, and how many of them must be `kept`."""

    fewest: int = Field(default=3, ge=1, le=16)
    most: int = Field(default=8, ge=1, le=16)
    kept: int = Field(default=2, ge=1, le=16)


class GateRubric(BaseModel):
    """What the model writes."""

    criteria: list[Sentence]


class GateVerdict(BaseModel):
    """Whether the reference answer satisfies one criterion."""

    id: int
    satisfied: bool
    justification: Reason


class GateVerdicts(BaseModel):
    """One call's verdicts on all criteria."""

    criteria: list[GateVerdict]


class GateGenerator(TemplateGenerator[GateRow, GateParameters]):
    """Yes/no questions about a response; those on which the reference answer does not earn a yes are dropped."""

    kind = "gate"
    summary = "yes/no criteria that the reference answer satisfies (DRO)"
    Input = GateRow
    Parameters = GateParameters
    steps: ClassVar[tuple[str, ...]] = ("rubric", "check", "satisfied", "validity")
    prompt_templates = GeneratorTemplates("author.system", "checker.system", "gate.rubric", "gate.check")

    def source_of(self, row: GateRow) -> str:
        """The question."""
        return row.question

    async def make(self, row: GateRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`."""
        drafts = await self._write_drafts(row, writer)
        verdicts = await self._judge_drafts(row, drafts, writer)
        kept = [draft for draft, verdict in zip(drafts, verdicts, strict=True) if verdict.satisfied]
        if len(kept) < self.parameters.kept:
            raise RubricDiscarded(
                "not_satisfied_by_reference",
                f"the reference answer satisfies {len(kept)} of {len(drafts)} criteria, not {self.parameters.kept}",
            )
        criteria = criteria_from_drafts(kept)
        parameters, flags = await self.validity(writer, criteria, question=row.question, correct=row.reference_answer)
        dropped: list[JsonValue] = [
            {"criterion": draft.description, "justification": verdict.justification}
            for draft, verdict in zip(drafts, verdicts, strict=True)
            if not verdict.satisfied
        ]
        return GeneratedRubric(
            content=RubricContent(criteria=criteria),
            metadata={"question": row.question, **parameters},
            record={"reference_answer": row.reference_answer, "dropped": dropped},
            flags=flags,
        )

    async def _write_drafts(self, row: GateRow, writer: Writer) -> list[Draft]:
        parameters = self.parameters
        prompt = self.prompt_templates(
            "gate.rubric",
            question=row.question,
            reference_answer=row.reference_answer,
            fewest=parameters.fewest,
            most=parameters.most,
        )
        written = await self.write_draft(writer, with_criteria(GateRubric, parameters.fewest, parameters.most), prompt)
        drafts = [Draft(text) for text in written.criteria]
        check_drafts(
            drafts, RubricRules(parameters.fewest, parameters.most, ("point",), 1, 1), references=[row.reference_answer]
        )
        return drafts

    async def _judge_drafts(self, row: GateRow, drafts: list[Draft], writer: Writer) -> list[GateVerdict]:
        """A verdict a criterion, in order, from one call; one that names a criterion twice or not at all is refused."""
        prompt = self.prompt_templates(
            "gate.check",
            question=row.question,
            reference_answer=row.reference_answer,
            criteria=[draft.description for draft in drafts],
        )
        shape = with_criteria(GateVerdicts, len(drafts), len(drafts))
        verdicts = await writer.written(
            shape, prompt, system=self.prompt_templates("checker.system"), max_tokens=self.parameters.rubric_tokens
        )
        by_number = {verdict.id: verdict for verdict in verdicts.criteria}
        if sorted(by_number) != list(range(1, len(drafts) + 1)):
            raise RubricDiscarded(
                "wrong_shape", f"the verdicts are on criteria {[one.id for one in verdicts.criteria]}"
            )
        return [by_number[number] for number in range(1, len(drafts) + 1)]
