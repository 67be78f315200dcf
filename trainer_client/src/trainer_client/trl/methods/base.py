"""`Method`, the base class of training methods, and the data that its hooks receive.

A method is a frozen set of options with hooks: the prompts to generate from, how responses are scored, what the
advantages need from an answer, the advantages of a group, and what the loss compares the policy with. Without an
override, TRL's behavior applies. Each module beside this one implements one paper. Methods do not call the service, run
a model or communicate between ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from trainer_client.advantages import Array, Scale, group_advantages
from trainer_client.rows.reading import WithoutRubric
from trainer_client.scaffold import training_progress
from trainer_client.wire import Criterion, ResponseReward, VerdictUse

if TYPE_CHECKING:
    import torch

FilterMetric = Literal["reward", "accuracy"]
"""What dynamic sampling compares within a group: the rewards, or whether responses are right."""

NO_ADVANTAGE = 1e-6
"""Advantages up to this size come from rounding: nothing that they are computed from differs in the group."""

_ROUNDING = 1e-6


_ItemT = TypeVar("_ItemT")


def groups_of(size: int, items: Sequence[_ItemT]) -> list[Sequence[_ItemT]]:
    """Return the groups of a batch, which are `size` consecutive items each."""
    return [items[start : start + size] for start in range(0, len(items), size)]


@dataclass(frozen=True, slots=True)
class Rollout:
    """The data of one response that a group's advantages need. Kept small, since it is sent between ranks.

    Attributes:
        tokens: T_i, the number of generated tokens.
        reward: None if any part of it is missing; the rollout then enters no statistic and does not affect training.
        deltas: {step: d_k} of step-wise methods.
        spans: {step: [first, last + 1)} in tokens.
        certainty: p_ij of the T tokens of the reference answer after the rollout's reasoning; empty without one.
        scores: the scores of the criteria, in the rubric's order; a score is None if judging that criterion failed,
            and `scores` is None if there is no answer at all.
        overlap: ROUGE-L F1 between the response's answer and the reference answer.
        answered: whether an answer was found apart from the reasoning; None if it was not looked for.
        judged: the judge's own reward before penalties, or None.
        penalty: the weighted sum that penalties added to `reward`, usually below 0.
        correct: whether all criteria of kind `answer` are satisfied; None without such criteria, or if missing
            verdicts decide.
        weight: the weight of the judge's own reward in `reward`.
        components: the component rewards of the judge's own reward, before penalties; empty unless asked for.
        component_weights: their weights in it; empty if its mode is not linear.
    """

    tokens: int
    reward: float | None = None
    deltas: Mapping[int, float] = field(default_factory=dict)
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    certainty: tuple[float, ...] = ()
    scores: tuple[float | None, ...] | None = None
    overlap: float | None = None
    answered: bool | None = None
    judged: float | None = None
    penalty: float = 0.0
    correct: bool | None = None
    weight: float = 1.0
    components: Mapping[str, float | None] = field(default_factory=dict)
    component_weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def accurate(self) -> bool | None:
        """Whether the response is right: `correct` if known, else whether the judge's own reward reaches 1."""
        if self.correct is not None or self.judged is None:
            return self.correct
        return self.judged >= 1.0 - _ROUNDING


class SampleRequest(NamedTuple):
    """A response to sample.

    Attributes:
        prompt: text, or messages.
        prompt_id: identifies the prompt, on all ranks and in all steps.
        criteria: the criteria of the rubric that will judge it; empty without one.
        sample: i, its index in its group, from 1.
        group_size: G.
    """

    prompt: Any
    prompt_id: str
    criteria: tuple[Criterion, ...]
    sample: int
    group_size: int


class TrainingProgress(NamedTuple):
    """The current optimizer step, from 1, the total number of steps, and the run's seed."""

    step: int
    total: int
    seed: int

    @property
    def progress(self) -> float:
        """The progress t, in [0, 1]."""
        return training_progress(self.step, self.total)


class ScoredResponse(NamedTuple):
    """The judge's answer for one response, the criteria of its rubric, and what of a verdict enters the deltas."""

    answer: ResponseReward
    criteria: tuple[Criterion, ...]
    use: VerdictUse = "verdict"


@dataclass(frozen=True, kw_only=True)
class Method:
    """Plain GRPO advantages, and the hooks that methods override.

    Attributes:
        scale: `std` divides advantages by the group's standard deviation, `none` does not. TRL's `scale_rewards` sets
            it.
        ddof: 1 for the sample's standard deviation, as in TRL, verl, NeMo-RL and OpenRLHF; 0 for the population's.
        eps: added to the standard deviation.
        dynamic_sampling: whether to leave groups without a signal out of the loss (DAPO, section 3.2). With
            `max_refill_rounds` of the config, groups of other prompts replace them first.
        filter_metric: which groups carry no signal: those whose rewards and step deltas are all equal (`reward`), or
            whose responses are all right or all wrong (`accuracy`, as in DAPO). Unknown values are ignored.
    """

    settings: ClassVar[Mapping[str, Any]] = {"vllm_importance_sampling_correction": False}
    """The paper's values of TRL's settings; values given to the config override them."""
    stepwise: ClassVar[bool] = False
    """Whether the advantages need the deltas and tokens of each step."""
    always_scales: ClassVar[bool] = False
    """Whether advantages are always divided by standard deviations, whatever `scale` is."""
    uses_certainty: ClassVar[bool] = False
    """Whether rewards are computed from a frozen model's certainty of the reference answer."""
    without_rubric: ClassVar[WithoutRubric] = "refuse"
    """How to treat rows without a rubric, or with an empty one."""

    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6
    dynamic_sampling: bool = False
    filter_metric: FilterMetric = "reward"

    @property
    def filters_groups(self) -> bool:
        """Whether `uninformative` may leave a group out."""
        return self.dynamic_sampling

    @property
    def reward_defaults(self) -> Mapping[str, Any]:
        """Default options of the `RubricReward`, used where the user gives none."""
        return {"mode": "weighted_mean", "on_failure": "null"}

    def deltas(self, scored: ScoredResponse) -> Mapping[int, float]:
        """Return the raw delta of each step of a response; step-wise methods only."""
        return {}

    def advantages(self, group: Sequence[Rollout]) -> list[Array]:
        """Compute the advantages of the rollouts of one group: an array of T_i, or one number for all tokens.

        The advantage is 0 if the reward is None.
        """
        return [np.asarray(a) for a in group_advantages(self.rewards(group), **self._deviation)]

    def batch_advantages(self, groups: Sequence[Sequence[Rollout]]) -> list[Array]:
        """Compute the advantages of all rollouts of a batch; by default, those of each group by itself."""
        return [advantage for group in groups for advantage in self.advantages(group)]

    def rewards(self, group: Sequence[Rollout]) -> list[float | None]:
        """Return the rewards of one group that its advantages are computed from."""
        return [rollout.reward for rollout in group]

    def uninformative(self, group: Sequence[Rollout], memory: Any) -> bool:
        """Whether to leave a group out of the loss entirely, including its KL divergence and its token count."""
        if not self.dynamic_sampling:
            return False
        if self.filter_metric == "accuracy":
            return len({rollout.accurate for rollout in group} - {None}) < 2
        pairs = zip(self.rewards(group), group, strict=True)
        return len({(reward, *sorted(rollout.deltas.items())) for reward, rollout in pairs if reward is not None}) < 2

    def start(self) -> Any:
        """Return the method's memory before the first generation batch."""
        return None

    def update_memory(self, memory: Any, groups: Sequence[Sequence[Rollout]]) -> Any:
        """Return the memory after a generation batch."""
        return memory

    def as_json(self, memory: Any) -> Any:
        """Convert the memory to JSON-compatible data for a checkpoint; None if there is none."""
        return None

    def from_json(self, kept: Any) -> Any:
        """Restore the memory from a checkpoint."""
        return self.start()

    def metrics(self, groups: Sequence[Sequence[Rollout]], memory: Any) -> Mapping[str, float]:
        """Return the metrics of a generation batch, by name."""
        return {}

    def sampling_weights(self, batch: Mapping[str, "torch.Tensor"]) -> "Mapping[str, torch.Tensor]":
        """Replace TRL's importance weights of responses that vLLM sampled.

        Args:
            batch: a generation batch, including `old_per_token_logps` and `sampling_per_token_logps`, B x T, if TRL
                corrects for vLLM's probabilities.

        Returns:
            The entries of `batch` that change.
        """
        return {}

    def override_loss_inputs(
        self, logps: "torch.Tensor", inputs: Mapping[str, "torch.Tensor"]
    ) -> "Mapping[str, torch.Tensor]":
        """Replace the values that TRL's loss compares the policy's log-probabilities with.

        Args:
            logps: B x T, log pi of the tokens, with their gradient.
            inputs: the inputs of TRL's loss, including `old_per_token_logps` and `ref_per_token_logps`.

        Returns:
            The entries of `inputs` that change.
        """
        return {}

    def loss_metrics(
        self, logps: "torch.Tensor", inputs: Mapping[str, "torch.Tensor"]
    ) -> "Mapping[str, tuple[torch.Tensor, torch.Tensor]]":
        """Return the metrics of a micro-batch: for each a sum over tokens, and the number of tokens in the sum."""
        return {}

    @property
    def _deviation(self) -> dict[str, Any]:
        return {"scale": self.scale, "ddof": self.ddof, "eps": self.eps}


@dataclass(frozen=True, kw_only=True)
class RubricGrpo(Method):
    """Plain GRPO, the baseline of every paper: A = (r - mean) / (sigma + eps) for all tokens of a response.

    r is the reward of any mode. With `RubricReward(mode="outcome")` it trains on the final answer alone.
    """
