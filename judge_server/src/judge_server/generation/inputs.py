"""Reading what a run makes rubrics of: JSONL, a bad line costing only itself, and what makes two inputs the same.

An input's key is a hash of all that could change what is made of it, the generator and the model included. What was
done under a key is never done again.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from judge_server.generation.generator import Generator, InputRow, source_digest
from judge_server.generation.splits import Split, split_of
from judge_server.ports import EngineIdentity
from trainer_client.wire.problems import field_errors

SHORT_DIGEST = 12
"""Digits of a digest that make a rubric's name."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no input, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunInput:
    """One input of a run.

    Attributes:
        line: the number of its line, from 1.
        row: what stands there, with what its paths name.
        key: 64 hex digits; equal for what need not be done twice.
        source: `sha256:…` of the text the rubric is made from.
        split: where everything that is made from that text goes.
        name: what the rubric is called where the generator gives it no name.
    """

    line: int
    row: InputRow
    key: str
    source: str
    split: Split
    name: str


class Inputs:
    """The inputs of a file for one generator and one model: read anew, in order, each time they are gone through."""

    def __init__(
        self, file: Path, generator: Generator[Any, Any], identity: EngineIdentity, *, limit: int | None = None
    ) -> None:
        self._file = file
        self._generator = generator
        self._limit = limit
        self._fingerprint = _fingerprint(generator, identity)

    def __iter__(self) -> Iterator[RunInput | BadLine]:
        """Each line's inputs, in order; blank lines are passed over. Raises `OSError` where the file cannot be read."""
        with self._file.open("rb") as lines:
            numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
            for number, line in islice(numbered, self._limit):
                yield from self._read(number, line)

    def _read(self, number: int, line: bytes) -> Sequence[RunInput | BadLine]:
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError:
            return [BadLine(number, "this is not UTF-8 text; save the file as UTF-8")]
        try:
            row = json.loads(text)
            if not isinstance(row, dict):
                return [BadLine(number, f"this is not an input; write an object with {self._fields()}")]
            loaded = self._generator.Input.model_validate(row).loaded(self._file.parent)
            return [self._input(number, one) for one in self._generator.inputs_of(loaded)]
        except UnicodeDecodeError:
            reason = "a file that it names is not UTF-8 text; save that as UTF-8"
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            reason = f"{first.field}: {first.message}"
        except json.JSONDecodeError as error:
            reason = f"not JSON: {error}"
        except RecursionError:
            reason = "it nests too deep to be read"
        except (ValueError, OSError) as error:
            reason = str(error)
        return [BadLine(number, reason)]

    def _input(self, number: int, row: InputRow) -> RunInput:
        content = hashlib.sha256(row.canonical.encode("utf-8", "surrogatepass")).hexdigest()
        source = source_digest(self._generator.source_of(row))
        key = hashlib.sha256(f"{self._fingerprint}\0{content}".encode()).hexdigest()
        name = self._generator.name_of(row) or f"{self._generator.kind}/{content[:SHORT_DIGEST]}"
        return RunInput(number, row, key, source, split_of(source), name)

    def _fields(self) -> str:
        needed = [name for name, field in self._generator.Input.model_fields.items() if field.is_required()]
        return ", ".join(needed) or "the generator's fields"


def _fingerprint(generator: Generator[Any, Any], identity: EngineIdentity) -> str:
    """All but the input that could change what is made, as canonical JSON."""
    parts = [
        generator.kind,
        generator.template_digest,
        generator.parameters.model_dump(mode="json"),
        identity.model,
        identity.weights_digest,
        identity.chat_template_digest,
    ]
    return json.dumps(parts, sort_keys=True, ensure_ascii=False)
