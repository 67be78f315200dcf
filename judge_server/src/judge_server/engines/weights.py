"""Which weights an engine is about to load: found where `adjudge models` keeps them, and checked before they are."""

from pathlib import Path
from typing import NamedTuple

from judge_server.errors import EngineStartError
from judge_server.models import Model, ModelError, file_sha256, models_dir, parse, present, verify
from judge_server.models.verify import check_gguf


class Weights(NamedTuple):
    """A model file that may be loaded, under the name it is reported by, and the SHA-256 of its bytes."""

    name: str
    path: Path
    sha256: str


def locate_weights(reference: str) -> Weights:
    """Find and check the file of a catalogue name, an `hf://` address or a path. Reads the whole file.

    Raises:
        EngineStartError: it is not here, or cut short, or altered; the message says what to run.
    """
    try:
        target = parse(reference)
        if isinstance(target, Path):
            check_gguf(target)
            return Weights(target.name, target, file_sha256(target))
        path = present(target)
        if isinstance(target, Model):
            if path is not None:
                verify(path, target)
                return Weights(target.name, path, target.sha256)
            _refuse_cut(target)
        elif path is not None:
            check_gguf(path)
            return Weights(target.name, path, file_sha256(path))
    except ModelError as error:
        raise EngineStartError(str(error)) from error
    raise EngineStartError(f"The model {reference} is not on this machine. Fetch it: adjudge models pull {reference}")


def _refuse_cut(model: Model) -> None:
    file = models_dir() / model.file
    if file.exists():
        verify(file, model)
