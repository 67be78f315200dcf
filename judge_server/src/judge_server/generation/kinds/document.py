"""`document` (Rubric-Grounded): a question and its rubric from a document that the policy never sees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, JsonValue, StringConstraints

from judge_server.generation.generator import (
    GeneratedRubric,
    Generator,
    InputRow,
    Parameters,
    Phrase,
    Sentence,
    ShortSentence,
    bounded,
    integer_schema,
    list_schema,
    source_digest,
)
from judge_server.generation.structure import Draft, check_drafts, check_self_contained
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import RubricDiscarded, Writer
from trainer_client.wire import Criterion

MAX_DOCUMENT_BYTES = 2**20
"""Maximum size of a document's file, in bytes."""

MAX_CRITERION_WEIGHT = 10


class DocumentRow(InputRow):
    """A document: its text, or the path of a UTF-8 file, relative to the folder of the inputs.

    `question_number` selects one of a document's questions if several are generated.
    """

    text: Annotated[str, StringConstraints(max_length=MAX_DOCUMENT_BYTES)] = ""
    path: str | None = None
    question_number: Annotated[int, Field(ge=1)] | None = None

    @property
    def source(self) -> str:
        """The document's text."""
        return self.text

    @property
    def rubric_name(self) -> str | None:
        """The row's name, followed by the question's number if there are several."""
        return f"{self.name}/{self.question_number}" if self.name and self.question_number else self.name

    def loaded(self, folder: Path | None) -> Self:
        """Return the row with the file's text. Raises `ValueError` with the reason if the file cannot be read."""
        if self.path is None or self.text:
            return self
        if folder is None:
            raise ValueError(f"the document {self.path!r} is a path, and files cannot be read here; give its text")
        try:
            content = _content(folder / self.path)
            return self.model_copy(update={"text": content.decode("utf-8-sig").strip(), "path": None})
        except OSError as error:
            raise ValueError(f"the document {self.path!r} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ValueError(f"the document {self.path!r} is not UTF-8 text") from None


class DocumentParameters(Parameters):
    """How questions and rubrics are generated from a document.

    Attributes:
        questions: number of questions per document, each with its own rubric.
        min_criteria, max_criteria: minimum and maximum number of criteria in a rubric.
        min_total_weight: minimum sum of a rubric's weights.
        passage_characters: number of leading characters of a document to read.
        enrichment: run a second pass over each criterion that rewrites its cues, terms, concepts and verification,
            all of which the rubric already has.
        analysis_tokens: token limit of the analysis.
        enrichment_tokens: token limit of the second pass over one criterion.
    """

    rubric_tokens: int = Field(default=4_000, ge=16, le=32_768)
    questions: int = Field(default=1, ge=1, le=50)
    min_criteria: int = Field(default=5, ge=1, le=10)
    max_criteria: int = Field(default=10, ge=1, le=10)
    min_total_weight: float = Field(default=0, ge=0)
    passage_characters: int = Field(default=8_000, ge=200)
    enrichment: bool = False
    analysis_tokens: int = Field(default=300, ge=16)
    enrichment_tokens: int = Field(default=400, ge=16)


class Analysis(BaseModel):
    """Stage 1: the analysis of a document."""

    genre: Phrase
    contribution: ShortSentence
    concepts: Annotated[list[Phrase], list_schema(Phrase, 1, 5)]
    depth: Phrase
    reasoning_mode: Phrase


class Enrichment(BaseModel):
    """The parts of a criterion that a grader sees besides its description and weight."""

    required_elements: Annotated[list[Phrase], list_schema(Phrase, 1, 3)]
    scoring_guide: ShortSentence
    expected_keywords: Annotated[list[Phrase], list_schema(Phrase, 1, 4)]
    expected_concepts: Annotated[list[Phrase], list_schema(Phrase, 1, 3)]
    verification_method: ShortSentence


class TaskItem(BaseModel):
    """A criterion as stage 2 writes it, with all components of Definition 1."""

    name: Phrase
    description: ShortSentence
    required_elements: Annotated[list[Phrase], list_schema(Phrase, 1, 3)]
    scoring_guide: ShortSentence
    expected_keywords: Annotated[list[Phrase], list_schema(Phrase, 1, 4)]
    expected_concepts: Annotated[list[Phrase], list_schema(Phrase, 1, 3)]
    verification_method: ShortSentence
    weight: Annotated[float, integer_schema(1, MAX_CRITERION_WEIGHT)]


class Task(BaseModel):
    """Stage 2: a question and its criteria."""

    question: Sentence
    rationale: ShortSentence
    criteria: list[TaskItem]


class DocumentGenerator(Generator[DocumentRow, DocumentParameters]):
    """Analyses a document, then writes a self-contained question and its rubric in one call.

    With `enrichment`, a second pass rewrites the details of each criterion.
    """

    kind = "document"
    summary = "a question and its rubric, both self-contained, from a document (Rubric-Grounded)"
    Input = DocumentRow
    Parameters = DocumentParameters
    steps = ("analysis", "task", "check", "enrichment", "validity")
    prompt_templates = GeneratorTemplates("author.system", "document.analysis", "document.task", "document.enrichment")

    def inputs_of(self, row: DocumentRow) -> Sequence[DocumentRow]:
        """Return one input per question to generate from the document."""
        if row.question_number is not None or self.parameters.questions == 1:
            return (row,)
        return [row.model_copy(update={"question_number": n}) for n in range(1, self.parameters.questions + 1)]

    async def make(self, row: DocumentRow, writer: Writer) -> GeneratedRubric:
        """Make one question and its rubric; see `Generator.make`. Flag: `passage_cut`, if only a part was read."""
        parameters = self.parameters
        if not row.text.strip():
            raise RubricDiscarded("empty_source", "the document is empty")
        passage = row.text[: parameters.passage_characters].rstrip()
        analysis = await self._analyse(passage, writer)
        task = await self._task(passage, analysis, row.question_number, writer)
        criteria = [await self._criterion(at, one, task, passage, writer) for at, one in enumerate(task.criteria, 1)]
        details: dict[str, JsonValue] = {
            "question": task.question,
            "question_rationale": task.rationale,
            "document_analysis": analysis.model_dump(mode="json"),
            "doc_hash": source_digest(row.text),
        }
        made = await self.finish(
            writer,
            criteria,
            details,
            record={**details, "passage": passage},
            flags=["passage_cut"] if len(passage) < len(row.text.rstrip()) else [],
        )
        made.record["criteria"] = made.content.model_dump(mode="json")["criteria"]
        return made

    async def _analyse(self, passage: str, writer: Writer) -> Analysis:
        prompt = self.prompt_templates("document.analysis", passage=passage)
        analysis = await self.write_draft(writer, Analysis, prompt, max_tokens=self.parameters.analysis_tokens)
        _check_filled("the analysis", analysis)
        return analysis

    async def _task(self, passage: str, analysis: Analysis, number: int | None, writer: Writer) -> Task:
        parameters = self.parameters
        concepts = analysis.concepts
        prompt = self.prompt_templates(
            "document.task",
            passage=passage,
            analysis=analysis,
            focus=None if number is None else concepts[(number - 1) % len(concepts)],
            min_criteria=parameters.min_criteria,
            max_criteria=parameters.max_criteria,
        )
        shape = bounded(Task, criteria=(parameters.min_criteria, parameters.max_criteria))
        task = await self.write_draft(writer, shape, prompt, seed=parameters.seed + (number or 1) - 1)
        if not task.question.strip():
            raise RubricDiscarded("wrong_shape", "the question is empty")
        check_self_contained("the question", task.question)
        drafts = [Draft(item.description, weight=item.weight) for item in task.criteria]
        check_drafts(drafts, weights=(0, MAX_CRITERION_WEIGHT), integer_weights=False)
        total, least = sum(draft.weight for draft in drafts), parameters.min_total_weight
        if total < least:
            raise RubricDiscarded("bad_weight", f"the weights add up to {total:g}; at least {least:g} is required")
        for at, item in enumerate(task.criteria, 1):
            if not item.name.strip():
                raise RubricDiscarded("wrong_shape", f"criterion {at} has no name")
            check_self_contained(f"criterion {at}", item.description)
            _check_filled(f"criterion {at}", Enrichment.model_validate(item.model_dump()))
        return task

    async def _criterion(self, number: int, item: TaskItem, task: Task, passage: str, writer: Writer) -> Criterion:
        written = item.model_dump()
        if not self.parameters.enrichment:
            return Criterion.model_validate({"id": f"c{number}", **written})
        prompt = self.prompt_templates(
            "document.enrichment",
            passage=passage,
            question=task.question,
            name=item.name,
            description=item.description,
        )
        enrichment = await self.write_draft(writer, Enrichment, prompt, max_tokens=self.parameters.enrichment_tokens)
        _check_filled(f"criterion {number}", enrichment)
        return Criterion.model_validate({"id": f"c{number}", **written, **enrichment.model_dump()})


def _check_filled(what: str, shape: BaseModel) -> None:
    """Discard the rubric as `wrong_shape` if a field has no value or contains an empty text."""
    for field, value in shape.model_dump().items():
        texts = value if isinstance(value, list) else [value]
        if not texts or not all(text.strip() for text in texts):
            raise RubricDiscarded("wrong_shape", f"{what} has no {field}")


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"the document {path.name!r} is larger than {MAX_DOCUMENT_BYTES:,} bytes; split it into parts")
    return content
