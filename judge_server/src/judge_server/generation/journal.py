"""A file of JSON lines that is only ever appended to, and outlives a kill at any moment.

A line is on the disk when `append` returns. What a kill left half-written is cut off when the file is opened again.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Journal:
    """Appends to one file, which belongs to one process at a time; open it with `with`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        """Open the file; what the last process left half-written goes."""
        self._file = self.path.open("a+b")
        self._file.truncate(_whole_lines(self.path))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        self._file.close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record, and wait until the disk has it."""
        self._file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The whole records of a journal, in order; none where there is no file.

    Raises:
        ValueError: a whole line is no record, so something else wrote to the file; the message names the line.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number} is no record; mend or remove the line, or use another folder")
            yield record


def _whole_lines(path: Path) -> int:
    """How many bytes of a file are whole lines."""
    block = 1 << 16
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - block)
            file.seek(start)
            at = file.read(end - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
    return 0
