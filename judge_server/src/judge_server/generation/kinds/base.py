"""Shared parts of the generators: input fields, common parameters, output schemas and reference answers.

The JSON Schemas bound what an engine may write; parsing is more lenient. Output that is out of bounds can thus be read,
and `judge_server.generation.structure` rejects it under the reason that names the fault.

Answers are compared with the ground truth by a program where possible (`math`, in a process that can be killed).
The model compares only answers in words that do not match word for word.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    StringConstraints,
    WithJsonSchema,
    create_model,
)

from judge_server.generation.validity import VALIDITY_PROMPTS, ItemValidity, judge_items, validity_metadata
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Generator, InputRow, Parameters, RubricLookup, Writer, WriterFailed
from judge_server.ports import CallFailure
from judge_server.verifiers import Check, Checker
from trainer_client.final_answer import extract_final_answer
from trainer_client.wire import Criterion
from trainer_client.wire.criteria import ExactVerification, MathVerification, Verification


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


class WritingParameters(Parameters):
    """Parameters common to all generators.

    Attributes:
        temperature: sampling temperature for rubrics; 0 is greedy.
        seed: seed of all sampling.
        answer_tokens: token limit of a reference answer that the model writes.
        rubric_tokens: token limit of a rubric, or of another list.
        validity: end the pipeline with a judge pass over the criteria; its result is stored with the version.
    """

    temperature: float = Field(default=0.2, ge=0, le=2)
    seed: int = Field(default=0, ge=0)
    answer_tokens: int = Field(default=2_000, ge=16, le=32_768)
    rubric_tokens: int = Field(default=1200, ge=16, le=32_768)
    validity: bool = True


RowT = TypeVar("RowT", bound=InputRow)
ParametersT = TypeVar("ParametersT", bound=WritingParameters)
ShapeT = TypeVar("ShapeT", bound=BaseModel)


class TemplateGenerator(Generator[RowT, ParametersT]):
    """Base of the generators that build their prompts from templates."""

    prompt_templates: GeneratorTemplates

    def __init__(
        self, parameters: ParametersT, *, find: RubricLookup | None = None, templates: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(parameters, find=find, templates=templates)
        self.prompt_templates = GeneratorTemplates(
            *type(self).prompt_templates.names, *VALIDITY_PROMPTS.names, overrides=self.templates
        )
        self.author = self.prompt_templates("author.system")

    @property
    def template_digest(self) -> str:
        """`sha256:…` of the generator's templates and the validity judge's."""
        return self.prompt_templates.digest

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
            system=self.author,
            max_tokens=max_tokens or parameters.rubric_tokens,
            temperature=parameters.temperature,
            seed=parameters.seed if seed is None else seed,
        )

    async def validity(
        self, writer: Writer, criteria: Sequence[Criterion], *, question: str, correct: str | None
    ) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
        """Run the validity pass if `validity` is set; return the metadata to store with the version, and flags."""
        if not self.parameters.validity:
            return {}, ()
        items = await judge_items(
            writer, criteria, question=question, correct=correct, prompt_templates=self.prompt_templates
        )
        metadata = validity_metadata(items, writer.identity.model, VALIDITY_PROMPTS.with_overrides(self.templates))
        return {"validity": metadata}, _flags(items)


def _flags(items: Sequence[ItemValidity]) -> tuple[str, ...]:
    invalid = sum(item.valid is False for item in items)
    unjudged = sum(item.valid is None for item in items)
    return (
        *([f"invalid_criteria:{invalid}"] if invalid else []),
        *([f"unjudged_criteria:{unjudged}"] if unjudged else []),
    )


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


def with_criteria(shape: type[ShapeT], min_criteria: int, max_criteria: int) -> type[ShapeT]:
    """Derive a shape whose list `criteria` has `min_criteria` to `max_criteria` items."""
    derived: type[ShapeT] = _bounded(shape, min_criteria, max_criteria)
    return derived


@cache
def _bounded(shape: type[BaseModel], min_criteria: int, max_criteria: int) -> Any:
    bounded: Any = (shape.model_fields["criteria"].annotation, Field(min_length=min_criteria, max_length=max_criteria))
    return create_model(f"{shape.__name__}From{min_criteria}To{max_criteria}", __base__=shape, criteria=bounded)


ANSWER_PROMPTS = GeneratorTemplates("solver.system", "answer")
AGREEMENT_PROMPTS = GeneratorTemplates("checker.system", "agreement")

COMPARE_TIMEOUT_S = 30.0
"""Time limit of one comparison, including the start of its process."""

Agreement = Literal["right", "wrong", "unknown"]
"""How an answer compares with the ground truth; `unknown` if it states no final answer or the comparison timed out."""

_FORMULA = re.compile(r"[0-9\\^=+*/<>|√π∞]")


async def write_answer(
    writer: Writer,
    question: str,
    *,
    prompt_templates: GeneratorTemplates,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> str:
    """Write a full solution that ends with a line `Final answer: …`; raises as `Writer.write_text`."""
    system, prompt = prompt_templates("solver.system"), prompt_templates("answer", question=question)
    return await writer.write_text(prompt, system=system, max_tokens=max_tokens, temperature=temperature, seed=seed)


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
