"""Generators: the pipelines that make one rubric from one input with a `Writer`, and what their kinds share.

The kinds share input fields, parameters, the shapes of a model's output, and the comparison of answers. The JSON
Schemas bound what an engine may write, and not every engine keeps to them. A list of the wrong length is discarded when
it is read; texts and numbers are read leniently, and `judge_server.generation.structure` rejects those out of bounds
under the reason that names the fault.

Answers are compared with the ground truth by a program where possible (`math`, in a process that can be killed).
The model compares only answers in words that do not match word for word.
"""

import asyncio
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    WithJsonSchema,
    create_model,
    model_validator,
)

from judge_server.generation.validity import VALIDITY_PROMPTS, judge_items, validity_metadata
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer, WriterFailed
from judge_server.ports import CallFailure
from judge_server.scheduling.checker import Checker
from judge_server.verifiers import Check
from trainer_client.final_answer import extract_final_answer
from trainer_client.wire import Criterion, RubricContent, RubricName, RubricVersion
from trainer_client.wire.criteria import ExactVerification, MathVerification, Verification


class InputRow(BaseModel, ABC):
    """One input, a line of the JSONL file. Texts are stripped of surrounding white space; unknown fields are ignored.

    Attributes:
        id: the line's own identifier. It appears in reports and does not affect the rubric.
        name: the name to give the rubric.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)

    id: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    name: RubricName | None = None

    @property
    @abstractmethod
    def source(self) -> str:
        """The source text of the rubric, a document or a question. Inputs with the same source share a split."""

    @property
    def rubric_name(self) -> str | None:
        """The name to give the rubric; None names it by the digest of the row's content."""
        return self.name

    def loaded(self, folder: Path | None) -> Self:
        """Return the row with the contents of the files it refers to.

        Args:
            folder: the folder of the JSONL file, to which paths are relative; None if files cannot be read.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not text, or files cannot be read here; the message says which.
        """
        return self

    @property
    def canonical(self) -> str:
        """Everything that affects the rubric, as canonical JSON. Rows with the same value are one input."""
        content = self.model_dump(mode="json", exclude={"id", "name"}, exclude_none=True)
        return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def source_digest(source: str) -> str:
    """Compute `sha256:…` of a source text, ignoring trailing white space on lines and white space around the text."""
    lines = "\n".join(line.rstrip() for line in source.strip().splitlines())
    return "sha256:" + hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


def _as_text(value: Any) -> Any:
    """Join chat messages into one text, each prefixed with its role; return any other value unchanged."""
    if not (isinstance(value, list) and value and all(isinstance(one, dict) for one in value)):
        return value
    if len(value) == 1:
        return value[0].get("content")
    return "\n\n".join(f"{str(one.get('role', '')).capitalize()}: {one.get('content')}" for one in value)


Text = Annotated[str, StringConstraints(min_length=1, max_length=50_000)]

Question = Annotated[
    str,
    StringConstraints(min_length=1, max_length=12_000),  # stored in a version's metadata, whose size is limited
    BeforeValidator(_as_text),
    Field(validation_alias=AliasChoices("question", "prompt", "problem")),
]
"""The question or task; chat messages are joined into one text."""

GroundTruth = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2_000),
    Field(validation_alias=AliasChoices("ground_truth", "answer")),
]
"""The known final answer."""

REFERENCE_ANSWER_ALIASES = Field(validation_alias=AliasChoices("reference_answer", "ideal_answer", "solution"))

ReferenceAnswer = Annotated[Text | None, REFERENCE_ANSWER_ALIASES]
"""A good answer; optional."""

Responses = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=50_000)], ...],
    Field(max_length=64, validation_alias=AliasChoices("responses", "solutions")),
]
"""Responses of models to the question; a response may be empty."""


class QuestionRow(InputRow):
    """An input row with a question."""

    question: Question

    @property
    def source(self) -> str:
        """The question."""
        return self.question


class AnsweredRow(QuestionRow):
    """A question and a good answer to it."""

    reference_answer: Annotated[Text, REFERENCE_ANSWER_ALIASES]


class Parameters(BaseModel):
    """Parameters common to all generators. Each has a default; unknown ones are rejected.

    Attributes:
        temperature: sampling temperature for rubrics; 0 is greedy.
        seed: seed of all sampling.
        answer_tokens: token limit of a reference answer that the model writes.
        rubric_tokens: token limit of a rubric, or of another list.
        validity: end the pipeline with a judge pass over the criteria; its result is stored with the version.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: float = Field(default=0.2, ge=0, le=2)
    seed: int = Field(default=0, ge=0)
    answer_tokens: int = Field(default=2_000, ge=16, le=32_768)
    rubric_tokens: int = Field(default=1200, ge=16, le=32_768)
    validity: bool = True

    @model_validator(mode="after")
    def _bounds_can_be_met(self) -> Self:
        most = getattr(self, "max_criteria", None)
        for name in ("min_criteria", "kept"):
            least = getattr(self, name, None)
            if least is not None and most is not None and least > most:
                raise ValueError(f"{name} is {least}, above max_criteria {most}; no rubric can have both")
        return self


@dataclass(frozen=True, slots=True)
class GeneratedRubric:
    """A rubric that a generator made.

    Attributes:
        content: the content to publish.
        metadata: metadata to store with the version.
        tags: tags to find the rubric by.
        record: further data for the results: the question, the reference answer, analyses, …
        flags: notes for a reader of the results, for example that all samples were right.
        name: the name to give the rubric; None uses the row's name, or the digest of its content.
        parent_reference: the version that this one revises, if any.
    """

    content: RubricContent
    metadata: dict[str, JsonValue] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    record: dict[str, JsonValue] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    name: str | None = None
    parent_reference: str | None = None


RubricLookup = Callable[[str], Awaitable[RubricVersion | None]]
"""Resolves a reference to a rubric version; None if it does not exist."""

RowT = TypeVar("RowT", bound=InputRow)
ParametersT = TypeVar("ParametersT", bound=Parameters)
ShapeT = TypeVar("ShapeT", bound=BaseModel)


class Generator(ABC, Generic[RowT, ParametersT]):
    """Makes rubrics of one kind. It keeps no state between inputs and may work on several at a time.

    Attributes:
        kind: the generator's name.
        summary: one line that describes it.
        Input: the type of its inputs.
        Parameters: the type of its parameters.
        steps: the names of the pipeline's steps, in order.
        revises: whether several inputs may publish under one name, each as a further version.
        prompt_templates: the templates that it uses, besides those of the validity judge.
    """

    kind: ClassVar[str]
    summary: ClassVar[str]
    Input: type[RowT]
    Parameters: type[ParametersT]
    steps: ClassVar[tuple[str, ...]]
    revises: ClassVar[bool] = False
    prompt_templates = GeneratorTemplates("author.system")

    def __init__(
        self, parameters: ParametersT, *, find: RubricLookup | None = None, templates: Mapping[str, str] | None = None
    ) -> None:
        """Set up the generator. `templates` override the default ones by file name; see `wording.read_templates`."""
        self.parameters = parameters
        self.find = find
        names = (*type(self).prompt_templates.names, *VALIDITY_PROMPTS.names)
        self.prompt_templates = GeneratorTemplates(*names, overrides=templates or {})
        self.answers = AnswerComparer(self.prompt_templates)

    @property
    def template_digest(self) -> str:
        """`sha256:…` of the generator's templates and the validity judge's."""
        return self.prompt_templates.digest

    def inputs_of(self, row: RowT) -> Sequence[RowT]:
        """Expand a line into inputs; each gives one rubric."""
        return (row,)

    @abstractmethod
    async def make(self, row: RowT, writer: Writer) -> GeneratedRubric:
        """Make one rubric.

        Raises:
            RubricDiscarded: the model's output is not a valid rubric of this kind.
            WriterFailed: the engine gave no answer.
        """

    async def write_answer(self, writer: Writer, question: str) -> str:
        """Write a full solution that ends with a line `Final answer: …`; raises as `Writer.write_text`."""
        return await writer.write_text(
            self.prompt_templates("answer", question=question),
            system=self.prompt_templates("solver.system"),
            max_tokens=self.parameters.answer_tokens,
            seed=self.parameters.seed,
        )

    async def write_draft(
        self,
        writer: Writer,
        shape: type[ShapeT],
        prompt: str,
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> ShapeT:
        """Ask the author for JSON of a shape, by default of up to `rubric_tokens`; raises as `Writer.write_json`."""
        parameters = self.parameters
        return await writer.write_json(
            shape,
            prompt,
            system=self.prompt_templates("author.system"),
            max_tokens=max_tokens or parameters.rubric_tokens,
            temperature=parameters.temperature,
            seed=parameters.seed if seed is None else seed,
        )

    async def write_criteria(
        self, writer: Writer, shape: type[ShapeT], template: str, bounds: tuple[int, int], **shown: Any
    ) -> ShapeT:
        """Ask the author for a shape whose `criteria` have a length within `bounds`, which the template shows too."""
        prompt = self.prompt_templates(template, min_criteria=bounds[0], max_criteria=bounds[1], **shown)
        return await self.write_draft(writer, bounded(shape, criteria=bounds), prompt)

    async def finish(
        self,
        writer: Writer,
        criteria: Sequence[Criterion],
        metadata: Mapping[str, JsonValue],
        *,
        correct: str | None = None,
        judged: Sequence[Criterion] | None = None,
        record: dict[str, JsonValue],
        flags: Sequence[str] = (),
    ) -> GeneratedRubric:
        """Run the validity pass if `validity` is set, and return the rubric.

        Args:
            metadata: what is stored with the version, besides validity: the question, and more.
            correct: the known answer to the question.
            judged: the criteria to judge; by default all.
            record, flags: as in `GeneratedRubric`.
        """
        kept, found = {**metadata}, [*flags]
        if self.parameters.validity:
            prompts = self.prompt_templates
            question = str(metadata["question"])
            items = await judge_items(
                writer, judged or criteria, question=question, correct=correct, prompt_templates=prompts
            )
            used = GeneratorTemplates(*VALIDITY_PROMPTS.names, overrides=prompts.overrides)
            kept["validity"] = validity_metadata(items, writer.identity.model, used)
            for flag, valid in (("invalid_criteria", False), ("unjudged_criteria", None)):
                if count := sum(item.valid is valid for item in items):
                    found.append(f"{flag}:{count}")
        return GeneratedRubric(RubricContent(criteria=tuple(criteria)), kept, record=record, flags=tuple(found))


_ESCAPED = re.compile(
    "[\b\f](?=[a-z])|\r(?=[a-z]{2})|\t(?=ext|imes|heta|an\\b|frac|riangle|au\\b|o\\b|herefore)|\n(?=eq\\b|abla\\b|otin\\b)"
)
_ESCAPE_LETTERS = {"\b": "b", "\f": "f", "\r": "r", "\t": "t", "\n": "n"}


def restore_backslashes(text: str) -> str:
    r"""Restore LaTeX commands that JSON decoding broke: `\frac` reads as a form feed and `rac`, `\times` as a tab."""
    return _ESCAPED.sub(lambda match: "\\" + _ESCAPE_LETTERS[match[0]], text)


_ModelText = Annotated[str, AfterValidator(restore_backslashes)]

Sentence = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 5, "maxLength": 400})]
"""A sentence of 5 to 400 characters."""

ShortSentence = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 5, "maxLength": 300})]
"""A sentence of 5 to 300 characters."""

Phrase = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 2, "maxLength": 60})]
"""A few words, 2 to 60 characters."""


def integer_schema(lowest: int, highest: int) -> Any:
    """Ask for an integer from `lowest` to `highest` in the JSON Schema; the field itself still parses any number."""
    return WithJsonSchema({"type": "integer", "minimum": lowest, "maximum": highest})


def enum_schema(*values: str) -> Any:
    """Ask for one of these values in the JSON Schema; the field itself still parses any text."""
    return WithJsonSchema({"type": "string", "enum": list(values)})


def list_schema(item: Any, min_items: int, max_items: int) -> Any:
    """Ask for `min_items` to `max_items` items in the JSON Schema; the field still parses a list of any length."""
    [schema] = [one.json_schema for one in item.__metadata__ if isinstance(one, WithJsonSchema)]
    return WithJsonSchema({"type": "array", "items": schema, "minItems": min_items, "maxItems": max_items})


def bounded(shape: type[ShapeT], **lists: tuple[int, int]) -> type[ShapeT]:
    """Derive a shape whose lists with these names have a length within these bounds."""
    derived: type[ShapeT] = _bounded(shape, tuple(lists.items()))
    return derived


@cache
def _bounded(shape: type[BaseModel], lists: tuple[tuple[str, tuple[int, int]], ...]) -> Any:
    fields: dict[str, Any] = {}
    for name, (least, most) in lists:
        declared = shape.model_fields[name]
        bounds = Field(min_length=least, max_length=most, json_schema_extra=declared.json_schema_extra)
        fields[name] = (declared.annotation, bounds)
    return create_model(f"Bounded{shape.__name__}", __base__=shape, **fields)


AGREEMENT_PROMPTS = ("checker.system", "agreement")
"""The templates of `AnswerComparer`."""

ANSWER_PROMPTS = ("solver.system", "answer")
"""The templates of `Generator.write_answer`."""

COMPARE_TIMEOUT_S = 30.0
"""Timeout for the comparison of a sampled answer with the known one, including the start of its process."""

Agreement = Literal["right", "wrong", "unknown"]
"""How an answer compares with the ground truth; `unknown` if it states no final answer or the comparison timed out."""

_FORMULA = re.compile(r"[0-9\\^=+*/<>|√π∞]")


class AnswerComparer:
    """Compares answers with the ground truth. Worker processes start at the first comparison; `close` stops them."""

    def __init__(self, prompt_templates: GeneratorTemplates) -> None:
        self._wording = prompt_templates
        self._checker = Checker(workers=1)

    async def compare(self, writer: Writer, answer: str, *, question: str, ground_truth: str) -> Agreement:
        """Compare an answer with the ground truth.

        Raises:
            RubricDiscarded: the model's verdict is unreadable; the model is asked only if the ground truth is words.
            WriterFailed: the engine gave no answer, or the comparing process died.
        """
        final = extract_final_answer(answer)
        in_words = _FORMULA.search(ground_truth) is None
        if final is not None or not in_words:
            compared = await self._compare_by_program(answer, final, ground_truth)
            if compared == "right" or not in_words:
                return compared
        prompt = self._wording("agreement", question=question, ground_truth=ground_truth, answer=answer)
        label = await writer.choose(["yes", "no"], prompt, system=self._wording("checker.system"))
        return "right" if label == "yes" else "wrong"

    async def _compare_by_program(self, answer: str, final: str | None, ground_truth: str) -> Agreement:
        """Compare the final answer; if the answer marks none, compare the last formula or sentence."""
        programs: tuple[Verification, ...] = (MathVerification(method="math", of="response"),)
        if final is not None:
            programs = (MathVerification(method="math"), ExactVerification(method="exact"))
        for verification in programs:
            deadline = asyncio.get_running_loop().time() + COMPARE_TIMEOUT_S
            outcome = await self._checker.run(Check(verification, answer, final, ground_truth), deadline)
            if not isinstance(outcome, CallFailure):
                return "right" if outcome.score == 1.0 else "wrong"
            if outcome.kind == "engine":
                raise WriterFailed(outcome.detail)
            if outcome.kind != "parse":
                return "unknown"
        return "unknown"

    async def close(self) -> None:
        """Stop the worker processes."""
        await self._checker.close()
