"""Rows on their way to the database in files, and refused rows in quarantine.

The spool: rows on their way to the database, in files of this process, in order and within bounds.

A file holds rows column by column, which takes half the time and half the room of rows one by one. Rows whose file
cannot be written (no space, no descriptors, an error of the device) wait in memory, within a bound of its own, and
are written as soon as that works again. A file that cannot be removed is tried again later.

Each process has a folder of its own, locked while it lives. What a process left that was killed is taken over by the
next one that starts. Knows no database.

Rows that the ledger refused, kept aside in files, each with the reason, to be looked at and written again.

Knows files and rows; refuses to know why a row is refused.
"""

import base64
import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from pydantic_core import from_json, to_json

from judge_server.observability.logs import describe_error
from trainer_client.wire.ledger_rows import (
    LedgerRows,
    RefusedRows,
    RequestRow,
    ResponseRow,
    TextRow,
    UseRow,
    VerdictRow,
)

log = logging.getLogger("adjudge")

QUARANTINE_FOLDER = "refused"
"""The folder beside those of processes with what the database refused: see `judge_server.ledger.spool`."""

MAX_MEMORY_BYTES = 2**27
"""What waits in memory while files cannot be written; what comes beyond it is lost."""

_SUFFIX = ".rows"


class SpoolFull(Exception):
    """The spool holds as much as it may; the message says which bound was met."""


@dataclass(slots=True, eq=False)
class SpoolEntry:
    """Rows in the spool: in the file at `path`, or in memory as `body` while that cannot be written.

    `size` is in bytes, `uses` None where they were not counted, `since` the Unix time from which on they wait.
    """

    path: Path | None
    body: bytes | None
    size: int
    uses: int | None
    since: float

    @property
    def name(self) -> str:
        """What to call it in a log."""
        return "rows in memory" if self.path is None else self.path.name

    def read(self) -> bytes:
        """What `encode` made of the rows; raises `OSError` where the file cannot be read."""
        body = self.body
        if body is not None:
            return body
        assert self.path is not None  # it is set before the body is let go of
        return self.path.read_bytes()


class Spool:
    """Files in folders under `root`, `max_bytes` of them at most; opening it takes over what dead processes left.

    `problem` says why files cannot be written, None while they can. One thread may add and settle while another takes
    away.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, root: Path, max_bytes: int, max_memory_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_memory_bytes = max_memory_bytes
        root.mkdir(parents=True, exist_ok=True)
        self._files: deque[SpoolEntry] = deque()
        self._in_memory: deque[SpoolEntry] = deque()
        self._pending_removals: deque[SpoolEntry] = deque()
        self._locks: list[FileLock] = []
        self._counts_lock = threading.Lock()
        self.problem: str | None = None
        self.memory_bytes = 0
        for folder in sorted(path for path in root.iterdir() if path.is_dir() and path.name != QUARANTINE_FOLDER):
            self._adopt(folder)
        self._folder = self._new_folder(root)
        self._number = 0
        self.bytes = sum(file.size for file in self._files)

    def add(self, rows: LedgerRows) -> SpoolEntry:
        """Write rows to a file, whole or not at all; where that does not work now, keep them in memory.

        Raises:
            SpoolFull: there is no room.
        """
        body = encode(rows)
        size = len(body)
        if self.bytes + self.memory_bytes + size > self._max_bytes:
            raise SpoolFull("the spool is full")
        entry = SpoolEntry(None, body, size, len(rows.uses), time.time())
        path = None if self._in_memory else self._write(body)
        if path is None and self.memory_bytes + size > self._max_memory_bytes:
            raise SpoolFull(f"the spool cannot be written ({self.problem}), and memory is full")
        with self._counts_lock:
            if path is None:
                self.memory_bytes += size
                self._in_memory.append(entry)
            else:
                entry.path, entry.body = path, None
                self.bytes += size
            self._files.append(entry)
        return entry

    def flush_pending(self) -> None:
        """Write files for what waits in memory, and remove those that could not be removed, as far as that works."""
        while self._in_memory:
            pending = self._in_memory[0]
            body = pending.body
            path = None if body is None else self._write(body)
            if body is not None and path is None:
                break
            with self._counts_lock:
                self._in_memory.popleft()
                if pending.body is not None:
                    pending.path, pending.body = path, None
                    self.memory_bytes -= pending.size
                    self.bytes += pending.size
                    continue
            if path is not None:  # the ledger took it from memory meanwhile
                self._unlink(SpoolEntry(path, None, 0, None, 0.0))
        for _ in range(len(self._pending_removals)):
            if not self._unlink(self._pending_removals.popleft()):
                break

    def first(self) -> SpoolEntry | None:
        """What has waited longest; None where nothing waits."""
        try:
            return self._files[0]
        except IndexError:
            return None

    def oldest(self, uses: int) -> list[SpoolEntry]:
        """The oldest, and those behind it that have no more than so many uses together with it.

        One whose uses were not counted comes alone.
        """
        taken: list[SpoolEntry] = []
        with self._counts_lock:
            for file in self._files:
                uses -= uses if file.uses is None else file.uses
                if taken and (uses < 0 or file.uses is None):
                    break
                taken.append(file)
                if uses <= 0:
                    break
        return taken

    def requeue(self, file: SpoolEntry) -> None:
        """Have all others come before it."""
        with self._counts_lock:
            self._files.remove(file)
            self._files.append(file)

    def remove(self, file: SpoolEntry) -> None:
        """Drop it: its rows are where they belong. A file that cannot be removed now is removed later."""
        with self._counts_lock:
            self._files.remove(file)
            if file.path is None:
                file.body = None
                self.memory_bytes -= file.size
        if file.path is not None:
            self._unlink(file, log_failure=True)

    def close(self) -> int:
        """Let go of the folders, and return how many uses in memory are lost with that.

        Folders that are empty are removed, the others wait for the next process.
        """
        for lock in self._locks:
            folder = Path(lock.lock_file).parent
            with suppress(OSError):
                if not any(path.suffix == _SUFFIX for path in folder.iterdir()):
                    for path in folder.iterdir():
                        path.unlink()
                    folder.rmdir()
            lock.release()
        return sum(file.uses or 0 for file in self._in_memory if file.body is not None)

    def _write(self, body: bytes) -> Path | None:
        """The file with this content, written whole; None where it cannot be written, and `problem` says why."""
        path = self._folder / f"{self._number:012d}{_SUFFIX}"
        self._number += 1
        partial = path.with_suffix(".half")
        try:
            partial.write_bytes(body)
            partial.rename(path)
        except OSError as error:
            self.problem = describe_error(error)
            with suppress(OSError):
                partial.unlink()
            return None
        self.problem = None
        return path

    def _unlink(self, file: SpoolEntry, *, log_failure: bool = False) -> bool:
        """Remove a file of which the rows are elsewhere; where that fails, it is kept to be tried again."""
        assert file.path is not None
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            self._pending_removals.append(file)
            if log_failure:
                log.warning(
                    "%s of the ledger's spool is written but cannot be removed: %s", file.name, describe_error(error)
                )
            return False
        with self._counts_lock:
            self.bytes -= file.size
        return True

    def _new_folder(self, root: Path) -> Path:
        while True:
            folder = root / f"{time.time_ns():020d}-{os.getpid()}"
            folder.mkdir()
            if self._lock(folder):  # else another process that starts took it for a dead one's
                return folder

    def _adopt(self, folder: Path) -> None:
        if not self._lock(folder):
            return
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            if path.is_file():
                about = path.stat()
                self._files.append(SpoolEntry(path, None, about.st_size, None, about.st_mtime))
            else:
                log.warning("%s in the ledger's spool is not a file, and is left alone; remove it", path.name)

    def _lock(self, folder: Path) -> bool:
        lock = FileLock(folder / "lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):  # its process lives, or has just removed it
            return False
        self._locks.append(lock)
        return True


def encode(rows: LedgerRows) -> bytes:
    """Rows as a file of the spool holds them."""
    return to_json(as_columns(rows), bytes_mode="base64")


def as_columns(rows: LedgerRows) -> list[Any]:
    """Rows as values for JSON."""
    return [_columns_of(row_type) for row_type in rows]


def decode(body: bytes) -> LedgerRows:
    """The rows that `encode` was given.

    Raises:
        ValueError: they cannot be read.
    """
    return from_columns(from_json(body))


def from_columns(columns: Sequence[Any]) -> LedgerRows:
    """The rows that `as_columns` was given, after JSON; raises `ValueError` where they are others."""
    return LedgerRows(*(_rows_of(row_type, *given) for row_type, given in zip(_ROW_TYPES, columns, strict=True)))


_ROW_TYPES: tuple[Any, ...] = (TextRow, VerdictRow, RequestRow, ResponseRow, UseRow)

_READERS: dict[Any, Callable[[str], Any]] = {
    bytes: base64.urlsafe_b64decode,
    bytes | None: base64.urlsafe_b64decode,
    datetime: datetime.fromisoformat,
}


def _columns_of(rows: Sequence[tuple[Any, ...]]) -> tuple[int, list[tuple[Any, ...]]]:
    """How many rows there are, and their columns; of a column that holds one value throughout, that value once."""
    columns = zip(*rows, strict=True)
    return len(rows), [column[:1] if column.count(column[0]) == len(column) else column for column in columns]


def _rows_of(row_type: Any, count: int, columns: list[list[Any]]) -> list[Any]:
    known = list(row_type.__annotations__.values())
    if count and not len(known) - len(row_type._field_defaults) <= len(columns) <= len(known):
        raise ValueError(f"{row_type.__name__} has {len(known)} columns, and this file {len(columns)}")
    read = []
    for values, type_ in zip(columns, known, strict=False):  # a file of an older version lacks the newest columns
        reader = _READERS.get(type_)
        own = values if reader is None else [None if value is None else reader(value) for value in values]
        read.append(own * count if len(own) == 1 else own)
    return [row_type(*row) for row in zip(*read, strict=True)]


MAX_QUARANTINE_BYTES = 2**26
"""What may be kept aside; what comes beyond it is lost."""

_REFUSED_SUFFIX = ".json"


class QuarantineFull(Exception):
    """As much is kept aside as may be."""


class QuarantinedFile(NamedTuple):
    """A file of refused rows. `rows` is None where the file of the spool that they came in cannot be read."""

    path: Path
    at: datetime
    reason: str
    rows: LedgerRows | None


class Quarantine:
    """Files of refused rows in a folder, which is made when it is needed.

    `files` and `bytes` say what is there, as of the last `look` or `add`.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_QUARANTINE_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self.files = self.bytes = 0
        self.refresh()

    def refresh(self) -> None:
        """Count what is there; a command may have taken files away."""
        sizes = []
        for path in self._paths():
            with suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        self.files, self.bytes = len(sizes), sum(sizes)

    def add(self, refused: RefusedRows) -> Path:
        """Keep refused rows aside, in the place of what was kept of the same request; the file.

        Raises:
            QuarantineFull: there is no room.
            OSError: the file cannot be written.
        """
        key = next((row[:3] for kind in reversed(refused.rows) for row in kind), ())
        return self._add(repr(key).encode(), refused.reason, rows=as_columns(refused.rows))

    def add_unreadable(self, body: bytes, reason: str) -> Path:
        """Keep aside the content of a file of the spool that holds no rows; raises as `add` does."""
        return self._add(body, reason, body=base64.b64encode(body).decode())

    def quarantined(self) -> list[QuarantinedFile]:
        """All that is kept aside, the oldest first.

        Raises:
            OSError: a file cannot be read.
        """
        return sorted([_read(path) for path in self._paths()], key=attrgetter("at"))

    def replace(self, quarantined: QuarantinedFile, refused: list[RefusedRows]) -> None:
        """Have what is refused still in the place of what was kept; raises as `add` does."""
        if quarantined.path not in [self.add(one) for one in refused]:
            quarantined.path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.suffix == _REFUSED_SUFFIX and path.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _add(self, identity: bytes, reason: str, **content: object) -> Path:
        written = to_json({"at": datetime.now(UTC), "reason": reason, **content}, bytes_mode="base64")
        if self.bytes + len(written) > self._max_bytes:
            raise QuarantineFull
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{hashlib.sha256(identity).hexdigest()[:32]}{_REFUSED_SUFFIX}"
        partial = path.with_suffix(f".{os.getpid()}.half")
        try:
            partial.write_bytes(written)
            partial.rename(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self.refresh()
        return path


def _read(path: Path) -> QuarantinedFile:
    content = from_json(path.read_bytes())
    rows = None
    try:
        rows = from_columns(content["rows"]) if "rows" in content else decode(base64.b64decode(content["body"]))
    except ValueError:
        if "rows" in content:
            raise
    return QuarantinedFile(path, datetime.fromisoformat(content["at"]), content["reason"], rows)
