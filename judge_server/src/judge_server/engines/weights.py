"""Which weights an engine is about to load: found where `adjudge models` keeps them, and checked before they are."""

from pathlib import Path
from typing import NamedTuple

from judge_server.errors import EngineStartError
from judge_server.models import ModelError, check_installed, model_path, models_dir, parse_model_reference


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
        target = parse_model_reference(reference)
        path = target if isinstance(target, Path) else model_path(target, models_dir())
        if not isinstance(target, Path) and not path.is_file():
            raise EngineStartError(
                f"The model {reference} is not on this machine. Fetch it: adjudge models pull {reference}"
            )
        return Weights(target.name, path, check_installed(target, path))
    except ModelError as error:
        raise EngineStartError(str(error)) from error
