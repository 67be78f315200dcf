"""Files of rows that a user brings: JSONL, CSV or Parquet, on disk or in an object store.

One reader for all commands: the same fields in every format, from columns of other names where the user says so.
"""

import csv
import difflib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from trainer_client.rows.tables import GROUP_FIELDS, lookalike, row_fields

_COMPRESSED = (".gz", ".bz2", ".xz")

_CSV_LIMIT = 64 * 1024 * 1024
"""Longest value of a CSV file, in characters; the library's own limit is 128 KiB, which a long response exceeds."""

_READ_PARQUET_ROWS = 64
"""Rows that are unpacked at a time: few, since a row may be a group of long responses."""

_MOST_IGNORED = 100
"""Names of ignored columns that are kept; the rows of a JSONL file may each have others."""

_MORE_CELLS = "it has more cells than the header; put a text with the separator in it into double quotes"

_TEXTS = frozenset({"response", "grounding", "reference_answer", "ground_truth", "id", "task", "a", "b"})
"""Fields that are text even if it looks like JSON."""


def parse_columns(given: Iterable[str] | None, fields: Iterable[str] = GROUP_FIELDS) -> dict[str, str]:
    """Read options such as `prompt=question`: the column that holds each field.

    Raises:
        ValueError: one has another form, or names a field that a row does not have.
    """
    known, columns = (*fields, "response"), dict[str, str]()
    for one in given or ():
        field, equals, column = one.partition("=")
        if not equals or not field or not column:
            raise ValueError(f"--column {one!r}: write FIELD=COLUMN, such as prompt=question")
        if field not in known:
            close = difflib.get_close_matches(field, known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else f"; the fields are {', '.join(known)}"
            raise ValueError(f"--column {one!r}: a row has no field {field!r}{meant}")
        columns[field] = column
    return columns


def _hint(column: str, field: str) -> str:
    return f"{column!r} may be {field}: --column {field}={column}"


class RowFile:
    """A file of rows, read row by row.

    The ending of its name says what it is: `.parquet`, `.csv` or `.tsv`, and JSONL otherwise. A name such as
    `s3://bucket/key` is opened by fsspec, which also unpacks `.gz`, `.bz2` and `.xz`.

    Iterating gives each row's number (of its line, if it has one) and its fields, or a `ValueError` for a line that is
    not an object. Blank lines are skipped. Columns that are no field are left out, and `ignored` names them. In CSV, a
    cell that begins with a bracket is JSON, but for texts. A column `response` holds one response.

    Args:
        name: a path or a URL.
        limit: read at most so many rows.
        columns: the column that holds a field, where it has another name: `{"prompt": "question"}`.
        fields: the fields to read.

    Raises:
        ValueError: a library is missing, the file is not what its ending says, or a table lacks a column of `columns`
            or has a column twice; raised when it is read.
        OSError: it cannot be read.
    """

    def __init__(
        self,
        name: str,
        limit: int | None = None,
        *,
        columns: Mapping[str, str] | None = None,
        fields: Iterable[str] = GROUP_FIELDS,
    ) -> None:
        self.name = name
        self.share_read = 0.0
        """The share of the file that was read, in [0, 1]; 0 where its size is not known."""
        self._limit = limit
        self._columns = dict(columns or {})
        self._fields = tuple(fields)
        self._used = {self._columns.get(field, field) for field in (*self._fields, "response")}
        self._ignored: dict[str, None] = {}
        self._seen: set[str] = set()

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
        rows = {".parquet": self._parquet, ".csv": self._csv, ".tsv": self._csv}.get(self._kind(), self._jsonl)()
        for count, row in enumerate(rows, 1):
            if self._limit is not None:
                self.share_read = max(self.share_read, count / self._limit)
            yield row
            if count == self._limit:
                break
        self.share_read = 1.0

    @property
    def notice(self) -> str:
        """What to tell the user about columns that were not read; empty if there is nothing."""
        said = [f"not read: {', '.join(self._ignored)}"] if self._ignored else []
        unseen = [field for field in self._fields if field not in self._seen]
        if "response" in self._seen:
            unseen = [field for field in unseen if field != "responses"]
        hints: dict[str, str] = {}
        for field in unseen:
            if column := self._lookalike(field):
                hints.setdefault(column, _hint(column, field))
        said += hints.values()
        said += [f"no row has the column {name!r}" for name in self._columns.values() if name not in self._seen]
        return "; ".join(said) if self._seen or self._ignored else ""

    def hint(self, field: str) -> str:
        """Say which column that was not read may hold a field; empty if none looks like it."""
        column = self._lookalike(field)
        return _hint(column, field) if column else ""

    def _lookalike(self, field: str) -> str | None:
        if field in self._columns:
            return None
        return next((name for name in self._ignored if lookalike(name, field)), None)

    def _kind(self) -> str:
        suffixes = [suffix for suffix in Path(self.name).suffixes if suffix not in _COMPRESSED]
        return suffixes[-1].lower() if suffixes else ""

    def _row(self, row: Mapping[str, Any], *, padded: bool) -> dict[str, Any] | ValueError:
        self._note(row)
        try:
            return row_fields(row, self._columns, self._fields, padded=padded)
        except ValueError as error:
            return error

    def _note(self, columns: Iterable[str]) -> None:
        for name in columns:
            if name in self._used:
                self._seen.add(name)
            elif len(self._ignored) < _MOST_IGNORED:
                self._ignored[name] = None

    def _require_columns(self, names: Iterable[str]) -> None:
        present = list(names)
        self._note(present)
        if twice := [name for name in present if name in self._used and present.count(name) > 1]:
            raise ValueError(f"{self.name} has the column {twice[0]!r} twice; rename one")
        for field, column in self._columns.items():
            if column not in present:
                raise ValueError(
                    f"{self.name} has no column {column!r} for {field}; its columns are {', '.join(present)}"
                )

    def _jsonl(self) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
        with _open(self.name) as file:
            size = _size(self.name, file)
            read = 0
            for number, line in enumerate(file, 1):
                read += len(line)
                self.share_read = min(read / size, 1.0) if size else 0.0
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not text.strip():
                    continue
                try:
                    row = json.loads(text)
                except (ValueError, RecursionError) as error:
                    yield number, ValueError(f"not JSON: {error}")
                    continue
                if isinstance(row, dict):
                    yield number, self._row(row, padded=False)
                else:
                    yield number, ValueError(f"not an object with fields such as {', '.join(self._fields[:3])}")

    def _csv(self) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
        csv.field_size_limit(max(csv.field_size_limit(), _CSV_LIMIT))
        field_of = {column: field for field, column in self._columns.items()}
        with _open(self.name) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            size = _size(self.name, file)
            reader = csv.DictReader(text, delimiter="\t" if self._kind() == ".tsv" else ",")
            try:
                self._require_columns([name for name in reader.fieldnames or () if name])
                for number, row in enumerate(reader, 2):
                    self.share_read = min(file.tell() / size, 1.0) if size else 0.0
                    if any(row.get(None, ())):
                        yield number, ValueError(_MORE_CELLS)
                        continue
                    cells = {name: _cell(field_of.get(name, name), value) for name, value in row.items() if name}
                    yield number, self._row(cells, padded=False)
            except csv.Error as error:
                raise ValueError(f"{self.name} is not CSV: {error}") from error
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.name} is not UTF-8: {error}") from error

    def _parquet(self) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
        try:
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise ValueError("reading Parquet needs pyarrow: pip install 'adjudge[tables]'") from error
        with _open(self.name) as file:
            try:
                table = ParquetFile(file)
                names = table.schema_arrow.names
                self._require_columns(names)
                wanted = [name for name in names if name in self._used]
                number = 0
                for batch in table.iter_batches(batch_size=_READ_PARQUET_ROWS, columns=wanted):
                    for row in batch.to_pylist():
                        number += 1
                        self.share_read = number / table.metadata.num_rows
                        yield number, self._row(row, padded=True)
            except ArrowInvalid as error:
                raise ValueError(f"{self.name} is not Parquet: {error}") from error


def _cell(field: str, value: Any) -> Any:
    """Read a CSV cell: JSON where it begins with a bracket and is no text; an empty cell is a missing value."""
    if not isinstance(value, str) or not value:
        return None
    if field not in _TEXTS and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _open(name: str) -> AbstractContextManager[IO[bytes]]:
    if "://" not in name and not name.endswith(_COMPRESSED):
        return Path(name).open("rb")
    try:
        import fsspec
    except ImportError as error:
        raise ValueError(f"reading {name} needs fsspec: pip install 'adjudge[tables]'") from error
    try:
        opened: AbstractContextManager[IO[bytes]] = fsspec.open(name, "rb", compression="infer")
    except ImportError as error:  # s3fs, gcsfs, adlfs
        raise ValueError(f"{name}: {error}") from error
    return opened


def _size(name: str, file: Any) -> int | None:
    """The size of an open file in bytes; None for a compressed one, which does not say what is in it."""
    if name.endswith(_COMPRESSED):
        return None
    size = getattr(file, "size", None)
    return size if isinstance(size, int) else os.fstat(file.fileno()).st_size
