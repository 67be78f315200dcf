"""What the generators share: input fields, answer schemas, and answers to learn from.

What the generators share: how inputs name their fields, what all may be told, and the validity pass at the end.

The shapes that generators ask their models for: engines hold a model to the bounds, reading is more lenient.

What is out of bounds is so read, and refused by `judge_server.generation.structure` under the reason that names it.

Answers to learn from: written where none is given, and compared with the ground truth.

A program compares where it can (math-verify, in a process that can be killed); only answers in words that are not the
same words go to the model.
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

from judge_server.generation.generator import Generator, InputRow, Parameters, RubricLookup
from judge_server.generation.validity import VALIDITY_PROMPTS, ItemValidity, judge_items, validity_metadata
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer, WriterFailed
from judge_server.ports import CallFailure
from judge_server.verifiers import Check, Checker
from trainer_client.final_answer import extract_final_answer
from trainer_client.wire import Criterion
from trainer_client.wire.criteria import ExactVerification, MathVerification, Verification


def _as_text(value: Any) -> Any:
    """Chat messages as one text, each after its role; everything else as it is."""
    if not (isinstance(value, list) and value and all(isinstance(one, dict) for one in value)):
        return value
    if len(value) == 1:
        return value[0].get("content")
    return "\n\n".join(f"{str(one.get('role', '')).capitalize()}: {one.get('content')}" for one in value)


Text = Annotated[str, StringConstraints(min_length=1, max_length=50_000)]

Question = Annotated[
    str,
    StringConstraints(min_length=1, max_length=12_000),  # it is kept in a version's metadata, which is bounded
    BeforeValidator(_as_text),
    Field(validation_alias=AliasChoices("question", "prompt", "problem")),
]
"""What is asked; chat messages become one text."""

GroundTruth = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2_000),
    Field(validation_alias=AliasChoices("ground_truth", "answer")),
]
"""The known final answer."""

REFERENCE_ANSWER_ALIASES = Field(validation_alias=AliasChoices("reference_answer", "ideal_answer", "solution"))

ReferenceAnswer = Annotated[Text | None, REFERENCE_ANSWER_ALIASES]
"""A good answer, where there is one."""

Responses = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=50_000)], ...],
    Field(max_length=64, validation_alias=AliasChoices("responses", "solutions")),
]
"""Answers that models gave; one may be empty."""


class QuestionRow(InputRow):
    """An input about a question."""

    question: Question


class WritingParameters(Parameters):
    """What every generator may be told.

    Attributes:
        temperature: at which rubrics are written; 0 is greedy.
        seed: of everything that is sampled.
        answer_tokens: the most tokens of an answer that is written to learn from.
        rubric_tokens: the most tokens of a rubric, or of another list.
        validity: whether a judge pass over the criteria ends the pipeline; it is kept with the version.
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
    """A generator that asks in the words of templates."""

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
        """`sha256:…` of its own templates and of the validity judge's."""
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
        """What the author writes in a shape, in `rubric_tokens` unless told otherwise; raises as `Writer.written`."""
        parameters = self.parameters
        return await writer.written(
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
        """The validity pass, if it is asked for: what is kept with the version, and flags."""
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
    r"""LaTeX as it was meant: in JSON a model's `\frac` is a form feed and `rac`, and `\times` a tab and `imes`."""
    return _ESCAPED.sub(lambda found: "\\" + _ESCAPE_LETTERS[found[0]], text)


_ModelText = Annotated[str, AfterValidator(restore_backslashes)]

Sentence = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 5, "maxLength": 400})]
"""A sentence."""

ShortSentence = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 5, "maxLength": 300})]
"""A short sentence."""

Phrase = Annotated[_ModelText, WithJsonSchema({"type": "string", "minLength": 2, "maxLength": 60})]
"""A few words."""


def integer_schema(lowest: int, highest: int) -> Any:
    """The JSON Schema of a whole number from `lowest` to `highest`, for a field that reads any number."""
    return WithJsonSchema({"type": "integer", "minimum": lowest, "maximum": highest})


def enum_schema(*values: str) -> Any:
    """The JSON Schema of one of some words, for a field that reads any text."""
    return WithJsonSchema({"type": "string", "enum": list(values)})


def list_schema(item: Any, fewest: int, most: int) -> Any:
    """The JSON Schema of so many lines or phrases, for a field that reads any list of texts."""
    [schema] = [one.json_schema for one in item.__metadata__ if isinstance(one, WithJsonSchema)]
    return WithJsonSchema({"type": "array", "items": schema, "minItems": fewest, "maxItems": most})


def with_criteria(shape: type[ShapeT], fewest: int, most: int) -> type[ShapeT]:
    """A shape whose list `criteria` has `fewest` to `most` items."""
    made: type[ShapeT] = _bounded(shape, fewest, most)
    return made


@cache
def _bounded(shape: type[BaseModel], fewest: int, most: int) -> Any:
    bounded: Any = (shape.model_fields["criteria"].annotation, Field(min_length=fewest, max_length=most))
    return create_model(f"{shape.__name__}From{fewest}To{most}", __base__=shape, criteria=bounded)


ANSWER_PROMPTS = GeneratorTemplates("solver.system", "answer")
AGREEMENT_PROMPTS = GeneratorTemplates("checker.system", "agreement")

COMPARE_TIMEOUT_S = 30.0
"""How long one comparison may take, its process included."""

Agreement = Literal["right", "wrong", "unknown"]
"""Whether an answer is the known one; `unknown` where it states none, or the comparison did not end."""

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
    """A comprehensive solution that ends in a line `Final answer: …`; raises as `Writer.prose`."""
    system, prompt = prompt_templates("solver.system"), prompt_templates("answer", question=question)
    return await writer.write_text(prompt, system=system, max_tokens=max_tokens, temperature=temperature, seed=seed)


class AnswerComparer:
    """Compares answers with the ground truth. Its processes start with the first comparison; `close` ends them."""

    def __init__(self, prompt_templates: GeneratorTemplates) -> None:
        self._wording = prompt_templates
        self._checker = Checker(workers=1)

    async def compare(self, writer: Writer, answer: str, *, question: str, ground_truth: str) -> Agreement:
        """Whether an answer is right.

        Raises:
            Discarded: from the model, which is asked where the ground truth is words.
            WriterFailed: the model gave no answer, or the comparing process died.
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
        """By the final answer; an answer that marks none is searched for one, as math-verify does it."""
        programs: tuple[Verification, ...] = (MathVerification(method="math", of="response"),)
        if final is not None:
            programs = (MathVerification(method="math"), ExactVerification(method="exact"))
        for verification in programs:
            deadline = asyncio.get_running_loop().time() + COMPARE_TIMEOUT_S
            found = await self._checker.run(Check(verification, answer, final, ground_truth), deadline)
            if not isinstance(found, CallFailure):
                return "right" if found.score == 1.0 else "wrong"
            if found.kind == "engine":
                raise WriterFailed(found.detail)
            if found.kind != "parse":
                return "unknown"
        return "unknown"

    async def close(self) -> None:
        """End the processes."""
        await self._checker.close()
