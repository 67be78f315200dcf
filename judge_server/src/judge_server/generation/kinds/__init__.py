"""The generators, one module a kind; `judge_server.generation.registry` finds them by name."""

from judge_server.generation.kinds.contrastive import ContrastiveGenerator
from judge_server.generation.kinds.document import DocumentGenerator
from judge_server.generation.kinds.evolving import EvolvingGenerator
from judge_server.generation.kinds.gate import GateGenerator
from judge_server.generation.kinds.graded import GradedGenerator
from judge_server.generation.kinds.points import PointsGenerator
from judge_server.generation.kinds.reference import ReferenceGenerator

ALL_GENERATORS = (
    ReferenceGenerator,
    DocumentGenerator,
    ContrastiveGenerator,
    GateGenerator,
    GradedGenerator,
    EvolvingGenerator,
    PointsGenerator,
)
"""In the order in which they are listed."""

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
