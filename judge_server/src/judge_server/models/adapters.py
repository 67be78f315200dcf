"""LoRA adapters on disk: a GGUF file, as llama.cpp reads it, or a folder as PEFT writes it."""

import hashlib
from pathlib import Path

from judge_server.errors import CannotLoad
from judge_server.models.files import file_sha256
from judge_server.ports import Adapter

FOLDER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The files of a folder that determine what its adapter does."""


def read_adapter(path: Path, name: str) -> Adapter:
    """Hash the files of an adapter. The hash of a folder is that of its files' names and contents.

    Raises:
        CannotLoad: a file is missing or cannot be read.
    """
    try:
        if not path.is_dir():
            return Adapter(name, path, file_sha256(path))
        lines = [f"{file_sha256(path / file)}  {file}\n" for file in FOLDER_FILES]
    except OSError as error:
        raise CannotLoad(
            f"the adapter {name!r} cannot be read: {error.strerror}. It must be a GGUF file, or a folder with "
            f"{' and '.join(FOLDER_FILES)}, as PEFT writes them"
        ) from error
    return Adapter(name, path, hashlib.sha256("".join(lines).encode()).hexdigest())


def require_unchanged(adapter: Adapter) -> None:
    """Raise `CannotLoad` if the adapter's files have changed since they were hashed."""
    if read_adapter(adapter.path, adapter.name).sha256 != adapter.sha256:
        raise CannotLoad(
            f"the adapter {adapter.name!r} was written to while it was loaded; write each one to a new path"
        )
