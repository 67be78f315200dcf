"""Whole files of rubrics: one rubric, or one in each line of a JSONL file, and the names they are to have.

A file counts whole or not at all: if any of its rubrics cannot be read, none of them is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from pydantic import TypeAdapter, ValidationError

from rubric_store.formats.documents import RubricDocument
from rubric_store.formats.errors import FormatError, FormatProblem, validation_problems
from rubric_store.formats.json_text import parse_json
from rubric_store.formats.reading import read_document
from trainer_client.wire import NewRubricName

JSONL_EXTENSIONS: Final = frozenset({".jsonl", ".ndjson"})
"""Endings of files with a rubric in each line."""

FILE_EXTENSIONS: Final = frozenset({".json", ".yaml", ".yml", ".txt", ".srar", *JSONL_EXTENSIONS})
"""Endings of the files that are looked for in a folder."""

_ROW_IDS = ("name", "id", "prompt_id", "example_id", "uid", "doc_hash")
_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class NamedRubric:
    """A rubric of a file, under the name it is to have, and the line it begins in."""

    name: str
    document: RubricDocument
    line: int


def read_file(content: bytes, path: PurePath, format: str | None = None, prefix: str = "") -> list[NamedRubric]:
    """Read every rubric of a file.

    Args:
        content: the bytes of the file, UTF-8.
        path: where it lies, as far as names are to be made of it: `math/Quadratics.yaml` gives `math/quadratics`. A
            row of a JSONL file is called by its id after that, or by its line: `health/dev/line-12`.
        format: see `read_document`.
        prefix: put before every name, also before one that the file gives itself.

    Raises:
        FormatError: with every problem of the file, and its line.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FormatError([FormatProblem("", "this is not UTF-8 text; save the file as UTF-8", line)]) from None
    stem = "/".join(part for part in map(_as_name, (*path.parts[:-1], path.stem)) if part)
    if path.suffix.lower() not in JSONL_EXTENSIONS:
        document = read_document(text, format)
        return [NamedRubric(_check_name(prefix + (document.name or stem), 1), document, 1)]
    read: list[NamedRubric] = []
    problems: list[FormatProblem] = []
    for line, row in _rows(text):
        try:
            document = read_document(row, format)
            name = document.name or f"{stem}/{_row_id(row) or f'line-{line}'}".lstrip("/")
            read.append(NamedRubric(_check_name(prefix + name, line), document, line))
        except FormatError as error:
            problems += [FormatProblem(problem.place, problem.message, line) for problem in error.problems]
    if not read and not problems:
        problems.append(FormatProblem("", "no line holds a rubric", 1))
    lines: dict[str, int] = {}
    for rubric in read:
        if lines.setdefault(rubric.name, rubric.line) != rubric.line:
            message = f"line {lines[rubric.name]} gives a rubric {rubric.name!r} too; names in a file must differ"
            problems.append(FormatProblem("", message, rubric.line))
    if problems:
        raise FormatError(problems)
    return read


def _rows(text: str) -> Iterator[tuple[int, str]]:
    for line, row in enumerate(text.split("\n"), start=1):
        if row.strip():
            yield line, row


def _row_id(row: str) -> str:
    value = parse_json(row).value
    if not isinstance(value, dict):
        return ""
    found = next((value[key] for key in _ROW_IDS if isinstance(value.get(key), str | int)), "")
    return _as_name(str(found))


def _as_name(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-._")[:100]


def _check_name(name: str, line: int) -> str:
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        reason = "; ".join(message for _, message in validation_problems(error))
        raise FormatError([FormatProblem("name", f"{name[:80]!r} cannot be a rubric's name: {reason}", line)]) from None
