"""Whether a file is the model it is said to be."""

import hashlib
from pathlib import Path

from judge_server.models.catalogue import Model
from judge_server.models.errors import CorruptModel, NotAModel

GGUF_MAGIC = b"GGUF"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; a gigabyte takes about a second."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_gguf(path: Path) -> None:
    """Raise `NotAModel` unless `path` is a file that begins as GGUF files do."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        raise NotAModel(f"{path} does not exist.") from None
    except OSError as error:
        raise NotAModel(f"{path} cannot be read: {error.strerror}.") from None
    if magic != GGUF_MAGIC:
        raise NotAModel(f"{path} is no GGUF model: it does not begin with the letters GGUF.")


def verify(path: Path, model: Model) -> None:
    """Raise `CorruptModel` unless the file has exactly the model's bytes. Reads the whole file."""
    check_bytes(path, name=model.name, size=model.size, sha256=model.sha256)


def check_bytes(path: Path, *, name: str, size: int, sha256: str) -> None:
    """Raise `CorruptModel` unless the file has this size and SHA-256; the size is looked at first."""
    hint = f"Fetch it again: adjudge models pull {name} --force"
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise CorruptModel(f"{path} does not exist. Fetch it: adjudge models pull {name}") from None
    if found != size:
        kind = "cut short" if found < size else "too long"
        raise CorruptModel(f"{path} is {kind}: {found:,} bytes instead of {size:,}. {hint}")
    digest = file_sha256(path)
    if digest != sha256:
        raise CorruptModel(f"{path} was altered: its SHA-256 is {digest}, not {sha256}. {hint}")
