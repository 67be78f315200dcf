"""The runs that are compared: what each one trains on, and by what reward and method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from examples.learning.arithmetic import Problem
from examples.learning.rubrics import form_rubric, plain_rubric, rubric


@dataclass(frozen=True)
class Run:
    """One way to train.

    Attributes:
        label: its name in the plot.
        method, options: of `RubricGRPOConfig`.
        reward: of `RubricReward`.
        rubric: what a problem's solutions are judged by.
        settings: of `RubricGRPOConfig`, where it needs others than all.
    """

    label: str
    method: str
    rubric: Callable[[Problem], dict[str, Any]] = plain_rubric
    reward: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


RUNS: Mapping[str, Run] = {
    "outcome": Run("outcome only", "rubric", reward={"mode": "outcome"}),
    "rubric": Run("rubric, one number a response", "rubric"),
    "grounded": Run("grounded, leave-one-out", "grounded"),
    "rar": Run("RaR, one number a response", "rar", rubric),
    "srar": Run("SRaR, a number a step", "srar", rubric),
    "srar-raw": Run("SRaR, steps not normalised", "srar", rubric, options={"normalise": False}),
    "dro": Run("DRO, certainty of the answer", "dro", form_rubric, settings={"num_generations": 8}),
}
