"""The results of `adjudge score`, written as they come, as JSONL or Parquet, and the figures of the summary."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

from adjudge_services.cli.scoring.score_file import ScoredLine
from trainer_client.errors import ConnectionFailed
from trainer_client.tables import result_fields
from trainer_client.wire import GroupRewards, Verdict


class ScoredRows:
    """The results of a file: each is written when it is there, and only figures are kept, unless a table is wanted."""

    def __init__(self, output: Path | None, *, print_rows: bool, keep: bool) -> None:
        self.lines = self.responses = self.refused_lines = 0
        self.judge = ""
        self.kept: list[GroupRewards] = []
        self.unreachable: ConnectionFailed | None = None
        self.refused: dict[int, str] = {}
        """Refused lines and the reasons, the first ones; `refused_lines` counts all."""
        self.unscored: Counter[str] = Counter()
        self.usage: Counter[str] = Counter()
        self._output = output
        self._print_rows = print_rows
        self._keep = keep
        self._write: Callable[[GroupRewards], object] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._output is not None and self._output.suffix == ".parquet":
            file = self._open.enter_context(closing(_ParquetFile(self._output)))
            self._write = file.write
        elif self._output is not None:
            lines = self._open.enter_context(self._output.open("w", encoding="utf-8"))
            self._write = lambda group: lines.write(_json_line(group))
        elif self._print_rows:
            self._write = lambda group: sys.stdout.write(_json_line(group))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, line: ScoredLine) -> None:
        """Take what became of a line."""
        self.lines += 1
        if isinstance(line.error, ConnectionFailed):
            self.unreachable = self.unreachable or line.error
        if line.rewards is None:
            self.refused_lines += 1
            if len(self.refused) < _REASONS_KEPT:
                self.refused[line.number] = str(line.refused)
            return
        self.judge = line.judge or self.judge
        self.responses += len(line.rewards.responses)
        self.unscored += unscored_reasons([line.rewards])
        for usage in line.usage:
            self.usage.update(usage.model_dump())
        if self._keep:
            self.kept.append(line.rewards)
        if self._write is not None:
            self._write(line.rewards)


_REASONS_KEPT = 1_000
"""Refused lines whose reasons are printed; a file of a million bad lines has one reason, mostly."""


def _json_line(group: GroupRewards) -> str:
    return json.dumps(group.model_dump(mode="json"), ensure_ascii=False) + "\n"


def unscored_reasons(groups: Sequence[GroupRewards]) -> Counter[str]:
    """Unscored responses by the kind of their first failure."""
    return Counter(
        next((_reason(v) for v in response.verdicts if v.failure or v.status == "uncertain"), "no reward")
        for group in groups
        for response in group.responses
        if response.status == "unscored"
    )


def _reason(verdict: Verdict) -> str:
    return "uncertain" if verdict.failure is None else verdict.failure.kind


class _ParquetFile:
    """A Parquet file of results, a row a group: its `id`, and the columns of `trainer_client.tables.result_fields`.

    Raises:
        ValueError: pyarrow is missing.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            from pyarrow.parquet import ParquetWriter
        except ImportError as error:
            raise ValueError("writing Parquet needs pyarrow: pip install 'adjudge[tables]'") from error
        text = pyarrow.string()
        types = {"rewards": pyarrow.list_(pyarrow.float64()), "statuses": pyarrow.list_(text)}
        names = ("id", "rewards", "statuses", "failure", "verdicts")
        self._schema = pyarrow.schema([(name, types.get(name, text)) for name in names])
        self._batch = pyarrow.RecordBatch
        self._writer = ParquetWriter(path, self._schema)
        self._rows: list[dict[str, Any]] = []

    def write(self, group: GroupRewards) -> None:
        """Write a group, once enough are there."""
        self._rows.append({"id": group.id} | result_fields(group, single=False))
        if len(self._rows) == _PARQUET_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what waits, and the end of the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(self._batch.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()


_PARQUET_ROWS = 256
"""Rows of a row group: some hundred kilobytes of verdicts."""
