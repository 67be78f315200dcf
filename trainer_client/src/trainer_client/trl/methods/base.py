"""What a method of training decides, and what one leaves as TRL has it.

A method is a frozen set of options with hooks: what the policy generates from, how responses are scored, what of an
answer its advantages need, what advantages a group gets, and what the policy is compared with in the loss. One file
holds one paper. Nothing here calls the service, runs a model or knows of ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_client.advantages import Scale, group_advantages
from trainer_client.scaffold import training_progress
from trainer_client.trl._dataset import WithoutRubric
from trainer_client.wire import Criterion, ResponseReward

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.float64]

FilterMetric = Literal["reward", "accuracy"]
"""What dynamic sampling compares in a group: rewards, or whether responses are right."""

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Rollout:
    """One response, as much of it as a group's advantages need. Small, since it travels between ranks.

    Attributes:
        tokens: T_i, how many tokens were generated.
        reward: None where any part of it is missing; then the rollout enters no statistic and moves nothing.
        deltas: {step: d_k} of step-wise methods.
        spans: {step: [first, last + 1)} in tokens.
        certainty: p_ij of the T tokens of the reference answer after the rollout's reasoning; empty without any.
        scores: of the criteria, in the rubric's order; a score is None where the judge failed, and all of it where
            there is no answer at all.
        overlap: ROUGE-L F1 of its answer with the reference answer.
        answered: whether an answer was found apart from its reasoning; None where nothing looked for one.
        judged: the judge's own reward before penalties; None where there is none.
        penalty: what penalties added to `reward`, usually below 0, with the weights that it is summed by.
        correct: whether all criteria of kind `answer` are satisfied; None without such criteria, or where missing
            verdicts decide it.
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

    @property
    def accurate(self) -> bool | None:
        """Whether the response is right: by `correct`, else by whether the judge's own reward reaches 1."""
        if self.correct is not None or self.judged is None:
            return self.correct
        return self.judged >= 1.0 - _ROUNDING


class SampleRequest(NamedTuple):
    """One response that is about to be sampled.

    Attributes:
        prompt: text, or messages.
        prompt_id: the same for a prompt on all ranks and at all times.
        criteria: of the rubric it will be judged by; empty without one.
        sample: i, its place in its group, from 1.
        group_size: G.
    """

    prompt: Any
    prompt_id: str
    criteria: tuple[Criterion, ...]
    sample: int
    group_size: int


class TrainingProgress(NamedTuple):
    """When in a run something happens: the optimizer step, from 1, of how many, and the run's seed."""

    step: int
    total: int
    seed: int

    @property
    def progress(self) -> float:
        """t, in [0, 1]."""
        return training_progress(self.step, self.total)


class ScoredResponse(NamedTuple):
    """What the judge said of one response, and the rubric it said it by."""

    answer: ResponseReward
    criteria: tuple[Criterion, ...]


@dataclass(frozen=True, kw_only=True)
class Method:
    """The plain method that the others are variations of.

    Attributes:
        scale: `std` divides advantages by the group's deviation, `none` does not; TRL's `scale_rewards` sets it.
        ddof: 1 for the sample's deviation, as in TRL, verl, NeMo-RL and OpenRLHF; 0 for the population's.
        eps: added to the deviation.
        dynamic_sampling: leave groups without a signal out of the loss (DAPO, section 3.2). The config's
            `max_refill_rounds` says whether groups of other prompts take their places first.
        filter_metric: which groups carry no signal: those whose rewards, and whose steps' deltas, all equal each
            other (`reward`), or whose responses are all right or all wrong (`accuracy`, DAPO's). Unknown values do not
            count.
    """

    settings: ClassVar[Mapping[str, Any]] = {"vllm_importance_sampling_correction": False}
    """TRL's own settings where the paper has others than TRL; a setting given to the config goes before."""
    stepwise: ClassVar[bool] = False
    """Whether the advantages need each step's deltas and tokens."""
    uses_certainty: ClassVar[bool] = False
    """Whether rewards are taken of a frozen model's certainty of the reference answer."""
    without_rubric: ClassVar[WithoutRubric] = "refuse"
    """What becomes of rows without a rubric, or with an empty one."""

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
        """What `RubricReward` asks the service for where its user has not said."""
        return {"mode": "weighted_mean", "on_failure": "null"}

    def deltas(self, scored: ScoredResponse) -> Mapping[int, float]:
        """Give each step's raw delta in a response; step-wise methods only."""
        return {}

    def advantages(self, group: Sequence[Rollout]) -> list[Array]:
        """Give the advantages of the rollouts of one group: an array of T_i, or one number for all tokens.

        0 where the reward is None.
        """
        return [np.asarray(a) for a in group_advantages(self.rewards(group), **self._deviation)]

    def rewards(self, group: Sequence[Rollout]) -> list[float | None]:
        """Give the rewards of the rollouts of one group that advantages are taken of."""
        return [rollout.reward for rollout in group]

    def uninformative(self, group: Sequence[Rollout], memory: Any) -> bool:
        """Whether a group is left out of the loss altogether, its divergence and its tokens' count included."""
        if not self.dynamic_sampling:
            return False
        if self.filter_metric == "accuracy":
            return len({rollout.accurate for rollout in group} - {None}) < 2
        pairs = zip(self.rewards(group), group, strict=True)
        return len({(reward, *sorted(rollout.deltas.items())) for reward, rollout in pairs if reward is not None}) < 2

    def start(self) -> Any:
        """Give what the method remembers from one generation batch to the next, before the first."""
        return None

    def update_memory(self, memory: Any, groups: Sequence[Sequence[Rollout]]) -> Any:
        """Give what it remembers after a batch."""
        return memory

    def as_json(self, memory: Any) -> Any:
        """Write down what it remembers, for a checkpoint."""
        return None

    def from_json(self, kept: Any) -> Any:
        """Read what was written down."""
        return self.start()

    def metrics(self, groups: Sequence[Sequence[Rollout]], memory: Any) -> Mapping[str, float]:
        """Give what the log is to show of a batch, by name."""
        return {}

    def sampling_weights(self, batch: Mapping[str, "torch.Tensor"]) -> "Mapping[str, torch.Tensor]":
        """Replace the importance weights that TRL gives responses which vLLM sampled.

        Args:
            batch: a generation batch: `old_per_token_logps` and `sampling_per_token_logps` among it, B x T, where TRL
                corrects for vLLM's probabilities.

        Returns:
            Those entries of `batch` that change.
        """
        return {}

    def override_loss_inputs(
        self, logps: "torch.Tensor", inputs: Mapping[str, "torch.Tensor"]
    ) -> "Mapping[str, torch.Tensor]":
        """Replace what TRL's loss compares the policy's log-probabilities with.

        Args:
            logps: B x T, log pi of the tokens, with their gradient.
            inputs: what TRL's loss is given: `old_per_token_logps` and `ref_per_token_logps` among it.

        Returns:
            Those entries of `inputs` that change.
        """
        return {}

    def loss_metrics(
        self, logps: "torch.Tensor", inputs: Mapping[str, "torch.Tensor"]
    ) -> "Mapping[str, tuple[torch.Tensor, torch.Tensor]]":
        """Give what the log is to show of a micro-batch: sums over tokens, and how many tokens each is over."""
        return {}

    @property
    def _deviation(self) -> dict[str, Any]:
        return {"scale": self.scale, "ddof": self.ddof, "eps": self.eps}
