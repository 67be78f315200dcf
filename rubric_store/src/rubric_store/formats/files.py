"""Read files of rubrics: one rubric, or one per line, row or test.

Rubrics are named after the file and the row. By default a file is read as a whole: if one of its rubrics cannot be
read, none is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from rubric_store.formats.documents import (
    FormatError,
    FormatProblem,
    InvalidValueError,
    ParsedText,
    Path,
    RubricDocument,
    decode,
    fold_problems,
    format_path,
    parse_json,
    validation_problems,
)
from rubric_store.formats.reading import is_rubric, parse_text, read_value, rubric_rows
from rubric_store.formats.rows import normalise, read_table
from rubric_store.formats.table import RubricFormat, check_format
from trainer_client.wire import NewRubricName

JSONL_EXTENSIONS: Final = frozenset({".jsonl", ".ndjson"})
"""Extensions of files with one rubric per line."""

TABLE_EXTENSIONS: Final = frozenset({".csv", ".tsv", ".parquet"})
"""Extensions of tables with one rubric per row."""

FILE_EXTENSIONS: Final = frozenset({".json", ".yaml", ".yml", ".txt", ".srar", *JSONL_EXTENSIONS, *TABLE_EXTENSIONS})
"""Extensions of the files that are read from a folder."""

_ROW_IDS = ("name", "id", "prompt_id", "example_id", "sample_id", "uid", "doc_hash")
_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class NamedRubric:
    """A rubric of a file, with its name and the line where it begins."""

    name: str
    document: RubricDocument
    line: int


class RubricCounts(NamedTuple):
    """How many rubrics a file has: those kept as they are, those changed, those refused, and their sum."""

    read: int
    kept: int
    changed: int
    refused: int


@dataclass(frozen=True, slots=True)
class RubricFile:
    """What a file holds: the rubrics that can be read, and the problems of the others."""

    rubrics: list[NamedRubric]
    problems: tuple[FormatProblem, ...]
    refused: int

    @property
    def counts(self) -> RubricCounts:
        """How many rubrics were read, and what became of them."""
        changed = sum(bool(rubric.document.changes) for rubric in self.rubrics)
        came_in = len(self.rubrics)
        return RubricCounts(came_in + self.refused, came_in - changed, changed, self.refused)

    @property
    def changes(self) -> list[FormatProblem]:
        """What the rubrics do not hold as the file has it, each with its line; those of one kind are folded."""
        return fold_problems(
            FormatProblem(change.place, change.message, change.line or rubric.line)
            for rubric in self.rubrics
            for change in rubric.document.changes
        )

    def as_whole(self) -> "RubricFile":
        """The file as it is published as a whole: none of its rubrics if there is a problem."""
        return RubricFile([], self.problems, self.refused + len(self.rubrics)) if self.problems else self


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a file: its path in the file's value, its line, its normalised value, and a name for one without."""

    path: Path
    line: int
    value: object
    label: str


def read_file(content: bytes, path: PurePath, format: str | None = None, prefix: str = "") -> list[NamedRubric]:
    """Read every rubric of a file; see `read_rows`.

    Raises:
        FormatError: with every problem of the file and its line.
    """
    read = read_rows(content, path, format, prefix)
    if read.problems:
        raise FormatError(read.problems)
    return read.rubrics


def read_rows(content: bytes, path: PurePath, format: str | None = None, prefix: str = "") -> RubricFile:
    """Read the rubrics of a file that can be read, and list the problems of the others.

    Args:
        content: the bytes of the file, UTF-8 or Parquet.
        path: the part of its path that names are made from: `math/Quadratics.yaml` gives `math/quadratics`. A row of a
            file of several adds its id, or else its line: `health/dev/line-12`.
        format: see `read_document`.
        prefix: put before every name, also before a name given in the file.

    Raises:
        FormatError: the file as a whole cannot be read.
    """
    known = None if format is None else check_format(format)
    extension = path.suffix.lower()
    stem = "/".join(part for part in map(_as_name, (*path.parts[:-1], path.stem)) if part)
    problems: list[FormatProblem] = []
    parsed: ParsedText | None = None
    if extension in TABLE_EXTENSIONS:
        table = read_table(content, extension, problems)
        rows = [_Row((), line, normalise(row), f"line-{line}") for line, row in table]
    elif extension in JSONL_EXTENSIONS:
        rows = _json_lines(decode(content), problems)
    else:
        text = parse_text(decode(content), known)
        if isinstance(text, RubricDocument):
            return RubricFile([NamedRubric(_check_name(prefix + (text.name or stem), 1), text, 1)], (), 0)
        parsed = text
        rows = _parts(parsed, known)
        problems += parsed.problems
    refused = len({problem.line for problem in problems})
    in_rows = parsed is None or len(rows) > 1
    if parsed is None and len(rows) > 1 and _is_one_rubric(rows, known):
        if problems:  # a rubric is not read without some of its criteria
            return RubricFile([], FormatError(problems).problems, 1)
        rows, in_rows = [_Row((), rows[0].line, [row.value for row in rows], "")], False
    if not rows and not problems:
        problems.append(FormatProblem("", "no line contains a rubric", 1))
        refused = 1
    rubrics: list[NamedRubric] = []
    found: list[tuple[int, Path, str]] = []
    lines: dict[str, int] = {}
    for row in rows:
        try:
            document = read_value(row.value, known)
            own = f"{stem}/{_row_id(row.value) or row.label}".lstrip("/") if in_rows else stem
            name = _check_name(prefix + (document.name or own), row.line)
            if name in lines:
                message = f"line {lines[name]} also names a rubric {name!r}; names in a file must differ"
                raise FormatError.of(message, row.line)
        except InvalidValueError as error:
            found += [(row.line, (*row.path, *place), message) for place, message in error.found]
            refused += 1
        except FormatError as error:
            problems += error.problems
            refused += 1
        else:
            lines[name] = row.line
            rubrics.append(NamedRubric(name, document, row.line))
    exact = parsed.line_of([path for _, path, _ in found]) if parsed is not None else {}
    problems += [FormatProblem(format_path(path), message, exact.get(path, line)) for line, path, message in found]
    unusable = parsed is not None and parsed.problems
    return RubricFile([] if unusable else rubrics, FormatError(problems).problems, refused)


def _json_lines(text: str, problems: list[FormatProblem]) -> list[_Row]:
    rows: list[_Row] = []
    for line, row in enumerate(text.split("\n"), start=1):
        if not row.strip():
            continue
        try:
            parsed = parse_json(row)
            if parsed.problems:
                raise FormatError(parsed.problems)
            rows.append(_Row((), line, normalise(parsed.value), f"line-{line}"))
        except FormatError as error:
            problems += [FormatProblem(problem.place, problem.message, line) for problem in error.problems]
    return rows


def _parts(parsed: ParsedText, known: RubricFormat | None) -> list[_Row]:
    parts = rubric_rows(normalise(parsed.value), known)
    if len(parts) == 1:
        return [_Row((), 1, normalise(parsed.value), "")]
    starts = parsed.line_of([path for path, _ in parts])
    return [_Row(path, starts[path], row, f"row-{number}") for number, (path, row) in enumerate(parts, start=1)]


def _is_one_rubric(rows: Sequence[_Row], known: RubricFormat | None) -> bool:
    """Whether the rows are the criteria of one rubric, and none of the first is a rubric by itself."""
    if any(is_rubric(row.value, known) for row in rows[:_SAMPLE]):
        return False
    return is_rubric([row.value for row in rows], known)


_SAMPLE = 20


def _row_id(row: object) -> str:
    if not isinstance(row, dict):
        return ""
    row_id = next((row[key] for key in _ROW_IDS if isinstance(row.get(key), str | int)), "")
    return _as_name(str(row_id))


def _as_name(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-._")[:100]


def _check_name(name: str, line: int) -> str:
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        reason = "; ".join(message for _, message in validation_problems(error))
        raise FormatError.of(f"{name[:80]!r} is not a valid rubric name: {reason}", line, "name") from None
