"""What a generator is: a pipeline of named steps that makes one rubric of one input, over a writer.

Knows nothing of files, of runs over many inputs, or of the store.
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
    """One input, a line of the JSONL; white space around texts is dropped, fields it does not know are passed over.

    Attributes:
        id: what the line calls itself; it names the line in reports and does not change what is made.
        name: the name the rubric is to have.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)

    id: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    name: RubricName | None = None

    def loaded(self, folder: Path | None) -> Self:
        """The row with what its paths name read into it; `folder` is where the JSONL lies, None where there is none.

        Raises:
            OSError: a path cannot be read.
            ValueError: it holds no text, or may not be read here; the message says so.
        """
        return self

    @property
    def canonical(self) -> str:
        """All that can change what is made of it, as canonical JSON: two rows alike in this are one input."""
        content = self.model_dump(mode="json", exclude={"id", "name"}, exclude_none=True)
        return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


class Parameters(BaseModel):
    """What a generator may be told, each with a default; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class GeneratedRubric:
    """A rubric that a generator made.

    Attributes:
        content: what is published.
        metadata: what is kept with the version.
        tags: under what it is found.
        record: all else worth keeping in the results: the question, the reference answer, analyses, …
        flags: what a reader should know of it, for example that all samples were right.
        name: the name it is to have; None leaves it to the row, or to the digest of the source.
        parent_reference: the version it revises, where it revises one.
    """

    content: RubricContent
    metadata: dict[str, JsonValue] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    record: dict[str, JsonValue] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    name: str | None = None
    parent_reference: str | None = None


RubricLookup = Callable[[str], Awaitable[RubricVersion | None]]
"""The rubric a reference stands for; None if there is none."""

RowT = TypeVar("RowT", bound=InputRow)
ParametersT = TypeVar("ParametersT", bound=Parameters)


class Generator(ABC, Generic[RowT, ParametersT]):
    """Makes rubrics of one kind. It keeps nothing between inputs, and may work on several at a time.

    Attributes:
        kind: its name.
        summary: what it does, in a line.
        Input: what its inputs hold.
        Parameters: what it may be told.
        steps: the names of its pipeline's steps, in order.
        revises: whether several inputs may publish under one name, each a version after the other.
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
        """`templates` take the place of the generator's own, by file name; see `wording.read_templates`."""
        self.parameters = parameters
        self.find = find
        self.templates = templates or {}

    @property
    @abstractmethod
    def template_digest(self) -> str:
        """`sha256:…` of all templates it uses."""

    @abstractmethod
    def source_of(self, row: RowT) -> str:
        """The text that the rubric is made from, a document or a question: inputs that share it share a split."""

    def inputs_of(self, row: RowT) -> Sequence[RowT]:
        """The inputs that a line stands for; each gives one rubric."""
        return (row,)

    @abstractmethod
    async def make(self, row: RowT, writer: Writer) -> GeneratedRubric:
        """Make one rubric.

        Raises:
            Discarded: what was written is no rubric of this kind.
            WriterFailed: the engine gave no answer.
        """

    async def close(self) -> None:
        """Release what it holds, processes for example; whoever made it calls this once."""

    def name_of(self, row: RowT) -> str | None:
        """The name the rubric of this row is to have; None leaves it to the digest of the source."""
        return row.name


def source_digest(source: str) -> str:
    """`sha256:…` of a source's text: the lines without the white space at their ends, and none around the whole."""
    lines = "\n".join(line.rstrip() for line in source.strip().splitlines())
    return "sha256:" + hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
