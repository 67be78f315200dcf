"""An engine loads only complete, unaltered files, and refusals say what to run."""

import hashlib
import struct
from pathlib import Path

import pytest

from judge_server.engines.llamacpp.process import Weights, locate_weights
from judge_server.errors import EngineStartError
from judge_server.models import CATALOGUE, models_dir
from judge_server.models.files import HubRecord, write_record

CONTENT = struct.pack("<4sIQQ", b"GGUF", 3, 0, 0) + b"and then some weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
HUB = "hf://someone/judges/judge.gguf"
SMALLEST = min(CATALOGUE, key=lambda model: model.size)


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of models in place of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models_dir().mkdir(parents=True)
    return models_dir()


def put_hub_file(models: Path, content: bytes) -> Path:
    path = models / "hf" / "someone" / "judges" / "judge.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_a_users_file_is_identified_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(CONTENT)
    assert locate_weights(str(path)) == Weights("mine.gguf", path, DIGEST)


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"something else")
    with pytest.raises(EngineStartError, match="not a GGUF model"):
        locate_weights(str(path))


def test_a_file_with_damaged_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + b"cut")
    with pytest.raises(EngineStartError, match="its keys are damaged"):
        locate_weights(str(path))


@pytest.mark.parametrize("reference", [SMALLEST.name, HUB])
def test_a_missing_model_is_refused_with_the_command_that_fetches_it(reference: str) -> None:
    with pytest.raises(EngineStartError, match=f"adjudge models pull {reference}"):
        locate_weights(reference)


def test_a_truncated_catalogued_model_is_refused_with_the_command_that_fetches_it(models: Path) -> None:
    (models / SMALLEST.file).write_bytes(CONTENT)
    with pytest.raises(EngineStartError, match=f"cut short.*adjudge models pull {SMALLEST.name} --force"):
        locate_weights(SMALLEST.name)


def test_a_catalogued_model_altered_at_its_full_length_is_refused(models: Path) -> None:
    with (models / SMALLEST.file).open("wb") as file:
        file.write(CONTENT)
        file.truncate(SMALLEST.size)
    with pytest.raises(EngineStartError, match="was altered"):
        locate_weights(SMALLEST.name)


def test_a_hub_file_is_identified_by_its_recorded_hash(models: Path) -> None:
    path = put_hub_file(models, CONTENT)
    write_record(path, HubRecord(len(CONTENT), DIGEST, verified=False))
    assert locate_weights(HUB) == Weights(HUB, path, DIGEST)


def test_a_hub_file_altered_since_it_was_fetched_is_refused(models: Path) -> None:
    path = put_hub_file(models, CONTENT.replace(b"some", b"SOME"))
    write_record(path, HubRecord(len(CONTENT), DIGEST, verified=True))
    with pytest.raises(EngineStartError, match="was altered"):
        locate_weights(HUB)
