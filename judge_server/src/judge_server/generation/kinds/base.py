"""What the generators share: how inputs name their fields, what all may be told, and the validity pass at the end."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, JsonValue, StringConstraints

from judge_server.generation.generator import Generator, InputRow, Parameters, RubricLookup
from judge_server.generation.validity import VALIDITY_PROMPTS, ItemValidity, judge_items, validity_metadata
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer
from trainer_client.wire import Criterion


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
