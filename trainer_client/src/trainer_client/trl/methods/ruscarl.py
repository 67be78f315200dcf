"""RuscaRL: samples are generated with criteria of the rubric in the prompt, fewer along a group and over training.

For sample i of G at progress t, the prompt that the policy generates from contains
round(M / (1 + exp(alpha (t - t0))) * (G - i) / (G - 1)) of the M criteria (eq. 3). The rubric's points are the reward,
with GRPO's advantages. The mathematics is in `trainer_client.scaffold`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainer_client.rows.reading import WithoutRubric
from trainer_client.scaffold import Decay, GroupPattern, Place, scaffold_ratios, scaffolded_prompt, shown_to_sample
from trainer_client.trl.methods.base import Method, SampleRequest, TrainingProgress

Ratio = Literal["plain", "corrected", "scaffolded"]


@dataclass(frozen=True, kw_only=True)
class Ruscarl(Method):
    """Group advantages of responses to scaffolded prompts.

    Attributes:
        ratio: the probability ratio in the loss: `plain`, pi(y|q) / pi_old(y|q) (paper's best); `corrected`,
            pi(y|q) / pi_old(y|q, scaffold); `scaffolded`, both with the scaffold.
        pattern, full: how the scaffold differs between the samples of a group: `linear`, `binary` (the first `full`
            samples are shown all criteria), `full` or `none`.
        decay, alpha, midpoint, power: how the scaffold decays with progress: `sigmoid` (paper: alpha 125, midpoint
            0.2), `linear`, `power` or `constant`.
        place: where criteria go in a prompt of messages: into the `system` message (authors' code), or below the last
            `user` message, for models without system messages. In a text prompt they go below the text.
        weights: whether to show each criterion with its points (authors' code).
    """

    settings: ClassVar[Mapping[str, Any]] = {
        "lr_scheduler_type": "constant",
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "vllm_importance_sampling_correction": False,
    }
    without_rubric: ClassVar[WithoutRubric] = "outcome"

    ratio: Ratio = "plain"
    pattern: GroupPattern = "linear"
    full: int = 1
    decay: Decay = "sigmoid"
    alpha: float = 125.0
    midpoint: float = 0.2
    power: float = 1.0
    place: Place = "system"
    weights: bool = True

    @property
    def reward_defaults(self) -> Mapping[str, Any]:
        """The points of the criteria that are met, divided by the sum of the positive points."""
        return {"mode": "points", "on_failure": "null"}

    def prompts(self, request: Sequence[SampleRequest], training_progress: TrainingProgress) -> list[Any]:
        """Build each sample's scaffolded prompt. Equal seeds, steps and samples give equal prompts on any machine."""
        return [self._scaffolded(sample, training_progress) for sample in request]

    def shown(self, request: SampleRequest, training_progress: TrainingProgress) -> list[int]:
        """Draw the indices of the criteria to show to one sample."""
        ratios = scaffold_ratios(
            training_progress.progress,
            request.group_size,
            alpha=self.alpha,
            midpoint=self.midpoint,
            pattern=self.pattern,
            full=self.full,
            decay=self.decay,
            power=self.power,
        )
        return shown_to_sample(
            len(request.criteria),
            ratios,
            run_seed=training_progress.seed,
            prompt_id=request.prompt_id,
            step=training_progress.step,
            sample=request.sample,
        )

    def _scaffolded(self, request: SampleRequest, training_progress: TrainingProgress) -> Any:
        criteria = [request.criteria[index] for index in self.shown(request, training_progress)]
        return scaffolded_prompt(request.prompt, criteria, place=self.place, weights=self.weights)
