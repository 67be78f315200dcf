"""Callbacks of `RubricGRPOTrainer`: the hook for scored generations, and the papers' training measures.

What a callback of `RubricGRPOTrainer` is told beyond transformers' own events, and how it adds to the log.

`TrainingMeasures`: what the papers watch while they train, logged for each generation batch.

Made of what the trainer has anyway: no response is sampled, judged or run through a model for it. The measures
themselves are those of `trainer_client.measures`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback

from trainer_client._loops import loops
from trainer_client.measures import best_of_n, novelty, pass_at_k, self_bleu
from trainer_client.trl.config import RubricGRPOConfig
from trainer_client.trl.reward import RubricReward


@dataclass(frozen=True, slots=True)
class ScoredGeneration:
    """A generation batch after it was scored: N responses over all ranks, n of them this one's.

    Attributes:
        rewards: N, G consecutive ones to a prompt: what the method makes advantages of; None where there is none.
        functions: each reward function's N rewards, by the function's name.
        group_size: G.
        completions: n responses as the reward functions are given them, text or messages.
        first: the place among the N of the first of them.
        elsewhere: n times whether a response was generated from another prompt than the one it is trained on; None
            where all are generated from their own.
        training: whether it is trained on, or evaluated.
        unpenalised: N, `rewards` before length and truncation penalties; None for all where none was told of.
        judged: N, the judge's own rewards before penalties, whatever is trained on; None for all without a judge.
        correct: N times whether the criteria of kind `answer` are satisfied; None where there are none or where
            missing verdicts decide it, and for all where none was told of.
        step: how many optimizer steps were done before it.
        reward: the trainer's `RubricReward`, whose `last` holds the n responses as they were judged; None without one.
    """

    rewards: Sequence[float | None]
    functions: Mapping[str, Sequence[float | None]]
    group_size: int
    completions: Sequence[Any]
    first: int
    off_policy: Sequence[bool] | None
    training: bool
    unpenalised: Sequence[float | None] | None = None
    judged: Sequence[float | None] | None = None
    correct: Sequence[bool | None] | None = None
    step: int = 0
    reward: RubricReward | None = None


class GenerationCallback(TrainerCallback):
    """A callback that measures generation batches; what its methods return is logged, by name.

    The methods are called on all ranks alike, so that they may gather. The log shows what the main process's return,
    averaged over a logging step.
    """

    def needs_reference_logps(self, training: bool) -> bool:
        """Whether `on_loss` is to be given the reference's log-probabilities where TRL computes none.

        That takes a copy of the policy as it was before training, and a forward pass of it for each micro-batch.
        """
        return False

    def state(self) -> Mapping[str, Any] | None:
        """Give what a checkpoint keeps, as JSON takes it; None where there is nothing to keep."""
        return None

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state of a checkpoint."""

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Measure a generation batch, once for each."""
        return {}

    def on_loss(self, logps: torch.Tensor, inputs: Mapping[str, torch.Tensor], training: bool) -> Mapping[str, float]:
        """Measure a micro-batch when its loss is taken.

        Args:
            logps: B x T, log pi of the tokens under the policy as it is, without a gradient.
            inputs: what the loss is given: `completion_mask` among it, and `ref_per_token_logps` where beta is not 0 or
                a callback wants it.
            training: whether it is trained on, or evaluated.
        """
        return {}


_ROUNDING = 1e-6
"""Rewards are float32 when they reach the trainer; a threshold is what the user wrote."""

ItemT = TypeVar("ItemT")


class TrainingMeasures(GenerationCallback):
    """Logs, under `measures/`, and each only where there is something to take it of:

    - `zero_rewards`: the share of rewarded responses whose reward before penalties is 0 or less.
    - `off_policy`: the share of responses generated from another prompt than the one they are trained on: those that
      `rgr` refined, or for which `ruscarl` showed criteria.
    - `pass_at_K`: the chance that one of K samples is right, averaged over the groups with at least K responses of
      which that is known. What says so is the verdict on the answer (criteria of kind `answer`), and where the rubric
      has none, whether the judge's own reward before penalties reaches the threshold. Under `dro` that is the gate.
    - `best_of_K`: the expected best reward of K samples, before penalties, of what the method trains on.
    - `diversity`: 1 less Self-BLEU, averaged over the first few groups.
    - `loops`: the share of responses that go round in circles.
    - `novelty/mean`, `novelty/median`, `novelty/above_2`, `…_10`, `…_100`: how much more probable responses are to
      the policy than to the reference model, by mean log-likelihood: the ratios' mean and median, and the shares
      above 2, 10 and 100, of the responses that the loss is taken over. Where `beta` is 0 TRL computes nothing of a
      reference; with `novelty=True` a copy of the policy as it was before training is loaded for it.

    Args:
        ks: the K, each at least 1; those above a group's size are left out.
        correct: the reward function, by the name under which TRL logs it, whose reward says which responses are
            right, in place of the judge.
        threshold: a response is right from this reward on, where rewards say so.
        diversity_groups: how many groups `diversity` looks at, whose texts all ranks are sent; 0 leaves it out.
        loops: whether to look for them.
        novelty: True measures it always, False never; None where `beta` is above 0, since it costs nothing there.

    Raises:
        ValueError: a number is out of range, the trainer is no `RubricGRPOTrainer`, or it has no such reward function.
    """

    def __init__(
        self,
        *,
        ks: Sequence[int] = (1, 2, 4, 8),
        correct: str | None = None,
        threshold: float = 1.0,
        diversity_groups: int = 4,
        loops: bool = True,
        novelty: bool | None = None,
    ) -> None:
        if any(k < 1 for k in ks) or diversity_groups < 0 or not math.isfinite(threshold):
            raise ValueError(
                f"ks is {tuple(ks)}, diversity_groups {diversity_groups} and threshold {threshold}; ks are at least "
                "1, diversity_groups is not negative, and threshold is finite"
            )
        self._ks, self._correct, self._threshold = tuple(ks), correct, threshold
        self._diversity_groups, self._loops, self._novelty = diversity_groups, loops, novelty
        self._remaining: dict[bool, int] = {}
        self._likelihoods: defaultdict[bool, list[tuple[float, float]]] = defaultdict(list)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse trainers that would never call it."""
        if not isinstance(args, RubricGRPOConfig):
            raise ValueError("TrainingMeasures measures what a RubricGRPOTrainer tells it; other trainers tell nothing")

    def needs_reference_logps(self, training: bool) -> bool:
        """Whether a generation batch's novelty is wanted, and not measured yet."""
        return self._novelty is True and self._remaining.get(training, 0) > 0

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Measure a generation batch, and begin to wait for its losses."""
        self._remaining[generation.training], self._likelihoods[generation.training] = len(generation.completions), []
        gathered: list[_RankMeasures] = gather_object([self._measure_rank(generation)])
        rows = sum(share.rows for share in gathered)
        measured: dict[str, float | None] = _reward_measures(generation, self._correctness(generation), self._ks)
        if generation.off_policy is not None:
            measured["off_policy"] = sum(share.off_policy for share in gathered) / rows
        if self._loops:
            measured["loops"] = sum(share.looping for share in gathered) / rows
        texts = [text for share in gathered for text in share.texts]
        measured["diversity"] = _mean(
            [1.0 - self_bleu(group) for group in _groups(texts, generation.group_size) if len(group) > 1]
        )
        return {f"measures/{name}": value for name, value in measured.items() if value is not None}

    def on_loss(self, logps: torch.Tensor, inputs: Mapping[str, torch.Tensor], training: bool) -> Mapping[str, float]:
        """Add a micro-batch's likelihoods, and measure novelty once the whole generation batch was seen."""
        reference = inputs.get("ref_per_token_logps")
        if self._novelty is False or reference is None or self._remaining.get(training, 0) <= 0:
            return {}
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        means = [_masked_mean(values, mask) for values in (logps, reference)]
        pairs = [(new, old) for new, old in torch.stack(means, dim=1).tolist() if math.isfinite(new + old)]
        self._likelihoods[training] += pairs
        self._remaining[training] -= len(mask)
        if self._remaining[training] > 0:
            return {}
        gathered: list[tuple[float, float]] = gather_object(self._likelihoods[training])
        if not gathered:
            return {}
        found = novelty([new for new, _ in gathered], [old for _, old in gathered])
        shares = {f"above_{limit:g}": count / len(gathered) for limit, count in found.counts.items()}
        named = {"mean": found.mean, "median": found.median, **shares}
        return {f"measures/novelty/{name}": value for name, value in named.items()}

    def _measure_rank(self, generation: ScoredGeneration) -> "_RankMeasures":
        texts = [_text(completion) for completion in generation.completions]
        shown = max(0, self._diversity_groups * generation.group_size - generation.first)
        looping = sum(map(bool, map(loops, texts))) if self._loops else 0
        return _RankMeasures(len(texts), sum(generation.off_policy or ()), looping, texts[:shown])

    def _correctness(self, generation: ScoredGeneration) -> list[bool | None]:
        decided: Sequence[bool | None] = [None] * len(generation.rewards)
        if self._correct is None:
            rewards = generation.rewards if generation.judged is None else generation.judged
            decided = generation.correct or decided
        elif self._correct in generation.functions:
            rewards = generation.functions[self._correct]
        else:
            raise ValueError(
                f"correct is {self._correct!r}, and the reward functions are {', '.join(generation.functions)}"
            )
        reached = [None if reward is None else reward >= self._threshold - _ROUNDING for reward in rewards]
        return [other if own is None else own for own, other in zip(decided, reached, strict=True)]


class _RankMeasures(NamedTuple):
    """What one rank tells the others: how many responses it has, of what kinds, and the texts that are compared."""

    rows: int
    off_policy: int
    looping: int
    texts: list[str]


def _reward_measures(
    generation: ScoredGeneration, right: Sequence[bool | None], ks: Sequence[int]
) -> dict[str, float | None]:
    """Measure what rewards tell, which are the same on all ranks."""
    rewards = generation.rewards if generation.unpenalised is None else generation.unpenalised
    known = [reward for reward in rewards if reward is not None]
    measured: dict[str, float | None] = {"zero_rewards": _mean([float(reward <= _ROUNDING) for reward in known])}
    size = generation.group_size
    verdicts = [[one for one in group if one is not None] for group in _groups(right, size)]
    for k in ks:
        measured[f"pass_at_{k}"] = _mean([pass_at_k(len(own), sum(own), k) for own in verdicts if len(own) >= k])
        best = [best_of_n(group, k) for group in _groups(rewards, size)]
        measured[f"best_of_{k}"] = _mean([value for value in best if value is not None])
    return measured


def _groups(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """B means over the tokens of a B x T mask; NaN where there is none."""
    return torch.where(mask.bool(), values.detach().float(), 0.0).sum(dim=1) / mask.sum(dim=1)


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    contents = (message.get("content") for message in completion if message.get("role") == "assistant")
    return "\n\n".join(content for content in contents if isinstance(content, str))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
