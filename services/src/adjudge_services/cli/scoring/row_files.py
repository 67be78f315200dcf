"""The rows of a file of groups, one after another: JSONL, CSV or Parquet, on disk or in an object store."""

import csv
import io
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from trainer_client.tables import group_fields

_COMPRESSED = (".gz", ".bz2", ".xz")

_CSV_LIMIT = 64 * 1024 * 1024
"""Longest value of a CSV file, in characters; the library's own limit is 128 KiB, which a long response exceeds."""


class RowFile:
    """A file of groups, read row by row.

    The ending of its name says what it is: `.parquet`, `.csv` or `.tsv`, and JSONL otherwise. A name such as
    `s3://bucket/key` is opened by fsspec, which also unpacks `.gz`, `.bz2` and `.xz`.

    Iterating gives the row's number and the row: in JSONL, the bytes of a line, and blank lines are skipped; otherwise
    the fields of a group. Rows of a table have more columns than a group has fields: `ignored` names the others. In
    CSV, `responses`, `rubric` and a `prompt` of messages are JSON. A column `response` is one response.

    Args:
        name: a path or a URL.
        limit: read at most so many rows.

    Raises:
        ValueError: a library is missing, or the file is not what its ending says; raised when it is read.
        OSError: it cannot be read.
    """

    def __init__(self, name: str, limit: int | None = None) -> None:
        self.name = name
        self.share_read = 0.0
        """The share of the file that was read, in [0, 1]; 0 where its size is not known."""
        self.ignored: tuple[str, ...] = ()
        self._limit = limit

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        rows = {".parquet": self._parquet, ".csv": self._csv, ".tsv": self._csv}.get(self._kind(), self._jsonl)()
        for count, row in enumerate(rows, 1):
            if self._limit is not None:
                self.share_read = max(self.share_read, count / self._limit)
            yield row
            if count == self._limit:
                break
        self.share_read = 1.0

    def _kind(self) -> str:
        suffixes = [suffix for suffix in Path(self.name).suffixes if suffix not in _COMPRESSED]
        return suffixes[-1].lower() if suffixes else ""

    def _jsonl(self) -> Iterator[tuple[int, bytes]]:
        with _open(self.name) as file:
            size = _size(self.name, file)
            read = 0
            for number, line in enumerate(file, 1):
                read += len(line)
                self.share_read = min(read / size, 1.0) if size else 0.0
                if line.strip():
                    yield number, line

    def _csv(self) -> Iterator[tuple[int, dict[str, Any]]]:
        csv.field_size_limit(max(csv.field_size_limit(), _CSV_LIMIT))
        with _open(self.name) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            size = _size(self.name, file)
            reader = csv.DictReader(text, delimiter="\t" if self._kind() == ".tsv" else ",")
            try:
                self._note_ignored(reader.fieldnames or ())
                for number, row in enumerate(reader, 2):
                    self.share_read = min(file.tell() / size, 1.0) if size else 0.0
                    yield number, group_fields({key: _csv_value(key, value) for key, value in row.items()})
            except csv.Error as error:
                raise ValueError(f"{self.name} is not CSV: {error}") from error
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.name} is not UTF-8: {error}") from error

    def _parquet(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise ValueError("reading Parquet needs pyarrow: pip install 'adjudge[tables]'") from error
        with _open(self.name) as file:
            try:
                table = ParquetFile(file)
                self._note_ignored(table.schema_arrow.names)
                wanted = [name for name in table.schema_arrow.names if name not in self.ignored]
                number = 0
                for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=wanted):
                    for row in batch.to_pylist():
                        number += 1
                        self.share_read = number / table.metadata.num_rows
                        yield number, group_fields(row)
            except ArrowInvalid as error:
                raise ValueError(f"{self.name} is not Parquet: {error}") from error

    def _note_ignored(self, columns: Any) -> None:
        used = group_fields(dict.fromkeys(columns, ""), keep_empty=True)
        renamed = {"response"} if "responses" in used else set()
        self.ignored = tuple(name for name in columns if name not in used and name not in renamed)


_PARQUET_ROWS = 64
"""Rows that are unpacked at a time: few, since a row may be a group of long responses."""


def _csv_value(column: str, value: Any) -> Any:
    """A CSV cell: JSON where a group has a list or an object; an empty cell is a missing value."""
    if not value:
        return None
    if column == "responses" or (column in ("rubric", "prompt") and value.lstrip().startswith(("[{", "{"))):
        try:
            return json.loads(value)
        except ValueError:
            if column == "responses":
                return value  # refused as no list, with this row's number
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
