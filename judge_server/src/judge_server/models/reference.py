"""What a user may call a model by, and what each spelling stands for. Opens no file."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from judge_server.models.catalogue import CATALOGUE, Model
from judge_server.models.errors import UnknownModel

HUB_SCHEME = "hf://"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file on the hub that is not in the catalogue: nothing is known about its bytes."""

    repository: str
    file: str

    @property
    def name(self) -> str:
        """The reference itself."""
        return f"{HUB_SCHEME}{self.repository}/{self.file}"


def parse_model_reference(reference: str, catalogue: Sequence[Model] = CATALOGUE) -> Model | HubFile | Path:
    """A catalogued model, a hub file, or a local path.

    A hub address whose file is catalogued is the catalogued model. Anything that looks like a path (a
    separator, or the ending `.gguf`) is one, whether or not it exists. Raises `UnknownModel`.
    """
    for model in catalogue:
        if reference in (model.name, f"{HUB_SCHEME}{model.repository}/{model.file}"):
            return model
    if reference.startswith(HUB_SCHEME):
        return _hub_file(reference)
    path = Path(reference).expanduser()
    if path.name != reference or path.suffix.lower() == ".gguf" or path.is_file():
        return path
    names = [model.name for model in catalogue]
    close = get_close_matches(reference, names, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    raise UnknownModel(
        f"No model is called {reference!r}. {hint}Known: {', '.join(names)}. "
        "Any other model: hf://owner/repository/file.gguf, or the path of a GGUF file."
    )


def _hub_file(reference: str) -> HubFile:
    parts = reference.removeprefix(HUB_SCHEME).split("/")
    safe = all(part and not part.startswith(".") and part.isprintable() and "\\" not in part for part in parts)
    if len(parts) < 3 or not safe or not parts[-1].lower().endswith(".gguf"):
        raise UnknownModel(f"{reference!r} is no model address; write hf://owner/repository/file.gguf")
    return HubFile(repository="/".join(parts[:2]), file="/".join(parts[2:]))
