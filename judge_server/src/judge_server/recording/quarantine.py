"""Rows that the ledger refused, kept aside in files, each with the reason, to be looked at and written again.

Knows files and rows; refuses to know why a row is refused.
"""

import base64
import hashlib
import os
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from pydantic_core import from_json, to_json

from judge_server.recording.spool import as_columns, decode, from_columns
from trainer_client.wire.ledger_rows import LedgerRows, RefusedRows

MAX_QUARANTINE_BYTES = 2**26
"""What may be kept aside; what comes beyond it is lost."""

_SUFFIX = ".json"


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
            return sorted(path for path in self._folder.iterdir() if path.suffix == _SUFFIX and path.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _add(self, identity: bytes, reason: str, **content: object) -> Path:
        written = to_json({"at": datetime.now(UTC), "reason": reason, **content}, bytes_mode="base64")
        if self.bytes + len(written) > self._max_bytes:
            raise QuarantineFull
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{hashlib.sha256(identity).hexdigest()[:32]}{_SUFFIX}"
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
