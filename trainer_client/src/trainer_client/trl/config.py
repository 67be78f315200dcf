"""`RubricGRPOConfig`: TRL's GRPO settings, a method with its options, and the papers' recipes.

`RubricGRPOConfig`: TRL's settings for GRPO, a method, and the method's own options.

Recipes: the settings that each paper states for its method and for the baselines that it trains beside it.

What a paper's text lost is taken from the authors' code where that is known, and is ours elsewhere; `docs/methods.md`
has the table. Batches are given in prompts, as papers give them, and become TRL's settings for as many processes as
there are.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from trl import GRPOConfig

from trainer_client.trl.methods import METHODS, Method, method_class, options_of

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


_METHOD_SETTINGS = (
    "beta",
    "entropy_coef",
    "epsilon",
    "epsilon_high",
    "loss_type",
    "lr_scheduler_type",
    "mask_truncated_completions",
    "num_generations",
    "scale_rewards",
    "temperature",
    "top_k",
    "top_p",
    "use_bias_correction_kl",
    "vllm_importance_sampling_correction",
    "warmup_steps",
)


def _method_default(what: str) -> Any:
    return field(default=None, metadata={"help": f"{what}; the method's unless set."})


@dataclass
class RubricGRPOConfig(GRPOConfig):
    """Settings of a `RubricGRPOTrainer`: all of TRL's `GRPOConfig`, and these.

    Settings that papers differ in are None until given; what is not given becomes the method's, or TRL's where the
    method has none.

    Args:
        method: `rubric`, `rar`, `grounded`, `srar`, `rgr`, `dro` or `ruscarl`.
        method_options: the method's own, by name; see `docs/methods.md`.
        required_rewards: names of reward functions beside the `RubricReward`, as TRL logs them. A response for which
            one of these, or the `RubricReward`, gives no reward is left out of the loss. Where any other function gives
            none, it does not apply to that response and counts nothing, as in TRL.
        max_refill_rounds: how many more times to generate for a batch, each time from other prompts, while the method
            leaves groups of it out of the loss (DAPO's dynamic sampling); 0 only leaves them out.

    Raises:
        ValueError: there is no such method or option, or a setting of TRL's does not go with any method.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "method_options"]

    method: str = field(default="rubric", metadata={"help": f"Method of training: {', '.join(METHODS)}."})
    method_options: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Options of the method, as a mapping (JSON on the command line)."}
    )
    required_rewards: list[str] | None = field(
        default=None,
        metadata={"help": "Reward functions, by name, without whose reward a response is left out of the loss."},
    )
    max_refill_rounds: int = field(
        default=0,
        metadata={"help": "How many more rounds of generation may replace groups that the method leaves out."},
    )
    beta: float | None = _method_default("Weight of the KL divergence")
    entropy_coef: float | None = _method_default("Weight of the entropy bonus")
    epsilon: float | None = _method_default("Lower clip")
    loss_type: str | None = _method_default("Normalisation of the loss")
    lr_scheduler_type: str | None = _method_default("Learning-rate schedule")
    mask_truncated_completions: bool | None = _method_default("Whether truncated responses are left out of the loss")
    num_generations: int | None = _method_default("Responses in a group")
    scale_rewards: str | None = _method_default(
        "'group', 'none', or 'batch' for method 'rubric': what divides advantages"
    )
    temperature: float | None = _method_default("Sampling temperature")
    top_k: int | None = _method_default("Sampling among the k likeliest tokens")
    top_p: float | None = _method_default("Sampling among the likeliest tokens of this mass")
    use_bias_correction_kl: bool | None = _method_default("Importance weights in the KL divergence")
    vllm_importance_sampling_correction: bool | None = _method_default("Correction for vLLM's probabilities")
    warmup_steps: float | None = _method_default("Warm-up, in steps or as a share of all")

    def __post_init__(self) -> None:
        """Fill in the method's settings, then TRL's, and check what TRL cannot know."""
        method_settings = method_class(self.method).settings
        for name in _METHOD_SETTINGS:
            if getattr(self, name) is None:
                setattr(self, name, method_settings.get(name, GRPOConfig.__dataclass_fields__[name].default))
        try:
            super().__post_init__()
        except ValueError as error:
            if "num_generations" not in str(error) or "divisible" not in str(error):
                raise
            raise ValueError(
                f"{error} Make per_device_train_batch_size x processes x steps_per_generation a multiple of "
                f"{self.num_generations}, the responses of a group (method {self.method!r}), or set num_generations"
            ) from error
        self._check()
        self.build_method()

    @classmethod
    def recipe(cls, name: str, output_dir: str, *, prompts: int | None = None, **given: Any) -> Self:
        """Give the settings that a paper states, for as many processes as there are (`WORLD_SIZE`).

        The `RubricReward` beside it takes `trainer_client.trl.config.recipe(name).reward`.

        Args:
            name: of `trainer_client.trl.config.RECIPES`.
            output_dir: where checkpoints go.
            prompts: how many prompts are sampled for at a time, in place of the paper's number.
            given: settings that go before the recipe's.

        Raises:
            ValueError: there is no such recipe, or a generation is not a whole number of micro-batches.
        """
        return cls(output_dir=output_dir, **recipe(name).arguments(prompts, given))

    def build_method(self) -> Method:
        """Make the method that these settings describe.

        Raises:
            ValueError: it has no such option.
        """
        options: Mapping[str, Any] = self.method_options if isinstance(self.method_options, Mapping) else {}
        known = options_of(self.method)
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(
                f"method_options has {unknown[0]!r}, which {self.method!r} does not take; it takes "
                + ", ".join(f"{name} ({default!r})" for name, default in known.items())
            )
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
        }
        return method_class(self.method)(scale="none" if self.scale_rewards == "none" else "std", **given)

    @property
    def uses_trl_advantages(self) -> bool:
        """Whether TRL's own advantages are trained on: those that divide by the batch's deviation."""
        return self.scale_rewards == "batch" or self.multi_objective_aggregation == "normalize_then_sum"

    def _check(self) -> None:
        options = self.method_options if isinstance(self.method_options, Mapping) else {}
        if self.method == "rubric" and self.uses_trl_advantages:
            if options:
                raise ValueError(
                    f"method_options has {', '.join(options)}, which TRL's own advantages do not take; leave it out, "
                    "or use scale_rewards='group' and multi_objective_aggregation='sum_then_normalize'"
                )
        elif self.scale_rewards == "batch":
            raise ValueError(
                f"scale_rewards is 'batch', and method {self.method!r} divides by the group's deviation: use 'group' "
                "or 'none', or method 'rubric'"
            )
        elif self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"multi_objective_aggregation is {self.multi_objective_aggregation!r}, and the advantages of method "
                f"{self.method!r} are of one reward: use 'sum_then_normalize', or method 'rubric'"
            )
        if method_class(self.method).stepwise and self.scale_rewards == "none":
            raise ValueError(
                f"scale_rewards is 'none', and method {self.method!r} divides by deviations throughout; leave "
                "scale_rewards out, or leave steps alone undivided with method_options={'normalise': False}"
            )
        if options.get("sequence_band") is not None and not self.vllm_importance_sampling_correction:
            raise ValueError(
                "sequence_band weighs vLLM's probabilities, and vllm_importance_sampling_correction is off; set it to "
                "True"
            )
        if self.max_refill_rounds < 0:
            raise ValueError(f"max_refill_rounds is {self.max_refill_rounds}; use 0 for none, or a positive number")
        if self.max_refill_rounds and not self.build_method().filters_groups:
            raise ValueError(
                f"max_refill_rounds is {self.max_refill_rounds}, and method {self.method!r} leaves no group out, so "
                "there is nothing to refill; add method_options={'dynamic_sampling': True}"
            )
        high = self.epsilon_high or self.epsilon or 0.0
        if self.delta is not None and self.delta <= 1 + high:
            raise ValueError(
                f"delta is {self.delta}, and the upper clip 1 + epsilon_high is {1 + high}; TRL's delta is the dual "
                "clip's c only above it: use 2 to 3"
            )
