"""Recipes: the settings that each paper states for its method and for the baselines that it trains beside it.

What a paper's text lost is taken from the authors' code where that is known, and is ours elsewhere; `docs/methods.md`
has the table. Batches are given in prompts, as papers give them, and become TRL's settings for as many processes as
there are.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RECIPES", "Recipe", "recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of one run of a paper.

    Attributes:
        method: of `RubricGRPOConfig`.
        prompts: how many prompts are sampled for before each generation is trained on.
        updates: how many optimizer steps are taken on a generation.
        settings: of `RubricGRPOConfig`.
        options: of the method.
        reward: arguments of `RubricReward`, beside the service.
    """

    method: str
    prompts: int
    updates: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    reward: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, prompts: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Give the arguments of a `RubricGRPOConfig`.

        Args:
            prompts: in place of the paper's number.
            given: settings that go before the recipe's; of `method_options`, each option by itself.

        Raises:
            ValueError: a generation is not a whole number of micro-batches.
        """
        merged = {"method": self.method, "method_options": {}, **self.settings, **given}
        if isinstance(merged["method_options"], Mapping):
            merged["method_options"] = {**self.options, **merged["method_options"]}
        count, group = self.prompts if prompts is None else prompts, int(merged["num_generations"])
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        micro = int(merged.setdefault("per_device_train_batch_size", group)) * processes
        responses = count * group
        if responses % (self.updates * micro):
            raise ValueError(
                f"{count} prompts with {group} responses in {self.updates} updates are {responses / self.updates:g} "
                f"responses an update, not a multiple of per_device_train_batch_size x processes ({micro}); set "
                "per_device_train_batch_size to a divisor, or prompts to another number"
            )
        merged.setdefault("gradient_accumulation_steps", responses // self.updates // micro)
        merged.setdefault("steps_per_generation", responses // micro)
        return merged


_RGR = {
    "num_generations": 8,
    "max_completion_length": 5120,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "max_steps": 400,
    "temperature": 1.0,
}
_RGR_PENALTY = {"length_penalty": {"coefficient": 1e-4, "target_tokens": 2000}}
_SRAR = {
    "num_generations": 8,
    "max_completion_length": 8192,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 10,
    "weight_decay": 0.1,
    "max_steps": 200,
    "temperature": 1.0,
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "delta": 10.0,
    "loss_type": "dapo",
    "max_refill_rounds": 10,
}
_DAPO_SAMPLING = {"dynamic_sampling": True, "filter_metric": "accuracy"}
_DRO = {
    "num_generations": 16,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 0.2,
    "temperature": 1.0,
    "top_p": 0.95,
}
_UNGATED = {"gates": False, "variance_filter": False}
_RUSCARL = {
    "num_generations": 8,
    "max_completion_length": 4096,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "num_train_epochs": 5,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "beta": 0.001,
    "entropy_coef": 0.0,
}


def _rgr_baseline(mode: str) -> Recipe:
    return Recipe(method="rubric", prompts=96, settings={**_RGR, "beta": 0.001}, reward={"mode": mode, **_RGR_PENALTY})


def _dro_baseline(reward: str) -> Recipe:
    return Recipe(method="dro", prompts=16, settings=_DRO, options={"reward": reward, **_UNGATED})


RECIPES: Mapping[str, Recipe] = {
    "rgr": Recipe(method="rgr", prompts=96, settings={**_RGR, "entropy_coef": 0.01, "beta": 0.0}),
    "rgr-outcome": _rgr_baseline("outcome"),
    "rgr-likert": _rgr_baseline("likert"),
    "rgr-rubric": _rgr_baseline("factual_override"),
    "grounded": Recipe(
        method="grounded",
        prompts=16,
        settings={
            "num_generations": 8,
            "beta": 0.01,
            "learning_rate": 1e-6,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 10,
        },
    ),
    "srar": Recipe(method="srar", prompts=128, settings=_SRAR, options=_DAPO_SAMPLING),
    "rar": Recipe(method="rar", prompts=128, settings=_SRAR, options=_DAPO_SAMPLING),
    "dapo": Recipe(method="rubric", prompts=128, settings=_SRAR, options=_DAPO_SAMPLING, reward={"mode": "outcome"}),
    "dro": Recipe(method="dro", prompts=16, settings=_DRO),
    "dro-average-probability": _dro_baseline("average_probability"),
    "dro-average-log-probability": _dro_baseline("average_log_probability"),
    "dro-rouge": _dro_baseline("rouge_l"),
    "ruscarl": Recipe(method="ruscarl", prompts=64, updates=2, settings=_RUSCARL),
    "ruscarl-rubric": Recipe(method="rubric", prompts=64, updates=2, settings=_RUSCARL, reward={"mode": "points"}),
}
"""By name: each paper's method, and the baselines that are trained beside it."""


def recipe(name: str) -> Recipe:
    """Give a recipe.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe is {name!r}; use one of {', '.join(RECIPES)}")
    return RECIPES[name]
