"""The registry of generators: one module per kind, or per paper, and lookup by the kind's name."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from judge_server.generation.generator import Generator
from judge_server.generation.kinds.contrastive import ContrastiveGenerator
from judge_server.generation.kinds.document import DocumentGenerator
from judge_server.generation.kinds.dro import GateGenerator, GradedGenerator
from judge_server.generation.kinds.evolving import EvolvingGenerator
from judge_server.generation.kinds.points import PointsGenerator
from judge_server.generation.kinds.reference import ReferenceGenerator
from judge_server.ports import RubricSource
from trainer_client.wire import RubricVersion

_GENERATORS: tuple[type[Generator[Any, Any]], ...] = (
    ReferenceGenerator,
    DocumentGenerator,
    ContrastiveGenerator,
    GateGenerator,
    GradedGenerator,
    EvolvingGenerator,
    PointsGenerator,
)

GENERATORS = {one.kind: one for one in _GENERATORS}
"""Every generator by its kind, in the order in which listings show them."""


@asynccontextmanager
async def open_generator(
    kind: str,
    parameters: Mapping[str, Any],
    rubrics: RubricSource,
    project_id: str,
    templates: Mapping[str, str] | None = None,
) -> AsyncIterator[Generator[Any, Any]]:
    """Open the generator of a kind with these parameters.

    Args:
        kind, parameters: what is generated, and how.
        rubrics, project_id: where a generator that revises rubrics finds them.
        templates: templates that replace the default ones, by file name.

    Raises:
        ValueError: the kind does not exist, or a parameter is unknown or out of range (pydantic's `ValidationError`).
    """

    async def find(reference: str) -> RubricVersion | None:
        return await rubrics.find(project_id, reference)

    if kind not in GENERATORS:
        raise ValueError(f"there is no generator {kind!r}; there are {', '.join(GENERATORS)}")
    parsed = GENERATORS[kind].Parameters.model_validate(parameters)
    generator = GENERATORS[kind](parsed, find=find, templates=templates)
    try:
        yield generator
    finally:
        await generator.answers.close()
