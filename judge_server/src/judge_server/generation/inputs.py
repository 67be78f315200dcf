"""The inputs of a generator: read from a JSONL file, identified by a key, and each made into one record.

A line that cannot be used is reported and skipped. An input's key is a hash of everything that affects its rubric,
including the generator and the model, so work that is done under a key need not be repeated.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from judge_server.generation.generator import Generator, InputRow, source_digest
from judge_server.generation.results import Split, split_of
from judge_server.generation.writer import RubricDiscarded, Writer
from judge_server.ports import EngineIdentity
from trainer_client.wire.problems import field_errors

SHORT_DIGEST = 12
"""Number of digits of a digest in a rubric's default name."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a valid input, and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunInput:
    """One input of a run.

    Attributes:
        line: its line number, from 1.
        row: the parsed line, with the contents of the files it refers to.
        key: 64 hex digits; inputs with the same key give the same rubric.
        source: `sha256:…` of the text that the rubric is made from.
        split: the split of that text, and of every rubric made from it.
        name: the rubric's name if the generator does not set one.
    """

    line: int
    row: InputRow
    key: str
    source: str
    split: Split
    name: str


def read_inputs(
    file: Path, generator: Generator[Any, Any], identity: EngineIdentity, *, limit: int | None = None
) -> Iterator[RunInput | BadLine]:
    """Yield the inputs of each line for a generator and a model, in order; blank lines are skipped.

    Raises:
        OSError: the file cannot be read.
    """
    with file.open("rb") as lines:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        for number, line in islice(numbered, limit):
            try:
                rows = _read_line(line, generator, file.parent)
            except ValidationError as error:
                first = field_errors(error.errors())[0]
                yield BadLine(number, f"{first.field}: {first.message}")
            except json.JSONDecodeError as error:
                yield BadLine(number, f"not JSON: {error}")
            except RecursionError:
                yield BadLine(number, "the JSON is nested too deeply")
            except (ValueError, OSError) as error:
                yield BadLine(number, str(error))
            else:
                yield from [run_input(generator, identity, row, line=number) for row in rows]


def _read_line(line: bytes, generator: Generator[Any, Any], folder: Path) -> Sequence[InputRow]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("the line is not UTF-8 text; save the file as UTF-8") from None
    if not isinstance(row, dict):
        needed = [name for name, field in generator.Input.model_fields.items() if field.is_required()]
        fields = ", ".join(needed) or "the generator's fields"
        raise ValueError(f"the line is not a JSON object; write an object with {fields}")
    try:
        return generator.inputs_of(generator.Input.model_validate(row).loaded(folder))
    except UnicodeDecodeError:
        raise ValueError("a file that the line refers to is not UTF-8 text; save it as UTF-8") from None


def run_input(generator: Generator[Any, Any], identity: EngineIdentity, row: InputRow, *, line: int = 1) -> RunInput:
    """Return the input that a row is for a generator and a model; the row's files must be loaded."""
    content = _content_digest(row)
    source = source_digest(row.source)
    made_by = [
        generator.kind,
        generator.template_digest,
        generator.parameters.model_dump(mode="json"),
        identity.model,
        identity.weights_digest,
        identity.chat_template_digest,
    ]
    fingerprint = json.dumps(made_by, sort_keys=True, ensure_ascii=False)
    key = hashlib.sha256(f"{fingerprint}\0{content}".encode()).hexdigest()
    return RunInput(line, row, key, source, split_of(source), row.rubric_name or default_name(generator.kind, row))


def default_name(kind: str, row: InputRow) -> str:
    """The name of a rubric whose input gives it none: the generator and a digest of the input."""
    return f"{kind}/{_content_digest(row)[:SHORT_DIGEST]}"


def _content_digest(row: InputRow) -> str:
    return hashlib.sha256(row.canonical.encode("utf-8", "surrogatepass")).hexdigest()


async def make_record(
    generator: Generator[Any, Any], made_from: RunInput, writer: Writer, *, prefix: str = ""
) -> dict[str, Any]:
    """Make the rubric of an input, and return it as a record of `rubrics.jsonl`.

    The writer counts the usage of this input alone; `prefix` begins the rubric's name.

    Raises:
        RubricDiscarded: the model's output is not a valid rubric.
        WriterFailed: the engine gave no answer.
    """
    try:
        made = await generator.make(made_from.row, writer)
    except ValidationError as error:
        first = field_errors(error.errors())[0]
        raise RubricDiscarded("invalid_rubric", f"{first.field}: {first.message}") from error
    return {
        "key": made_from.key,
        "line": made_from.line,
        "id": made_from.row.id,
        "name": prefix + (made.name or made_from.name),
        "split": made_from.split,
        "source_digest": made_from.source,
        "digest": made.content.digest,
        "criteria": made.content.model_dump(mode="json", exclude_none=True)["criteria"],
        "metadata": {**made.metadata, "flags": list(made.flags)} if made.flags else made.metadata,
        "tags": list(made.tags),
        "flags": list(made.flags),
        "parent": made.parent_reference,
        "record": made.record,
        "usage": asdict(writer.usage),
    }
