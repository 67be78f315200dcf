"""The interface of a generator: a pipeline of named steps that makes one rubric from one input, with a `Writer`.

This module does not deal with files, with runs over many inputs, or with the rubric store.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, StringConstraints

from judge_server.generation.writer import Writer
from trainer_client.wire import RubricContent, RubricName, RubricVersion


class InputRow(BaseModel):
    """One input, a line of the JSONL file. Texts are stripped of surrounding white space; unknown fields are ignored.

    Attributes:
        id: the line's own identifier. It appears in reports and does not affect the rubric.
        name: the name to give the rubric.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)

    id: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    name: RubricName | None = None

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


class Parameters(BaseModel):
    """Parameters of a generator. Each has a default; unknown ones are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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


class Generator(ABC, Generic[RowT, ParametersT]):
    """Makes rubrics of one kind. It keeps no state between inputs and may work on several at a time.

    Attributes:
        kind: the generator's name.
        summary: one line that describes it.
        Input: the type of its inputs.
        Parameters: the type of its parameters.
        steps: the names of the pipeline's steps, in order.
        revises: whether several inputs may publish under one name, each as a further version.
    """

    kind: ClassVar[str]
    summary: ClassVar[str]
    Input: type[RowT]
    Parameters: type[ParametersT]
    steps: ClassVar[tuple[str, ...]]
    revises: ClassVar[bool] = False

    def __init__(
        self, parameters: ParametersT, *, find: RubricLookup | None = None, templates: Mapping[str, str] | None = None
    ) -> None:
        """Set up the generator. `templates` override the default ones by file name; see `wording.read_templates`."""
        self.parameters = parameters
        self.find = find
        self.templates = templates or {}

    @property
    @abstractmethod
    def template_digest(self) -> str:
        """`sha256:…` of all templates that the generator uses."""

    @abstractmethod
    def source_of(self, row: RowT) -> str:
        """Return the source text of the rubric, a document or a question. Inputs with the same source share a split."""

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

    async def close(self) -> None:
        """Release resources such as processes. Call it once when done."""

    def name_of(self, row: RowT) -> str | None:
        """Return the name to give the row's rubric; None names it by the digest of the row's content."""
        return row.name


def source_digest(source: str) -> str:
    """Compute `sha256:…` of a source text, ignoring trailing white space on lines and white space around the text."""
    lines = "\n".join(line.rstrip() for line in source.strip().splitlines())
    return "sha256:" + hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
