"""The runs to compare: the starting policy, problems, reward and method of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from examples.learning.arithmetic import ArithmeticProblem
from examples.learning.policy import PLAIN, UNEXPLAINED_STEPS, WITH_LONG_PROMPTS, PolicyConfig
from examples.learning.rubrics import asked_rubric, format_rubric, plain_rubric, rubric, twelve_rubric

_RIGHT = {"answer": "Right answers", "steps": "Right steps", "faithful": "Right answers by right steps alone"}
_DECLARED = {"declared": "Declared reward", "answer": "Right answers", "steps": "Right steps"}
_ASKED = {"declared": "Declared reward", "answer": "Right answers", "asked": "Judge calls made"}
_ANSWERED = {"answered": "Responses with an answer", "answer": "Right answers", "steps": "Right steps"}


class Experiment(NamedTuple):
    """Runs that share a starting policy and problems.

    Attributes:
        start: the settings of the starting policy.
        unexplained: the number of steps of a problem with the unexplained operator.
        prompts: the number of problems per training step.
        steps: the default number of training steps.
        panels: the measures of `AccuracyCallback` to plot, with their titles.
    """

    start: PolicyConfig
    unexplained: int
    prompts: int
    steps: int
    panels: Mapping[str, str]


EXPERIMENTS: Mapping[str, Experiment] = {
    "plain": Experiment(PLAIN, 0, 32, 60, _RIGHT),
    "hard": Experiment(WITH_LONG_PROMPTS, UNEXPLAINED_STEPS, 16, 40, _RIGHT),
    "unanswered": Experiment(WITH_LONG_PROMPTS, 0, 16, 40, _ANSWERED),
    "twelve": Experiment(PLAIN, 0, 32, 60, _DECLARED),
    "asked": Experiment(PLAIN, 0, 32, 60, _ASKED),
}


@dataclass(frozen=True)
class TrainingRun:
    """One way to train.

    Attributes:
        label: the name in the plot.
        method, options: `method` and `method_options` of `RubricGRPOConfig`.
        reward: arguments of `RubricReward`.
        rubric: creates the rubric of a problem.
        settings: settings of `RubricGRPOConfig` that differ from the common ones.
        experiment: a key of `EXPERIMENTS`.
    """

    label: str
    method: str
    rubric: Callable[[ArithmeticProblem], dict[str, Any]] = plain_rubric
    reward: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    experiment: str = "plain"


_OUTCOME = {"mode": "outcome"}
_GROUP_OF_EIGHT = {"num_generations": 8}
_NO_BONUS = {"entropy_coef": 0.0}
"""With the paper's 0.01 the policy does not learn within 40 steps: see docs/studies/learning-curves.md."""

_UNSCALED = {"scale_rewards": "none"}
_BUDGET = {"dropout": {"keep": 0.1, "saturated": True}}

RUNS: Mapping[str, TrainingRun] = {
    "outcome": TrainingRun("outcome only", "rubric", reward=_OUTCOME),
    "rubric": TrainingRun("rubric, one number a response", "rubric"),
    "grounded": TrainingRun("grounded, leave-one-out", "grounded"),
    "rar": TrainingRun("RaR, one number a response", "rar", rubric),
    "srar": TrainingRun("SRaR, a number a step", "srar", rubric),
    "srar-raw": TrainingRun("SRaR, steps not normalised", "srar", rubric, options={"normalise": False}),
    "dro": TrainingRun("DRO, certainty of the answer", "dro", format_rubric, settings=_GROUP_OF_EIGHT),
    "hard-outcome": TrainingRun("outcome only", "rubric", reward=_OUTCOME, experiment="hard"),
    "hard-rubric": TrainingRun("rubric, one number a response", "rubric", experiment="hard"),
    "hard-rgr": TrainingRun("RGR-GRPO, one refined of eight", "rgr", settings=_NO_BONUS, experiment="hard"),
    "hard-ruscarl": TrainingRun(
        "RuscaRL, scaffold for the first fifth", "ruscarl", options={"weights": False}, experiment="hard"
    ),
    "dro-gated": TrainingRun("DRO", "dro", format_rubric, settings=_GROUP_OF_EIGHT, experiment="unanswered"),
    "dro-ungated": TrainingRun(
        "DRO without its gates",
        "dro",
        format_rubric,
        options={"gates": False},
        settings=_GROUP_OF_EIGHT,
        experiment="unanswered",
    ),
    "twelve-declared": TrainingRun("the rubric's own weights", "rubric", twelve_rubric, experiment="twelve"),
    "twelve-contrast": TrainingRun(
        "contrast", "rubric", twelve_rubric, reward={"weighting": "contrast"}, experiment="twelve"
    ),
    "twelve-gdpo": TrainingRun("GDPO", "gdpo", twelve_rubric, reward={"components": "criterion"}, experiment="twelve"),
    "twelve-correlated": TrainingRun(
        "CorrGRPO",
        "gdpo",
        twelve_rubric,
        options={"scaled_by": "correlations"},
        reward={"components": "criterion"},
        experiment="twelve",
    ),
    "twelve-unscaled": TrainingRun(
        "the rubric's own weights, unscaled", "rubric", twelve_rubric, settings=_UNSCALED, experiment="twelve"
    ),
    "twelve-contrast-unscaled": TrainingRun(
        "contrast, unscaled",
        "rubric",
        twelve_rubric,
        reward={"weighting": "contrast"},
        settings=_UNSCALED,
        experiment="twelve",
    ),
    "asked-all": TrainingRun("every criterion in every group", "rubric", asked_rubric, experiment="asked"),
    "asked-saturated": TrainingRun(
        "saturated criteria in a tenth of the groups", "rubric", asked_rubric, _BUDGET, experiment="asked"
    ),
    "asked-dropout": TrainingRun(
        "half of all criteria in each group", "rubric", asked_rubric, {"dropout": {"keep": 0.5}}, experiment="asked"
    ),
}
