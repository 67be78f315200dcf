"""The folder of a run: append-only journals that survive a kill, and the split of each source.

`rubrics.jsonl` and `discarded.jsonl` hold the outcome of each input under its key; an input with an outcome is not
processed again. `published.jsonl` lists the rubrics that are in the store. A rubric is written to the folder before it
is published, so that none is lost in between, and publishing it again changes nothing. `failed.jsonl` covers only the
last run.

A split (training, validation or test) depends only on the digest of the source: it is the same every time and on every
machine, so all rubrics of a document are in one split, whatever else is in the corpus.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from filelock import FileLock, Timeout

from judge_server.ports.operations import JobFailed


class Journal:
    """An append-only file of JSON lines, for one process at a time. Use it as a context manager.

    A record is on disk when `append` returns. Opening the file truncates a line that a kill left incomplete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        """Open the file and truncate an incomplete last line."""
        self._file = self.path.open("a+b")
        self._file.truncate(_whole_lines(self.path))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        self._file.close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and flush it to disk."""
        self._file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete records of a journal, in order; nothing if the file does not exist.

    Raises:
        ValueError: a complete line is not a record, so another program wrote to the file; the message names the line.
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
                raise ValueError(f"{path}:{number} is not a JSON record; correct or remove it, or use another folder")
            yield record


def _whole_lines(path: Path) -> int:
    """Return the length in bytes of the complete lines of a file."""
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


RUBRICS_FILE, DISCARDED_FILE, PUBLISHED_FILE, FAILED_FILE = (
    "rubrics.jsonl",
    "discarded.jsonl",
    "published.jsonl",
    "failed.jsonl",
)
_LOCK_FILE = ".lock"


class FolderInUse(JobFailed):
    """Another run is using the folder; the message says what to do."""


class RunFolder:
    """The files of a run, locked for one run at a time. Use it as a context manager.

    Attributes:
        made: the keys of the inputs that have a rubric.
        discarded: the keys of discarded inputs, with the reason.
        published: the keys of the rubrics that are in the store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: set[str] = set()
        self.discarded: dict[str, str] = {}
        self.published: set[str] = set()

    def __enter__(self) -> Self:
        """Create the folder if necessary and load the outcomes of earlier runs.

        Raises:
            FolderInUse: another run is using the folder.
            ValueError: a file in the folder was altered or does not belong to a run.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self.path / _LOCK_FILE, timeout=0))
            except Timeout:
                raise FolderInUse(f"another run is using {self.path}; wait for it, or use another folder") from None
            self._rubrics, self._discarded, self._published = (
                stack.enter_context(Journal(self.path / name))
                for name in (RUBRICS_FILE, DISCARDED_FILE, PUBLISHED_FILE)
            )
            (self.path / FAILED_FILE).unlink(missing_ok=True)
            self._failed = stack.enter_context(Journal(self.path / FAILED_FILE))
            self.made = {record["key"] for record in self.rubrics()}
            self.discarded = {r["key"]: r["reason"] for r in read_journal(self.path / DISCARDED_FILE)}
            self.published = {record["key"] for record in read_journal(self.path / PUBLISHED_FILE)}
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the files."""
        self._open.close()

    def is_done(self, key: str) -> bool:
        """Whether the input with this key has an outcome: a rubric or a discard."""
        return key in self.made or key in self.discarded

    def rubrics(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the rubrics, in the order in which they were made."""
        return read_journal(self.path / RUBRICS_FILE)

    def keep(self, key: str, record: Mapping[str, Any]) -> None:
        """Record a new rubric."""
        self._rubrics.append({"key": key, **record})
        self.made.add(key)

    def discard(self, key: str, record: Mapping[str, Any]) -> None:
        """Record why an input has no rubric; `record` contains the `reason`."""
        self._discarded.append({"key": key, **record})
        self.discarded[key] = record["reason"]

    def mark_published(self, key: str, record: Mapping[str, Any]) -> None:
        """Record a rubric's reference in the store."""
        self._published.append({"key": key, **record})
        self.published.add(key)

    def fail(self, record: Mapping[str, Any]) -> None:
        """Record a line that is invalid, repeats another, could not be published, or failed in the engine."""
        self._failed.append(record)


def read_failures(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the problems that the last run in a folder recorded: `line`, `kind` and `detail`."""
    return read_journal(path / FAILED_FILE)


def first_discards(path: Path, reasons: Collection[str]) -> dict[str, tuple[int, str]]:
    """Return the first discard in a folder for each of these reasons: its line and detail."""
    first: dict[str, tuple[int, str]] = {}
    for record in read_journal(path / DISCARDED_FILE):
        if record["reason"] in reasons:
            first.setdefault(record["reason"], (record["line"], record["detail"]))
    return first


Split = Literal["train", "validation", "test"]

SHARES: dict[Split, float] = {"train": 0.70, "validation": 0.15, "test": 0.15}
"""The share of sources in each split (Rubric-Grounded RL: 70/15/15)."""

_RANGE = 2**64


def split_of(source_digest: str) -> Split:
    """Assign a source to a split: hash its digest to a number in [0, 1) and cut that range by `SHARES`."""
    position = int.from_bytes(hashlib.sha256(source_digest.encode()).digest()[:8], "big") / _RANGE
    if position < SHARES["train"]:
        return "train"
    return "validation" if position < SHARES["train"] + SHARES["validation"] else "test"
