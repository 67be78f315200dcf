"""The spool: rows on their way to the database, in files of this process, in order and within a bound.

A file holds rows column by column, which takes half the time and half the room of rows one by one.

Each process has a folder of its own, locked while it lives. What a process left that was killed is taken over by the
next one that starts. Knows no database.
"""

import base64
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from pydantic_core import from_json, to_json

from trainer_client.wire.ledger_rows import LedgerRows, RequestRow, ResponseRow, TextRow, UseRow, VerdictRow

_SUFFIX = ".rows"


class SpoolFull(Exception):
    """The spool holds as much as it may."""


class Spooled(NamedTuple):
    """A file of the spool: where it is, how many bytes it has, and how many uses, None where nobody has counted."""

    path: Path
    size: int
    uses: int | None = None


class Spool:
    """Files in folders under `root`, `max_bytes` of them at most; opening it takes over what dead processes left.

    One thread may add while another takes away.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        root.mkdir(parents=True, exist_ok=True)
        self._files: deque[Spooled] = deque()
        self._locks: list[FileLock] = []
        self._counting = threading.Lock()
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            self._take_over(folder)
        self._folder = self._new_folder(root)
        self._number = 0
        self.bytes = sum(file.size for file in self._files)

    def add(self, rows: LedgerRows) -> Spooled:
        """Write rows to a file, whole or not at all.

        Raises:
            SpoolFull: there is no room.
            OSError: the file cannot be written.
        """
        written = to_json([_columns_of(kind) for kind in rows], bytes_mode="base64")
        if self.bytes + len(written) > self._max_bytes:
            raise SpoolFull
        path = self._folder / f"{self._number:012d}{_SUFFIX}"
        self._number += 1
        half = path.with_suffix(".half")
        half.write_bytes(written)
        half.rename(path)
        file = Spooled(path, len(written), len(rows.uses))
        with self._counting:
            self.bytes += file.size
            self._files.append(file)
        return file

    def first(self) -> Spooled | None:
        """The oldest file; None where there is none."""
        return self._files[0] if self._files else None

    def oldest(self, uses: int) -> list[Spooled]:
        """The oldest file, and those behind it that have no more than so many uses together with it.

        One whose uses nobody has counted comes alone.
        """
        taken: list[Spooled] = []
        with self._counting:
            for file in self._files:
                uses -= uses if file.uses is None else file.uses
                if taken and (uses < 0 or file.uses is None):
                    break
                taken.append(file)
                if uses <= 0:
                    break
        return taken

    def remove_first(self) -> None:
        """Drop the oldest file: its rows are where they belong."""
        with self._counting:
            file = self._files.popleft()
            self.bytes -= file.size
        file.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the folders; those that are empty are removed, the others wait for the next process."""
        for lock in self._locks:
            folder = Path(lock.lock_file).parent
            if not any(path.suffix == _SUFFIX for path in folder.iterdir()):
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()
            lock.release()

    def _new_folder(self, root: Path) -> Path:
        while True:
            folder = root / f"{time.time_ns():020d}-{os.getpid()}"
            folder.mkdir()
            if self._lock(folder):  # else another process that starts took it for a dead one's
                return folder

    def _take_over(self, folder: Path) -> None:
        if self._lock(folder):
            files = sorted(folder.glob(f"*{_SUFFIX}"))
            self._files.extend([Spooled(path, path.stat().st_size) for path in files])

    def _lock(self, folder: Path) -> bool:
        lock = FileLock(folder / "lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):  # its process lives, or has just removed it
            return False
        self._locks.append(lock)
        return True


def read_rows(file: Spooled) -> LedgerRows:
    """The rows of a file.

    Raises:
        ValueError: they cannot be read.
    """
    counted = from_json(file.path.read_bytes())
    return LedgerRows(*(_rows_of(kind, *given) for kind, given in zip(_KINDS, counted, strict=True)))


_KINDS: tuple[Any, ...] = (TextRow, VerdictRow, RequestRow, ResponseRow, UseRow)

_READERS: dict[Any, Callable[[str], Any]] = {
    bytes: base64.urlsafe_b64decode,
    bytes | None: base64.urlsafe_b64decode,
    datetime: datetime.fromisoformat,
}


def _columns_of(rows: Sequence[tuple[Any, ...]]) -> tuple[int, list[tuple[Any, ...]]]:
    """How many rows there are, and their columns; of a column that holds one value throughout, that value once."""
    columns = zip(*rows, strict=True)
    return len(rows), [column[:1] if column.count(column[0]) == len(column) else column for column in columns]


def _rows_of(kind: Any, count: int, columns: list[list[Any]]) -> list[Any]:
    known = list(kind.__annotations__.values())
    if count and not len(known) - len(kind._field_defaults) <= len(columns) <= len(known):
        raise ValueError(f"{kind.__name__} has {len(known)} columns, and this file {len(columns)}")
    read = []
    for values, type_ in zip(columns, known, strict=False):  # a file of an older version lacks the newest columns
        reader = _READERS.get(type_)
        own = values if reader is None else [None if value is None else reader(value) for value in values]
        read.append(own * count if len(own) == 1 else own)
    return [kind(*row) for row in zip(*read, strict=True)]
