"""`reference` (RGR-GRPO): factual and process criteria from a reference answer that agrees with the ground truth."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from judge_server.generation.discards import Discarded
from judge_server.generation.generator import Find, Made
from judge_server.generation.kinds.answers import AGREEMENT_WORDING, ANSWER_WORDING, Agreements, write_answer
from judge_server.generation.kinds.base import (
    GroundTruth,
    QuestionRow,
    ReferenceAnswer,
    WordedGenerator,
    WritingParameters,
)
from judge_server.generation.kinds.shapes import Line, among, whole, with_criteria
from judge_server.generation.structure import Draft, Rules, check_drafts, named_by_kind, names
from judge_server.generation.wording import Wording
from judge_server.generation.writer import Writer
from trainer_client.wire import Criterion, RubricContent


class ReferenceRow(QuestionRow):
    """A question, its known final answer, and an answer worked out, if there is one."""

    ground_truth: GroundTruth
    reference_answer: ReferenceAnswer = None


class ReferenceParameters(WritingParameters):
    """`fewest` and `most` criteria, and the most characters of a reference answer (longer ones are dropped)."""

    fewest: int = Field(default=3, ge=1, le=10)
    most: int = Field(default=10, ge=1, le=10)
    reference_characters: int = Field(default=8_000, ge=1)


class ReferenceItem(BaseModel):
    """A criterion as the model writes it."""

    kind: Annotated[str, among("process", "factual")]
    description: Line
    weight: Annotated[float, whole(1, 5)]


class ReferenceRubric(BaseModel):
    """What the model writes."""

    criteria: list[ReferenceItem]


class ReferenceGenerator(WordedGenerator[ReferenceRow, ReferenceParameters]):
    """Reference answer, verified; then 3 to 10 factual and process criteria, weighing 1 to 5."""

    kind = "reference"
    summary = "factual and process criteria from a reference answer that is verified against the ground truth (RGR)"
    Input = ReferenceRow
    Parameters = ReferenceParameters
    steps: ClassVar[tuple[str, ...]] = ("answer", "verify", "rubric", "check", "validity")
    wording = Wording("author.system", "reference.rubric", *ANSWER_WORDING.names, *AGREEMENT_WORDING.names)

    def __init__(
        self, parameters: ReferenceParameters, *, find: Find | None = None, templates: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(parameters, find=find, templates=templates)
        self._agreements = Agreements(self.wording)

    def source_of(self, row: ReferenceRow) -> str:
        """The question."""
        return row.question

    async def close(self) -> None:
        """End the processes that compare answers."""
        await self._agreements.close()

    async def make(self, row: ReferenceRow, writer: Writer) -> Made:
        """Make one rubric; see `Generator.make`. Flag: `result_not_named`, by no factual criterion."""
        reference = await self._verified(row, writer)
        criteria = await self._criteria(row, reference, writer)
        kept, flags = await self.validity(writer, criteria, question=row.question, correct=row.ground_truth)
        return Made(
            content=RubricContent(criteria=criteria),
            metadata={"question": row.question, "ground_truth": row.ground_truth, **kept},
            record={"reference_answer": reference, "reference_answer_given": row.reference_answer is not None},
            flags=(*([] if _names(criteria, row.ground_truth) else ["result_not_named"]), *flags),
        )

    async def _verified(self, row: ReferenceRow, writer: Writer) -> str:
        told = self.parameters
        reference = row.reference_answer or await write_answer(
            writer,
            row.question,
            wording=self.wording,
            max_tokens=told.answer_tokens,
            temperature=0.0,
            seed=told.seed,
        )
        if len(reference) > told.reference_characters:
            raise Discarded("too_long", f"the reference answer has {len(reference)} characters")
        agreement = await self._agreements.of(writer, reference, question=row.question, ground_truth=row.ground_truth)
        if agreement != "right":
            found = "is not right" if agreement == "wrong" else "states no final answer that can be compared"
            raise Discarded("wrong_reference_answer", f"the reference answer {found}; it ends {reference[-80:]!r}")
        return reference

    async def _criteria(self, row: ReferenceRow, reference: str, writer: Writer) -> tuple[Criterion, ...]:
        told = self.parameters
        prompt = self.wording(
            "reference.rubric",
            question=row.question,
            reference_answer=reference,
            ground_truth=row.ground_truth,
            fewest=told.fewest,
            most=told.most,
        )
        written = await self.drafted(writer, with_criteria(ReferenceRubric, told.fewest, told.most), prompt)
        drafts = [
            Draft(_without_prefix(item.description), item.kind.strip().casefold(), item.weight)
            for item in written.criteria
        ]
        check_drafts(drafts, Rules(told.fewest, told.most, ("factual", "process"), 1, 5), references=[reference])
        return named_by_kind(drafts)


def _names(criteria: Sequence[Criterion], ground_truth: str) -> bool:
    """Whether a factual criterion has the ground truth in it, so that another result does not satisfy it."""
    return any(one.kind == "factual" and names(one.description, ground_truth) for one in criteria)


def _without_prefix(description: str) -> str:
    """The description without the paper's words before it, which its kind says already."""
    for prefix in ("Factual Criteria:", "Process Criteria:"):
        if description.strip().casefold().startswith(prefix.casefold()):
            return description.strip()[len(prefix) :].strip()
    return description.strip()
