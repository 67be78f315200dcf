"""Rows and wrappers of published data sets: what is beside a rubric, around it, and in which spelling.

`normalise` makes rows alike before a format sees them: field names in any case, numbers and lists as texts, Arrow's
nulls. `candidates` walks from a row down to the places where data sets keep a rubric. `split_rows` and the readers of
tables find the rows of a file.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from rubric_store.formats.documents import FormatError, FormatProblem, Path, decode

_RUBRIC_FIELDS: Final = (
    "rubric",
    "rubrics",
    "score_rubric",
    "rubric_items",
    "rubric_list",
    "grading_rubric",
    "criteria",
    "reward_model",
    "extra_info",
    "ground_truth",
    "answer",
    "row",
)
"""Fields of a row in which data sets keep a rubric, the likeliest first."""

_ROW_FIELDS: Final = (
    "data",
    "rows",
    "examples",
    "records",
    "items",
    "rubrics",
    "dataset",
    "train",
    "validation",
    "test",
)
"""Fields of a file that hold its rows."""

_JSON_FIELDS: Final = frozenset({*_RUBRIC_FIELDS, *_ROW_FIELDS, "tags", "parameters", "options", "levels"})
_NUMBERS: Final = frozenset({"weight", "points"})
_VERBATIM: Final = frozenset({"metadata", "lineage", "verification", "vars", "schema", "value"})
"""Fields whose inner names and nulls mean something."""

_NUMBER = re.compile(r"\s*[-+]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][-+]?\d{1,3})?\s*", re.ASCII)
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MAX_DEPTH = 100


def normalise(value: object, depth: int = 0) -> object:
    """A parsed value with field names in snake case, without nulls, and with weights as numbers.

    JSON texts in the fields of a rubric are parsed. What is below `metadata`, `lineage`, `verification` and the like
    stays as it is.
    """
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [normalise(inner, depth + 1) for inner in value]
    if not isinstance(value, dict):
        return value
    fields: dict[str, object] = {}
    for name, inner in value.items():
        key = _snake_case(name)
        if key != name and key in value:
            key = name
        if inner is None:
            continue
        fields[key] = inner if key in _VERBATIM and isinstance(inner, dict | list) else _field(key, inner, depth)
    return fields


def _field(key: str, value: object, depth: int) -> object:
    if not isinstance(value, str):
        return normalise(value, depth + 1)
    if key in _NUMBERS and _NUMBER.fullmatch(value):
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < 1e15 else number
    if key in _JSON_FIELDS and value.lstrip()[:1] in ("{", "["):
        try:
            return normalise(json.loads(value), depth + 1)
        except (ValueError, RecursionError):
            return value
    return value


@lru_cache(maxsize=4096)
def _snake_case(name: str) -> str:
    if len(name) > 100:
        return name
    return _WORD_BOUNDARY.sub("_", name.strip()).lower().replace(" ", "_").replace("-", "_")


def candidates(value: object) -> Iterator[tuple[Path, object]]:
    """The value itself, and then what the fields of a rubric hold, level by level."""
    level: list[tuple[Path, object]] = [((), value)]
    for _ in range(4):
        yield from level
        level = [
            ((*path, key), inner[key])
            for path, inner in level
            if isinstance(inner, dict)
            for key in _RUBRIC_FIELDS
            if key in inner
        ]


def split_rows(value: object) -> list[tuple[Path, object]] | None:
    """The rows of a value that holds several, each with its path, or None: a list of objects, also in a wrapper."""
    path: Path = ()
    for _ in range(2):
        key = next((key for key in _ROW_FIELDS if isinstance(value, dict) and isinstance(value.get(key), list)), None)
        if key is None or not isinstance(value, dict):
            break
        path, value = (*path, key), value[key]
    if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
        return None
    return [((*path, index), row) for index, row in enumerate(value)]


def read_table(content: bytes, extension: str, problems: list[FormatProblem]) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a `.csv`, `.tsv` or `.parquet` file, each with its line or number, without empty cells.

    A row of CSV with more cells than the header is left out, and added to `problems`.

    Raises:
        FormatError: the file is not such a table, or pyarrow is missing.
    """
    if extension == ".parquet":
        return list(enumerate(_parquet_rows(content), start=1))
    text = decode(content)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if extension == ".tsv" else ",")
    limit = csv.field_size_limit(max(len(text), 1))
    rows: list[tuple[int, dict[str, Any]]] = []
    line = 2
    try:
        names = Counter(name for name in reader.fieldnames or () if name)
        if twice := [name for name, count in names.items() if count > 1]:
            raise FormatError.of(f"it has the column {twice[0][:40]!r} twice; rename one", 1)
        for row in reader:
            if any(row.get(None, ())):
                message = "it has more cells than the header; put a text with the separator in it into double quotes"
                problems.append(FormatProblem("", message, line))
            else:
                rows.append((line, {key: cell for key, cell in row.items() if key and cell}))
            line = reader.line_num + 1
    except csv.Error as error:
        raise FormatError.of(f"this is not CSV: {error}", reader.line_num) from None
    finally:
        csv.field_size_limit(limit)
    return rows


def _parquet_rows(content: bytes) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, BufferReader
        from pyarrow.parquet import read_table as read_parquet
    except ImportError:
        raise FormatError.of("reading Parquet needs pyarrow: pip install 'adjudge[tables]'", 1) from None
    try:
        rows: list[dict[str, Any]] = read_parquet(BufferReader(content)).to_pylist()
    except (ArrowException, OSError) as error:
        raise FormatError.of(f"this is not Parquet: {error}", 1) from None
    return rows
