"""The training methods, one module per paper, by the name that `RubricGRPOConfig(method=…)` takes."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trainer_client.trl.methods.base import Method, Rollout, RubricGrpo, ScoredResponse
from trainer_client.trl.methods.dro import Dro
from trainer_client.trl.methods.gdpo import Gdpo
from trainer_client.trl.methods.grounded import Grounded
from trainer_client.trl.methods.rgr import Rgr
from trainer_client.trl.methods.ruscarl import Ruscarl
from trainer_client.trl.methods.srar import Rar, Srar

__all__ = [
    "METHODS",
    "Dro",
    "Gdpo",
    "Grounded",
    "Method",
    "Rar",
    "Rgr",
    "Rollout",
    "RubricGrpo",
    "Ruscarl",
    "ScoredResponse",
    "Srar",
    "method_class",
    "options_of",
]

METHODS: Mapping[str, type[Method]] = {
    "rubric": RubricGrpo,
    "rar": Rar,
    "grounded": Grounded,
    "srar": Srar,
    "rgr": Rgr,
    "dro": Dro,
    "ruscarl": Ruscarl,
    "gdpo": Gdpo,
}


def method_class(name: str) -> type[Method]:
    """Return the class of a method.

    Raises:
        ValueError: the method is unknown.
    """
    if name not in METHODS:
        raise ValueError(f"method is {name!r}; use one of {', '.join(METHODS)}")
    return METHODS[name]


def options_of(name: str) -> Mapping[str, Any]:
    """Return the options that a method takes in `method_options`, with their defaults."""
    plain = method_class(name)()
    return {option.name: getattr(plain, option.name) for option in fields(plain) if option.name != "scale"}
