"""`RubricGRPOConfig`: TRL's GRPO settings, a method with its options, and the papers' recipes.

A recipe holds the settings that a paper states for its method or for one of its baselines. Values that the paper's
text omits come from the authors' code if it is available, and are ours otherwise (`docs/reference/methods.md`). Batch
sizes are given in prompts, as in the papers, and are converted to TRL's settings for the number of processes.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from trl import GRPOConfig

from trainer_client.trl.methods import METHODS, Method, method_class, options_of

__all__ = ["RECIPES", "Recipe", "RubricGRPOConfig", "recipe"]


def _method_default(help_text: str) -> Any:
    return field(default=None, metadata={"help": f"{help_text}. Default: the method's value."})


@dataclass
class RubricGRPOConfig(GRPOConfig):
    """Settings of a `RubricGRPOTrainer`: all of TRL's `GRPOConfig`, and the ones below.

    Settings that differ between papers are None by default and are set to the method's value, or to TRL's default if
    the method has none.

    Args:
        method: `rubric`, `rar`, `grounded`, `srar`, `rgr`, `dro`, `ruscarl` or `gdpo`.
        method_options: options of the method, by name; see `docs/reference/methods.md`.
        required_rewards: names of reward functions beside the `RubricReward`, as TRL logs them. A response for which
            one of these, or the `RubricReward`, gives no reward is left out of the loss. If any other function gives
            no reward, it does not apply to that response and adds nothing to the sum, as in TRL.
        max_refill_rounds: the number of additional rounds of generation, each from other prompts, that replace groups
            which the method leaves out of the loss (DAPO's dynamic sampling). With 0 they are only left out.

    Raises:
        ValueError: the method or an option is unknown, or a setting of TRL conflicts with the method.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "method_options"]

    method: str = field(default="rubric", metadata={"help": f"Training method: {', '.join(METHODS)}."})
    method_options: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Options of the method, as a mapping (JSON on the command line)."}
    )
    required_rewards: list[str] | None = field(
        default=None,
        metadata={"help": "Names of reward functions; a response without a reward from each is left out of the loss."},
    )
    max_refill_rounds: int = field(
        default=0,
        metadata={"help": "Most additional rounds of generation to replace groups that the method leaves out."},
    )
    beta: float | None = _method_default("Weight of the KL divergence")
    entropy_coef: float | None = _method_default("Weight of the entropy bonus")
    epsilon: float | None = _method_default("Lower clip")
    loss_type: str | None = _method_default("Normalization of the loss")
    lr_scheduler_type: str | None = _method_default("Learning-rate schedule")
    mask_truncated_completions: bool | None = _method_default("Whether truncated responses are left out of the loss")
    num_generations: int | None = _method_default("Responses in a group")
    scale_rewards: str | None = _method_default(
        "What advantages are divided by: 'group', 'none', or, for method 'rubric', 'batch'"
    )
    temperature: float | None = _method_default("Sampling temperature")
    top_k: int | None = _method_default("Sample from the k most likely tokens")
    top_p: float | None = _method_default("Sample from the most likely tokens with this total probability")
    use_bias_correction_kl: bool | None = _method_default("Whether to use importance weights in the KL divergence")
    vllm_importance_sampling_correction: bool | None = _method_default("Whether to correct for vLLM's probabilities")
    warmup_steps: float | None = _method_default("Warm-up, in steps or as a share of all steps")

    def __post_init__(self) -> None:
        """Fill in the method's settings, then TRL's, and validate their combination."""
        method_settings = method_class(self.method).settings
        for name, inherited in GRPOConfig.__dataclass_fields__.items():
            of_method = name in method_settings or name in RubricGRPOConfig.__annotations__
            if of_method and getattr(self, name) is None:
                setattr(self, name, method_settings.get(name, inherited.default))
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
        """Create the settings that a paper states, for the current number of processes (`WORLD_SIZE`).

        Pass `trainer_client.trl.config.recipe(name).reward` to the `RubricReward`.

        Args:
            name: a key of `trainer_client.trl.config.RECIPES`.
            output_dir: the folder for checkpoints.
            prompts: replaces the paper's number of prompts in a generation batch.
            given: settings that override the recipe's.

        Raises:
            ValueError: the recipe is unknown, or a generation batch is not a whole number of micro-batches.
        """
        return cls(output_dir=output_dir, **recipe(name).arguments(prompts, given))

    def build_method(self) -> Method:
        """Create the method that these settings describe.

        Raises:
            ValueError: the method does not have one of the options.
        """
        options: Mapping[str, Any] = self.method_options if isinstance(self.method_options, Mapping) else {}
        known = options_of(self.method)
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(
                f"method_options contains {unknown[0]!r}, which is not an option of method {self.method!r}; it takes "
                + ", ".join(f"{name} ({default!r})" for name, default in known.items())
            )
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
        }
        return method_class(self.method)(scale="none" if self.scale_rewards == "none" else "std", **given)

    @property
    def uses_trl_advantages(self) -> bool:
        """Whether to train on TRL's own advantages, which are divided by the batch's standard deviation."""
        return self.scale_rewards == "batch" or self.multi_objective_aggregation == "normalize_then_sum"

    def _check(self) -> None:
        options = self.method_options if isinstance(self.method_options, Mapping) else {}
        if self.method == "rubric" and self.uses_trl_advantages:
            if options:
                raise ValueError(
                    f"method_options contains {', '.join(options)}, which TRL's own advantages do not use; leave it "
                    "out, or set scale_rewards='group' and multi_objective_aggregation='sum_then_normalize'"
                )
        elif self.scale_rewards == "batch":
            raise ValueError(
                f"scale_rewards is 'batch', but method {self.method!r} divides by the group's standard deviation; use "
                "'group' or 'none', or method 'rubric'"
            )
        elif self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"multi_objective_aggregation is {self.multi_objective_aggregation!r}, but method {self.method!r} "
                "computes advantages from a single reward; use 'sum_then_normalize', or method 'rubric'"
            )
        if method_class(self.method).always_scales and self.scale_rewards == "none":
            raise ValueError(
                f"scale_rewards is 'none', but method {self.method!r} always divides by standard deviations; leave "
                "scale_rewards out"
                + (
                    ". To turn normalization off for steps only, set method_options={'normalise': False}"
                    if "normalise" in options_of(self.method)
                    else ""
                )
            )
        if options.get("sequence_band") is not None and not self.vllm_importance_sampling_correction:
            raise ValueError(
                "sequence_band needs vLLM's probabilities, but vllm_importance_sampling_correction is off; set it to "
                "True"
            )
        if self.max_refill_rounds < 0:
            raise ValueError(f"max_refill_rounds is {self.max_refill_rounds}; it must be 0 or more")
        if self.max_refill_rounds and not self.build_method().filters_groups:
            raise ValueError(
                f"max_refill_rounds is {self.max_refill_rounds}, but method {self.method!r} leaves no groups out, so "
                "there is nothing to refill; set method_options={'dynamic_sampling': True}"
            )
        high = self.epsilon_high or self.epsilon or 0.0
        if self.delta is not None and self.delta <= 1 + high:
            raise ValueError(
                f"delta is {self.delta}, but it must be above the upper clip 1 + epsilon_high ({1 + high}) to act as "
                "the dual clip's c; use 2 to 3"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one run of a paper.

    Attributes:
        method: the `method` of `RubricGRPOConfig`.
        prompts: the number of prompts in a generation batch.
        updates: the number of optimizer steps on a generation batch.
        settings: other settings of `RubricGRPOConfig`.
        options: options of the method.
        reward: arguments of `RubricReward`, except the client.
    """

    method: str
    prompts: int
    updates: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    reward: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, prompts: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for a `RubricGRPOConfig`.

        Args:
            prompts: replaces the paper's number of prompts.
            given: settings that override the recipe's; `method_options` are merged option by option.

        Raises:
            ValueError: a generation batch is not a whole number of micro-batches.
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
                f"{count} prompts with {group} responses in {self.updates} updates make {responses / self.updates:g} "
                f"responses per update, which is not a multiple of per_device_train_batch_size x processes ({micro}); "
                "set per_device_train_batch_size to a divisor, or change prompts"
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
"""The papers' methods and their baselines, by name."""


def recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe is {name!r}; use one of {', '.join(RECIPES)}")
    return RECIPES[name]
