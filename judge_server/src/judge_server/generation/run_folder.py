"""The folder of a run: its database, JSONL files written from it, and the split of each source.

The operations in `operations.db` hold the outcome of every input under its key. The JSONL files are an export: each run
writes them anew from the database, and appends outcomes as they are stored. `rubrics.jsonl` and `discarded.jsonl` have
a line per input, `published.jsonl` the rubrics that are in the store. `failed.jsonl` covers only the last run.

A split (training, validation or test) depends only on the digest of the source: it is the same every time and on every
machine, so all rubrics of a document are in one split, whatever else is in the corpus.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from filelock import FileLock, Timeout

DATABASE_FILE = "operations.db"
RUBRICS_FILE, DISCARDED_FILE, PUBLISHED_FILE, FAILED_FILE = (
    "rubrics.jsonl",
    "discarded.jsonl",
    "published.jsonl",
    "failed.jsonl",
)
_LOCK_FILE = ".lock"
_RUBRIC_FIELDS = (
    *("key", "line", "id", "name", "split", "source_digest", "digest", "criteria", "metadata", "tags", "flags"),
    *("parent", "record", "usage"),
)
_DISCARD_FIELDS = ("key", "line", "id", "reason", "detail", "usage")


class FolderInUse(ValueError):
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
        self.database = path / DATABASE_FILE
        self.made: set[str] = set()
        self.discarded: dict[str, str] = {}
        self.published: set[str] = set()

    def __enter__(self) -> Self:
        """Create the folder if necessary, and lock it.

        Raises:
            FolderInUse: another run is using the folder.
            ValueError: the folder has results of a release that kept them in JSONL files only.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self.path / _LOCK_FILE, timeout=0))
            except Timeout:
                raise FolderInUse(f"another run is using {self.path}; wait for it, or use another folder") from None
            if (self.path / RUBRICS_FILE).exists() and not self.database.exists():
                raise ValueError(
                    f"{self.path} has results but no {DATABASE_FILE}, so an earlier release wrote it, which kept its "
                    "state elsewhere; use another folder"
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the files and release the lock."""
        self._stack.close()

    @contextmanager
    def rewritten(self) -> Iterator[None]:
        """Write the files anew with what the block adds, and keep them open for `add` and `fail`.

        They replace the earlier files when the block ends, so a reader never sees less than was there.
        """
        names = (RUBRICS_FILE, DISCARDED_FILE, PUBLISHED_FILE, FAILED_FILE)
        self._files = {name: self._stack.enter_context(_create(self.path / f"{name}.new")) for name in names}
        yield
        for name in names:
            (self.path / f"{name}.new").replace(self.path / name)

    def add(self, result: Mapping[str, Any]) -> bool:
        """Append the result of a chunk: a rubric, or a discard, which has a `reason`.

        Returns whether the input had no outcome before. A rubric that an earlier chunk made and this one published is
        only added to the published ones.
        """
        key = result["key"]
        is_new = not self.is_done(key)
        if "reason" in result:
            self.discarded[key] = result["reason"]
            self._append(DISCARDED_FILE, {name: result[name] for name in _DISCARD_FIELDS})
            return is_new
        if is_new:
            self.made.add(key)
            self._append(RUBRICS_FILE, {name: result[name] for name in _RUBRIC_FIELDS})
        if "reference" in result:
            self.published.add(key)
            self._append(PUBLISHED_FILE, {name: result[name] for name in ("key", "reference", "digest")})
        return is_new

    def fail(self, line: int, kind: str, detail: str) -> None:
        """Record a line that is invalid, repeats another, could not be published, or failed in the engine."""
        self._append(FAILED_FILE, {"line": line, "kind": kind, "detail": detail})

    def is_done(self, key: str) -> bool:
        """Whether the input with this key has an outcome: a rubric or a discard."""
        return key in self.made or key in self.discarded

    def rubrics(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the rubrics, in the order in which they were made."""
        return read_records(self.path / RUBRICS_FILE)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        file = self._files[name]
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
        file.flush()


def _create(path: Path) -> IO[str]:
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete records of a JSONL file, in order; nothing if the file does not exist.

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


def read_failures(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the problems that the last run in a folder recorded: `line`, `kind` and `detail`."""
    return read_records(path / FAILED_FILE)


def first_discards(path: Path, reasons: Collection[str]) -> dict[str, tuple[int, str]]:
    """Return the first discard in a folder for each of these reasons: its line and detail."""
    first: dict[str, tuple[int, str]] = {}
    for record in read_records(path / DISCARDED_FILE):
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
