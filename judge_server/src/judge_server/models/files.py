"""Model files on disk: paths, state and integrity checks, and the interface for download progress.

A catalogued model is `<models_dir>/<file>`, any other hub file `<models_dir>/hf/<owner>/<repository>/<file>`, with a
record of its hash beside it. A `.part` file beside either is an unfinished download. It is always a prefix of the whole
file, so its size is the progress. Engines check a model with `check_installed` before they load it; nothing here
downloads.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from judge_server.models.catalogue import CATALOGUE, HUB_SCHEME, CorruptModel, HubFile, Model, NotAModel

GGUF_MAGIC = b"GGUF"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal. This takes about a second per gigabyte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_gguf(path: Path) -> None:
    """Raise `NotAModel` unless `path` is a file that begins with the GGUF magic bytes."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        raise NotAModel(f"{path} does not exist.") from None
    except OSError as error:
        raise NotAModel(f"{path} cannot be read: {error.strerror}.") from None
    if magic != GGUF_MAGIC:
        raise NotAModel(f"{path} is not a GGUF model: it does not begin with the bytes GGUF.")


def verify(path: Path, model: Model) -> None:
    """Raise `CorruptModel` unless the file has exactly the model's bytes. Reads the whole file."""
    check_bytes(path, name=model.name, size=model.size, sha256=model.sha256)


def check_bytes(path: Path, *, name: str, size: int, sha256: str) -> None:
    """Raise `CorruptModel` unless the file has this size and SHA-256; the size is checked first."""
    hint = f"Fetch it again: adjudge models pull {name} --force"
    try:
        actual = path.stat().st_size
    except FileNotFoundError:
        raise CorruptModel(f"{path} does not exist. Fetch it: adjudge models pull {name}") from None
    if actual != size:
        kind = "cut short" if actual < size else "too long"
        raise CorruptModel(f"{path} is {kind}: {actual:,} bytes instead of {size:,}. {hint}")
    digest = file_sha256(path)
    if digest != sha256:
        raise CorruptModel(f"{path} was altered: its SHA-256 is {digest}, not {sha256}. {hint}")


_HUB_FOLDER = "hf"


class ModelState(StrEnum):
    """The state of a model on disk."""

    PRESENT = "present"
    PARTIAL = "partial"
    CORRUPT = "corrupt"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class HubRecord:
    """Size and hash of a hub file outside the catalogue; `verified` if the hub itself gave the hash."""

    size: int
    sha256: str
    verified: bool


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A line of the listing. `size` is the size of the whole model in bytes, `done` the number of bytes on disk."""

    name: str
    path: Path
    size: int
    done: int
    state: ModelState
    licence: str
    note: str


def models_dir() -> Path:
    """Return `$XDG_CACHE_HOME/adjudge/models`; `~/.cache` is the default if the variable is unset or not absolute."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "adjudge" / "models"


def model_path(target: Model | HubFile, cache_dir: Path) -> Path:
    """Return the final path of a model, whether or not the file exists."""
    if isinstance(target, Model):
        return cache_dir / target.file
    return cache_dir / _HUB_FOLDER / target.repository / target.file


def part_path(path: Path) -> Path:
    """Return the path of a model's unfinished download."""
    return path.with_name(path.name + ".part")


def record_path(path: Path) -> Path:
    """Return the path of the record of a hub file."""
    return path.with_name(path.name + ".json")


def read_record(path: Path) -> HubRecord | None:
    """Read the record of the hub file at `path`; None if it does not exist or cannot be read."""
    try:
        fields = json.loads(record_path(path).read_text(encoding="utf-8"))
        return HubRecord(size=int(fields["size"]), sha256=str(fields["sha256"]), verified=bool(fields["verified"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(path: Path, record: HubRecord) -> None:
    """Write the record of the hub file at `path` atomically."""
    scratch = record_path(path).with_suffix(".json.new")
    scratch.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    scratch.replace(record_path(path))


def file_size(path: Path) -> int | None:
    """Return the size of a file in bytes; None if it does not exist."""
    return path.stat().st_size if path.is_file() else None


def installed_path(target: Model | HubFile, cache_dir: Path | None = None) -> Path | None:
    """Return the path of an installed model, checking only its size; None if it is absent or has another size."""
    path = model_path(target, models_dir() if cache_dir is None else cache_dir)
    known = target if isinstance(target, Model) else read_record(path)
    size = file_size(path)
    return path if size is not None and (known is None or size == known.size) else None


def model_entries(
    cache_dir: Path | None = None, *, catalogue: Sequence[Model] = CATALOGUE, check: bool = False
) -> list[ModelEntry]:
    """List every catalogued model, then every other hub file on disk.

    The state is determined by size. With `check`, complete files are also hashed: about a second per gigabyte.
    """
    folder = models_dir() if cache_dir is None else cache_dir
    entries = []
    for model in catalogue:
        sha256 = model.sha256 if check else None
        entries.append(_entry(model.name, model_path(model, folder), model.size, sha256, model.licence, model.note))
    hub = folder / _HUB_FOLDER
    files = {part.with_suffix("") if part.suffix == ".part" else part for part in hub.rglob("*.gguf*")}
    for path in sorted(file for file in files if file.suffix.lower() == ".gguf"):
        record = read_record(path)
        note = "verified by the hub's hash" if record and record.verified else "unverified: the hub gave no hash"
        name, size = HUB_SCHEME + path.relative_to(hub).as_posix(), record.size if record else None
        entries.append(_entry(name, path, size, record.sha256 if record and check else None, "?", note))
    return entries


def _entry(name: str, path: Path, size: int | None, sha256: str | None, licence: str, note: str) -> ModelEntry:
    whole, part = file_size(path), file_size(part_path(path))
    if whole is None:
        state = ModelState.ABSENT if part is None else ModelState.PARTIAL
    elif (size is not None and whole != size) or (sha256 is not None and file_sha256(path) != sha256):
        state = ModelState.CORRUPT
    else:
        state = ModelState.PRESENT
    done = whole or part or 0
    return ModelEntry(name, path, size or done, done, state, licence, note)


def check_installed(target: Model | HubFile | Path, path: Path) -> str:
    """Check the whole file at `path` and return its SHA-256, in hexadecimal.

    A catalogued model must have the catalogue's hash, a hub file the recorded one. A file without a recorded hash is
    only checked to be GGUF.

    Raises:
        CorruptModel: the file is truncated or altered; the message says what to run.
        NotAModel: the file is not GGUF.
    """
    if isinstance(target, Model):
        verify(path, target)
        return target.sha256
    if isinstance(target, HubFile) and (record := read_record(path)):
        check_bytes(path, name=target.name, size=record.size, sha256=record.sha256)
        return record.sha256
    check_gguf(path)
    return file_sha256(path)


class DownloadProgress:
    """Receives the progress of a download: a progress bar, a log, a test. This one ignores it."""

    def stage(self, text: str) -> None:
        """A new phase begins, for example which source is being read. `text` is for the user."""

    def note(self, text: str) -> None:
        """Something happened that does not end the download, for example why another source is being tried."""

    def advance(self, done: int, total: int | None) -> None:
        """`done` bytes of `total` are on disk, including resumed ones; `total` is None if unknown."""


SILENT = DownloadProgress()


def format_bytes(size: int) -> str:
    """Format a size for display: `491 MB`, `1.12 GB` (powers of ten)."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size:,} bytes"
