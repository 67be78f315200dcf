"""Parquet files that commands write row by row, so that a file may be larger than the memory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

ColumnType: TypeAlias = Literal["text", "texts", "number", "numbers", "integer", "flag", "messages"]
"""What a column holds; every value may be null. `messages` are those of a chat."""

_ROWS_OF_A_GROUP = 256
"""Rows of a row group: some hundred kilobytes of verdicts."""


class ParquetFile:
    """A Parquet file that is being written.

    Args:
        path: the file, which is overwritten.
        columns: the type of each column.

    Raises:
        ValueError: pyarrow is missing.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, columns: Mapping[str, ColumnType]) -> None:
        try:
            import pyarrow
            from pyarrow.parquet import ParquetWriter
        except ImportError as error:
            raise ValueError("writing Parquet needs pyarrow: pip install 'adjudge[tables]'") from error
        types = _types(pyarrow)
        self._messages = [name for name, type_ in columns.items() if type_ == "messages"]
        self._schema = pyarrow.schema([(name, types[type_]) for name, type_ in columns.items()])
        self._batch = pyarrow.RecordBatch
        self._writer = ParquetWriter(path, self._schema)
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
