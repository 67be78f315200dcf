"""Converting a GGUF file to a folder in Hugging Face's format: completely or not at all, and only once."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from judge_server.models import convert
from judge_server.models.catalogue import ModelError
from judge_server.models.convert import MANIFEST, REQUIRED_PACKAGES
from tests.judge_server.engines.fixtures import MODEL

HERE = all(find_spec(package) for package in REQUIRED_PACKAGES)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    command = [sys.executable, "-m", "judge_server.models.convert", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(HERE, reason="the packages are installed here")
def test_without_its_packages_the_error_names_the_missing_ones(tmp_path: Path) -> None:
    done = run(MODEL, str(tmp_path / "out"))
    assert done.returncode == 1
    assert "make vllm-cpu" in done.stderr
    assert "accelerate" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_short_name_needs_an_output_folder(tmp_path: Path) -> None:
    done = run(str(tmp_path / "model.gguf"))
    assert done.returncode == 2
    assert "name a folder" in done.stderr


@pytest.mark.vllm
def test_a_folder_converted_from_the_same_bytes_is_kept(folder: Path) -> None:
    before = (folder / "model.safetensors").stat().st_mtime_ns
    done = run(MODEL)
    assert done.returncode == 0
    assert done.stdout.strip() == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.vllm
def test_a_folder_not_made_by_the_command_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelError, match="not made by this command"):
        convert.convert(MODEL, tmp_path / "theirs")
    assert (tmp_path / "theirs" / "thesis.txt").read_text() == "years of work"


@pytest.mark.vllm
def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x03\0\0\0" + bytes(2000))
    out = tmp_path / "models" / "out"
    with pytest.raises(ModelError, match="cannot be converted"):
        convert.convert(str(broken), out)
    assert [path.name for path in out.parent.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.vllm
def test_a_folder_of_other_bytes_is_converted_again_and_kept_until_that_succeeds(tmp_path: Path) -> None:
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF" + bytes(100))
    made: list[str] = []

    def write(source: Path, scratch: Path) -> None:
        made.append(source.name)
        (scratch / "model.safetensors").write_bytes(source.read_bytes())
        if len(made) == 2:
            raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    assert convert.convert(str(weights), out, write=write)
    assert not convert.convert(str(weights), out, write=write)
    first = (out / "model.safetensors").read_bytes()
    weights.write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(ModelError, match="No space left"):
        convert.convert(str(weights), out, write=write)
    assert (out / "model.safetensors").read_bytes() == first
    assert convert.convert(str(weights), out, write=write)
    assert (out / "model.safetensors").read_bytes() != first
    assert sorted(path.name for path in out.iterdir()) == [MANIFEST, "model.safetensors"]
