"""The folder of a run: append-only files that survive a kill, and dataset splits.

The folder of a run: what was made, discarded and published, each in a file that a killed run can go on from.

`rubrics.jsonl` and `discarded.jsonl` hold what became of each input, under its key: what stands there is never done
again. `published.jsonl` says which of the rubrics are in the store: a rubric is kept here before it is published, so
that none is lost between the two, and publishing it again changes nothing. `failed.jsonl` is of the last run alone.

A file of JSON lines that is only ever appended to, and outlives a kill at any moment.

A line is on the disk when `append` returns. What a kill left half-written is cut off when the file is opened again.

Training, validation and test splits by the digest of a source: the same one every time, on every machine.

A document never crosses splits, whatever is made of it, however often, and whatever else is in the corpus.
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


RUBRICS_FILE, DISCARDED_FILE, PUBLISHED_FILE, FAILED_FILE = (
    "rubrics.jsonl",
    "discarded.jsonl",
    "published.jsonl",
    "failed.jsonl",
)
_LOCK_FILE = ".lock"


class FolderInUse(JobFailed):
    """Another run works in the folder; the message says what to do."""


class RunFolder:
    """A run's files, open for one run at a time: use it with `with`.

    Attributes:
        made: the keys of the inputs that gave a rubric.
        discarded: the keys of those that gave none, with the reason.
        published: the keys of the rubrics that are in the store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: set[str] = set()
        self.discarded: dict[str, str] = {}
        self.published: set[str] = set()

    def __enter__(self) -> Self:
        """Make the folder if need be, and read what an earlier run did.

        Raises:
            FolderInUse: another run is at it.
            ValueError: a file in it is not ours, or was altered.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self.path / _LOCK_FILE, timeout=0))
            except Timeout:
                raise FolderInUse(f"another run works in {self.path}; wait for it, or use another folder") from None
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
        """Whether the input of this key needs no model any more."""
        return key in self.made or key in self.discarded

    def rubrics(self) -> Iterator[dict[str, Any]]:
        """The rubrics made, in the order in which they were."""
        return read_journal(self.path / RUBRICS_FILE)

    def keep(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep a rubric that was made."""
        self._rubrics.append({"key": key, **record})
        self.made.add(key)

    def discard(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep why an input gave none; `record` has the `reason`."""
        self._discarded.append({"key": key, **record})
        self.discarded[key] = record["reason"]

    def mark_published(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep where in the store a rubric is."""
        self._published.append({"key": key, **record})
        self.published.add(key)

    def fail(self, record: Mapping[str, Any]) -> None:
        """Report a line that could not be read, repeats another, or was left undone by an engine's failure."""
        self._failed.append(record)


def read_failures(path: Path) -> Iterator[dict[str, Any]]:
    """What the last run in a folder reported of lines: `line`, `kind` and `detail`."""
    return read_journal(path / FAILED_FILE)


def first_discards(path: Path, reasons: Collection[str]) -> dict[str, tuple[int, str]]:
    """Of each of these reasons, one discard in a folder: its line, and what was wrong."""
    found: dict[str, tuple[int, str]] = {}
    for record in read_journal(path / DISCARDED_FILE):
        if record["reason"] in reasons:
            found.setdefault(record["reason"], (record["line"], record["detail"]))
    return found


Split = Literal["train", "validation", "test"]

SHARES: dict[Split, float] = {"train": 0.70, "validation": 0.15, "test": 0.15}
"""The share of the sources that each split gets (Rubric-Grounded RL's 70/15/15)."""

_RANGE = 2**64


def split_of(source_digest: str) -> Split:
    """The split of a source, by its digest: a number in [0, 1) that is hashed from it, laid along `SHARES`."""
    place = int.from_bytes(hashlib.sha256(source_digest.encode()).digest()[:8], "big") / _RANGE
    if place < SHARES["train"]:
        return "train"
    return "validation" if place < SHARES["train"] + SHARES["validation"] else "test"
