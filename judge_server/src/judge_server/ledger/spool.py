"""Files of rows: the spool, for rows on their way to the database, and the quarantine, for rows that it refused.

The spool is ordered and bounded. Its files store rows by column, which takes half the time and space of storing them
one by one. Rows whose file cannot be written (no space, no descriptors, a device error) wait in memory, within a
separate limit, until writing works again. A file that cannot be removed is retried later. Each process has its own
folder, locked while it runs; a new process takes over the folders of processes that were killed.

The quarantine keeps refused rows with the reason, so that an operator can inspect them and write them again.
"""

import base64
import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from pydantic_core import from_json, to_json

from judge_server.observability.logs import describe_error
from judge_server.scheduling.time_sharing import in_chunks
from rubric_store.ledger.rows import (
    LedgerRows,
    RefusedRows,
    RequestRow,
    ResponseRow,
    SignalRow,
    TextRow,
    UseRow,
    VerdictRow,
)

log = logging.getLogger("adjudge")

QUARANTINE_FOLDER = "refused"
"""The folder of the quarantine, beside the folders of processes."""

MAX_MEMORY_BYTES = 2**27
"""The maximum size of rows in memory while files cannot be written; further rows are lost."""

MAX_QUARANTINE_BYTES = 2**26
"""The maximum size of the quarantine; further rows are lost."""

_VALUES_AT_ONCE = 2048
"""How many rows are turned into columns, or values encoded, before other threads run: a millisecond of work."""

_SUFFIX = ".rows"
_REFUSED_SUFFIX = ".json"


class SpoolFull(Exception):
    """The spool is full; the message says which limit was reached."""


class QuarantineFull(Exception):
    """The quarantine is full: too many rows were refused by the database.

    Look at them with `adjudge ledger refused`, correct the cause, and run `adjudge ledger retry`.
    """

    code = "quarantine-full"


@dataclass(slots=True, eq=False)
class SpoolEntry:
    """Rows in the spool: in the file at `path`, or in memory as `body` while the file cannot be written.

    `size` is in bytes, `uses` is None if they were not counted, and `since` is the Unix time of their arrival.
    """

    path: Path | None
    body: bytes | None
    size: int
    uses: int | None
    since: float

    @property
    def name(self) -> str:
        """Its name in logs."""
        return "rows in memory" if self.path is None else self.path.name

    def read(self) -> bytes:
        """The encoded rows; raises `OSError` if the file cannot be read."""
        body = self.body
        if body is not None:
            return body
        assert self.path is not None  # set before the body is cleared
        return self.path.read_bytes()


class Spool:
    """Files of rows in folders under `root`, of at most `max_bytes`. Opening it takes over files of dead processes.

    `problem` says why files cannot be written; it is None while they can. One thread may call `add` and `flush_pending`
    while another reads and removes files.

    Raises:
        OSError: the folder cannot be created.
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
        """Write rows to a file atomically; keep them in memory if that fails.

        Raises:
            SpoolFull: a limit is reached.
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
        """Retry writing the rows in memory, and removing files that could not be removed."""
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
            if path is not None:  # the rows were written to the ledger from memory meanwhile
                self._unlink(SpoolEntry(path, None, 0, None, 0.0))
        for _ in range(len(self._pending_removals)):
            if not self._unlink(self._pending_removals.popleft()):
                break

    def first(self) -> SpoolEntry | None:
        """The oldest entry; None if the spool is empty."""
        try:
            return self._files[0]
        except IndexError:
            return None

    def oldest(self, uses: int) -> list[SpoolEntry]:
        """The oldest entry, and those behind it as long as all together have at most this many uses.

        An entry whose uses were not counted is returned alone.
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
        """Move an entry to the end."""
        with self._counts_lock:
            self._files.remove(file)
            self._files.append(file)

    def remove(self, file: SpoolEntry) -> None:
        """Remove an entry whose rows are written. If its file cannot be removed now, it is removed later."""
        with self._counts_lock:
            self._files.remove(file)
            if file.path is None:
                file.body = None
                self.memory_bytes -= file.size
        if file.path is not None:
            self._unlink(file, log_failure=True)

    def close(self) -> int:
        """Unlock the folders, and return the number of uses in memory, which are lost.

        Empty folders are removed; the others are left for the next process.
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
        """Write a file atomically; if that fails, set `problem` and return None."""
        path = self._folder / f"{self._number:012d}{_SUFFIX}"
        self._number += 1
        try:
            _write_atomically(path, body, ".half")
        except OSError as error:
            self.problem = describe_error(error)
            return None
        self.problem = None
        return path

    def _unlink(self, file: SpoolEntry, *, log_failure: bool = False) -> bool:
        """Remove a file whose rows are written; if that fails, schedule another attempt."""
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
            if self._lock(folder):  # otherwise another starting process took it for that of a dead process
                return folder

    def _adopt(self, folder: Path) -> None:
        if not self._lock(folder):
            return
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            if path.is_file():
                stat = path.stat()
                self._files.append(SpoolEntry(path, None, stat.st_size, None, stat.st_mtime))
            else:
                log.warning("%s in the ledger's spool is not a file and is ignored; remove it", path.name)

    def _lock(self, folder: Path) -> bool:
        lock = FileLock(folder / "lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):  # its process is alive, or has just removed it
            return False
        self._locks.append(lock)
        return True


def _write_atomically(path: Path, body: bytes, suffix: str) -> None:
    """Write a file under another suffix, and rename it; raises `OSError`, leaving nothing."""
    partial = path.with_suffix(suffix)
    try:
        partial.write_bytes(body)
        partial.rename(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def encode(rows: LedgerRows) -> bytes:
    """Encode rows as the content of a spool file, part by part, so that other threads run in between."""
    tables = []
    for count, columns in as_columns(rows):
        encoded = [b"[%b]" % b",".join(_encode_parts(column)) for column in columns]
        tables.append(b"[%d,[%b]]" % (count, b",".join(encoded)))
    return b"[%b]" % b",".join(tables)


def _encode_parts(column: Sequence[Any]) -> Iterator[bytes]:
    for part in in_chunks(column, _VALUES_AT_ONCE):
        yield to_json(part, bytes_mode="base64")[1:-1]


def as_columns(rows: LedgerRows) -> list[Any]:
    """Rows by column, as JSON values."""
    return [_columns_of(row_type) for row_type in rows]


def decode(body: bytes) -> LedgerRows:
    """Decode the content of a spool file.

    Raises:
        ValueError: the content cannot be read.
    """
    return from_columns(from_json(body))


def from_columns(columns: Sequence[Any]) -> LedgerRows:
    """The inverse of `as_columns`, after JSON; raises `ValueError` for other content."""
    if len(columns) not in (len(_ROW_TYPES) - 1, len(_ROW_TYPES)):  # a file of an older version has no signals
        raise ValueError(f"the file has {len(columns)} tables, and this version knows {len(_ROW_TYPES)}")
    return LedgerRows(*(_rows_of(row_type, *table) for row_type, table in zip(_ROW_TYPES, columns, strict=False)))


_ROW_TYPES: tuple[Any, ...] = (TextRow, VerdictRow, RequestRow, ResponseRow, UseRow, SignalRow)

_READERS: dict[Any, Callable[[str], Any]] = {
    bytes: base64.urlsafe_b64decode,
    bytes | None: base64.urlsafe_b64decode,
    datetime: datetime.fromisoformat,
}


def _columns_of(rows: Sequence[tuple[Any, ...]]) -> tuple[int, list[list[Any]]]:
    """The number of rows, and their columns; a column with equal values is reduced to one value."""
    columns: list[list[Any]] = [[] for _ in rows[0]] if rows else []
    for part in in_chunks(rows, _VALUES_AT_ONCE):
        for column, values in zip(columns, zip(*part, strict=True), strict=True):
            column.extend(values)
    return len(rows), [column[:1] if _is_constant(column) else column for column in columns]


def _is_constant(column: list[Any]) -> bool:
    return bool(column[0] == column[-1]) and column.count(column[0]) == len(column)


def _rows_of(row_type: Any, count: int, columns: list[list[Any]]) -> list[Any]:
    types = list(row_type.__annotations__.values())
    if count and not len(types) - len(row_type._field_defaults) <= len(columns) <= len(types):
        raise ValueError(f"{row_type.__name__} has {len(types)} columns, but this file has {len(columns)}")
    decoded = []
    for values, type_ in zip(columns, types, strict=False):  # a file of an older version lacks the newest columns
        reader = _READERS.get(type_)
        column = values if reader is None else [None if value is None else reader(value) for value in values]
        decoded.append(column * count if len(column) == 1 else column)
    return [row_type(*row) for row in zip(*decoded, strict=True)]


class QuarantinedFile(NamedTuple):
    """A file in quarantine. `rows` is None if it holds a spool file that cannot be read."""

    path: Path
    at: datetime
    reason: str
    rows: LedgerRows | None


class Quarantine:
    """Files of refused rows in a folder, which is created when needed.

    `files` and `bytes` are the totals as of the last `refresh` or `add`.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_QUARANTINE_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self.files = self.bytes = 0
        self.refresh()

    def refresh(self) -> None:
        """Update the totals; a command may have removed files."""
        sizes = []
        for path in self._paths():
            with suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        self.files, self.bytes = len(sizes), sum(sizes)

    def add(self, refused: RefusedRows) -> Path:
        """Store refused rows, replacing those of the same request; returns the file.

        Raises:
            QuarantineFull: the limit is reached.
            OSError: the file cannot be written.
        """
        key = next((row[:3] for kind in reversed(refused.rows) for row in kind), ())
        return self._add(repr(key).encode(), refused.reason, rows=as_columns(refused.rows))

    def add_unreadable(self, body: bytes, reason: str) -> Path:
        """Store the content of a spool file that cannot be read; raises as `add` does."""
        return self._add(body, reason, body=base64.b64encode(body).decode())

    def quarantined(self) -> list[QuarantinedFile]:
        """All files, oldest first.

        Raises:
            OSError: a file cannot be read.
        """
        return sorted([_read(path) for path in self._paths()], key=attrgetter("at"))

    def replace(self, quarantined: QuarantinedFile, refused: list[RefusedRows]) -> None:
        """Replace a file by the rows that are still refused; raises as `add` does."""
        if quarantined.path not in [self.add(rows) for rows in refused]:
            quarantined.path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.suffix == _REFUSED_SUFFIX and path.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _add(self, identity: bytes, reason: str, **content: object) -> Path:
        body = to_json({"at": datetime.now(UTC), "reason": reason, **content}, bytes_mode="base64")
        if self.bytes + len(body) > self._max_bytes:
            raise QuarantineFull
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{hashlib.sha256(identity).hexdigest()[:32]}{_REFUSED_SUFFIX}"
        _write_atomically(path, body, f".{os.getpid()}.half")
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
