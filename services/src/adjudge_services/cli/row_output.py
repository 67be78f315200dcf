"""Rows that commands write one by one, so that results may be larger than the memory."""

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from adjudge_services.cli.options import UsageError

Row: TypeAlias = Mapping[str, Any]
ColumnType: TypeAlias = Literal["text", "texts", "number", "numbers", "integer", "flag", "messages"]
"""What a column holds; every value may be null. `messages` are those of a chat."""

_ROWS_OF_A_GROUP = 256
"""Rows of a row group: some hundred kilobytes of verdicts."""


class RowOutput:
    """Writes rows to standard output as JSONL, or to a file as JSONL or, if it ends in `.parquet`, as Parquet.

    A file is opened with the first row, or without any when the block ends: a command that fails before leaves it as it
    was.

    Args:
        path: the file; None for standard output.
        columns: returns the types of Parquet's columns for the first row; without it, every file is JSONL.
        whole: replace the file when the block has ended, and only if there is a row. What is not a regular file, such
            as a device, is written to as it is.

    Attributes:
        is_parquet: whether the rows are written as Parquet.

    Raises:
        ValueError: pyarrow is missing, or a file of JSONL would be named like one of Parquet.
        OSError: the file cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        columns: Callable[[Row], Mapping[str, ColumnType]] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.is_parquet = columns is not None and path is not None and path.suffix.lower() == ".parquet"
        self._path = path
        self._columns = columns
        self._whole = whole
        self._part: Path | None = None
        self._write: Callable[[Row], object] | None = None
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        if self.is_parquet:
            _import_pyarrow()
        elif self._path is not None and self._path.suffix.lower() == ".parquet":
            raise UsageError(f"{self._path} would be JSONL, which this command writes; name a file that ends in .jsonl")
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is None and self._write is None and not self._whole:
                self._write = self._open({})
            self._opened.close()
            if error is None and self._path is not None and self._part is not None:
                self._part.replace(self._path.resolve())
        finally:
            if self._part is not None:
                self._part.unlink(missing_ok=True)

    def write(self, row: Row) -> None:
        """Write a row."""
        if self._write is None:
            self._write = self._open(row)
        self._write(row)

    def _open(self, first: Row) -> Callable[[Row], object]:
        path = self._path
        if path is None:
            return lambda row: sys.stdout.write(_json_line(row))
        if self._whole and (path.is_file() or not path.exists()):
            target = path.resolve()
            path = self._part = target.with_name(f"{target.stem}.{secrets.token_hex(8)}{path.suffix}")
        if self._columns is not None and self.is_parquet:
            return self._opened.enter_context(closing(_ParquetFile(path, self._columns(first)))).write
        lines = self._opened.enter_context(path.open("w", encoding="utf-8"))
        return lambda row: lines.write(_json_line(row))


def _json_line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


class _ParquetFile:
    """A Parquet file that is being written.

    Args:
        path: the file, which is overwritten.
        columns: the type of each column.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, columns: Mapping[str, ColumnType]) -> None:
        pyarrow, parquet = _import_pyarrow()
        types = _types(pyarrow)
        self._messages = [name for name, type_ in columns.items() if type_ == "messages"]
        self._schema = pyarrow.schema([(name, types[type_]) for name, type_ in columns.items()])
        self._batch = pyarrow.RecordBatch
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[Mapping[str, Any]] = []

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row, once enough are there."""
        self._rows.append(dict(row) | {name: _plain(row[name]) for name in self._messages})
        if len(self._rows) == _ROWS_OF_A_GROUP:
            self._flush()

    def close(self) -> None:
        """Write what waits, and the end of the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(self._batch.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()


def _import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet; raises `ValueError` if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError("writing Parquet needs pyarrow: pip install 'adjudge[tables]'") from error
    return pyarrow, pyarrow.parquet


def _types(arrow: Any) -> dict[ColumnType, Any]:
    """Return the Arrow types of columns; those of messages are the fields of `trainer_client.wire.Message`."""
    text, number = arrow.string(), arrow.float64()
    function = arrow.struct([("name", text), ("arguments", text)])
    call = arrow.struct([("function", function), ("id", text), ("type", text)])
    texts = ("role", "content", "reasoning_content", "tool_call_id", "name")
    message = arrow.struct([*((name, text) for name in texts), ("tool_calls", arrow.list_(call))])
    return {
        "text": text,
        "texts": arrow.list_(text),
        "number": number,
        "numbers": arrow.list_(number),
        "integer": arrow.int64(),
        "flag": arrow.bool_(),
        "messages": arrow.list_(message),
    }


def _plain(messages: Any) -> Any:
    """Return messages with the arguments of their tool calls as JSON text, since a column has one type."""

    def as_text(call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = function.get("arguments", "")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": arguments}}

    return [
        {**one, "tool_calls": [as_text(call) for call in one["tool_calls"]]} if one.get("tool_calls") else one
        for one in messages
    ]
