"""The runs that are compared: what each one begins with and trains on, and by what reward and method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from examples.learning.arithmetic import Problem
from examples.learning.policy import PLAIN, READING, UNEXPLAINED, Teaching
from examples.learning.rubrics import form_rubric, plain_rubric, rubric

_RIGHT = {"answer": "Right answers", "steps": "Right steps", "faithful": "Right answers by right steps alone"}
_ANSWERED = {"answered": "Responses with an answer", "answer": "Right answers", "steps": "Right steps"}


class Part(NamedTuple):
    """Runs that begin alike, on the same problems.

    Attributes:
        start: how the policy was taught that they begin with.
        unexplained: how many steps of a problem have the sign that nobody has explained.
        prompts: how many problems a training step samples responses to.
        steps: how many training steps there are, unless others are asked for.
        panels: what is shown of them: measures of `watch`, and their titles.
    """

    start: Teaching
    unexplained: int
    prompts: int
    steps: int
    panels: Mapping[str, str]


PARTS: Mapping[str, Part] = {
    "plain": Part(PLAIN, 0, 32, 60, _RIGHT),
    "hard": Part(READING, UNEXPLAINED, 16, 40, _RIGHT),
    "unanswered": Part(READING, 0, 16, 40, _ANSWERED),
}


@dataclass(frozen=True)
class Run:
    """One way to train.

    Attributes:
        label: its name in the plot.
        method, options: of `RubricGRPOConfig`.
        reward: of `RubricReward`.
        rubric: what a problem's solutions are judged by.
        settings: of `RubricGRPOConfig`, where it needs others than all.
        part: of `PARTS`.
    """

    label: str
    method: str
    rubric: Callable[[Problem], dict[str, Any]] = plain_rubric
    reward: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    part: str = "plain"


_OUTCOME = {"mode": "outcome"}
_EIGHT = {"num_generations": 8}
_NO_BONUS = {"entropy_coef": 0.0}
"""With the paper's 0.01 the policy does not learn within 40 steps: see docs/learning.md."""

RUNS: Mapping[str, Run] = {
    "outcome": Run("outcome only", "rubric", reward=_OUTCOME),
    "rubric": Run("rubric, one number a response", "rubric"),
    "grounded": Run("grounded, leave-one-out", "grounded"),
    "rar": Run("RaR, one number a response", "rar", rubric),
    "srar": Run("SRaR, a number a step", "srar", rubric),
    "srar-raw": Run("SRaR, steps not normalised", "srar", rubric, options={"normalise": False}),
    "dro": Run("DRO, certainty of the answer", "dro", form_rubric, settings=_EIGHT),
    "hard-outcome": Run("outcome only", "rubric", reward=_OUTCOME, part="hard"),
    "hard-rubric": Run("rubric, one number a response", "rubric", part="hard"),
    "hard-rgr": Run("RGR-GRPO, one refined of eight", "rgr", settings=_NO_BONUS, part="hard"),
    "hard-ruscarl": Run("RuscaRL, scaffold for the first fifth", "ruscarl", options={"weights": False}, part="hard"),
    "dro-gated": Run("DRO", "dro", form_rubric, settings=_EIGHT, part="unanswered"),
    "dro-ungated": Run(
        "DRO without its gates", "dro", form_rubric, options={"gates": False}, settings=_EIGHT, part="unanswered"
    ),
}
