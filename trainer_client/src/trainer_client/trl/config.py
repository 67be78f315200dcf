"""`RubricGRPOConfig`: TRL's settings for GRPO, a method, and the method's own options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trl import GRPOConfig

from trainer_client.trl.methods import METHODS, Method, method_class, options_of

_METHODS_DECIDE = (
    "beta",
    "entropy_coef",
    "epsilon",
    "epsilon_high",
    "loss_type",
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


def _of_the_method(what: str) -> Any:
    return field(default=None, metadata={"help": f"{what}; the method's unless set."})


@dataclass
class RubricGRPOConfig(GRPOConfig):
    """Settings of a `RubricGRPOTrainer`: all of TRL's `GRPOConfig`, and these.

    Settings that papers differ in are None until given; what is not given becomes the method's, or TRL's where the
    method has none.

    Args:
        method: `rubric`, `rar`, `grounded`, `srar`, `rgr`, `dro` or `ruscarl`.
        method_options: the method's own, by name; see `docs/methods.md`.

    Raises:
        ValueError: there is no such method or option, or a setting of TRL's does not go with any method.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "method_options"]

    method: str = field(default="rubric", metadata={"help": f"Method of training: {', '.join(METHODS)}."})
    method_options: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Options of the method, as a mapping (JSON on the command line)."}
    )
    beta: float | None = _of_the_method("Weight of the KL divergence")
    entropy_coef: float | None = _of_the_method("Weight of the entropy bonus")
    epsilon: float | None = _of_the_method("Lower clip")
    loss_type: str | None = _of_the_method("Normalisation of the loss")
    mask_truncated_completions: bool | None = _of_the_method("Whether truncated responses are left out of the loss")
    num_generations: int | None = _of_the_method("Responses in a group")
    scale_rewards: str | None = _of_the_method("'group' or 'none': whether advantages are divided by the deviation")
    temperature: float | None = _of_the_method("Sampling temperature")
    top_k: int | None = _of_the_method("Sampling among the k likeliest tokens")
    top_p: float | None = _of_the_method("Sampling among the likeliest tokens of this mass")
    use_bias_correction_kl: bool | None = _of_the_method("Importance weights in the KL divergence")
    vllm_importance_sampling_correction: bool | None = _of_the_method("Correction for vLLM's probabilities")
    warmup_steps: float | None = _of_the_method("Warm-up, in steps or as a share of all")

    def __post_init__(self) -> None:
        """Fill in the method's settings, then TRL's, and check what TRL cannot know."""
        decided = method_class(self.method).settings
        for name in _METHODS_DECIDE:
            if getattr(self, name) is None:
                setattr(self, name, decided.get(name, GRPOConfig.__dataclass_fields__[name].default))
        super().__post_init__()
        self._check()
        self.build_method()

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
        return method_class(self.method)(scale="std" if self.scale_rewards == "group" else "none", **given)

    def _check(self) -> None:
        if self.scale_rewards == "batch":
            raise ValueError(
                "scale_rewards is 'batch'; a method divides by the group's deviation: use 'group' or 'none'"
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                "multi_objective_aggregation must be 'sum_then_normalize': a method's advantages are of one reward, "
                "the weighted sum"
            )
        high = self.epsilon_high or self.epsilon or 0.0
        if self.delta is not None and self.delta <= 1 + high:
            raise ValueError(
                f"delta is {self.delta}, and the upper clip 1 + epsilon_high is {1 + high}; TRL's delta is the dual "
                "clip's c only above it: use 2 to 3"
            )
