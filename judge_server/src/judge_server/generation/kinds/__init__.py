"""The registry of generators: one module per kind, or per paper, and lookup by the kind's name."""

from collections.abc import Mapping
from typing import Any

from judge_server.generation.generator import Generator, RubricLookup
from judge_server.generation.kinds.contrastive import ContrastiveGenerator
from judge_server.generation.kinds.document import DocumentGenerator
from judge_server.generation.kinds.dro import GateGenerator, GradedGenerator
from judge_server.generation.kinds.evolving import EvolvingGenerator
from judge_server.generation.kinds.points import PointsGenerator
from judge_server.generation.kinds.reference import ReferenceGenerator

__all__ = [
    "ALL_GENERATORS",
    "ContrastiveGenerator",
    "DocumentGenerator",
    "EvolvingGenerator",
    "GateGenerator",
    "GradedGenerator",
    "PointsGenerator",
    "ReferenceGenerator",
]

ALL_GENERATORS = (
    ReferenceGenerator,
    DocumentGenerator,
    ContrastiveGenerator,
    GateGenerator,
    GradedGenerator,
    EvolvingGenerator,
    PointsGenerator,
)
"""Every generator class, in the order in which listings show them."""

GENERATORS: dict[str, type[Generator[Any, Any]]] = {one.kind: one for one in ALL_GENERATORS}


def generator_of(
    kind: str,
    parameters: dict[str, Any],
    *,
    find: RubricLookup | None = None,
    templates: Mapping[str, str] | None = None,
) -> Generator[Any, Any]:
    """Create the generator of a kind with these parameters. Close it when done. Raises as `check_parameters`."""
    return _generator_class(kind)(check_parameters(kind, parameters), find=find, templates=templates)


def check_parameters(kind: str, parameters: dict[str, Any]) -> Any:
    """Validate the parameters of a kind of generator.

    Raises:
        ValueError: the kind does not exist, or a parameter is unknown or out of range (pydantic's `ValidationError`).
    """
    return _generator_class(kind).Parameters.model_validate(parameters)


def _generator_class(kind: str) -> type[Generator[Any, Any]]:
    if kind not in GENERATORS:
        raise ValueError(f"there is no generator {kind!r}; there are {', '.join(GENERATORS)}")
    return GENERATORS[kind]
