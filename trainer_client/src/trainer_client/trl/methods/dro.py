"""DRO: a dense reward from the policy's own certainty of the reference answer, with rubrics as gates.

p_ij is the probability that the frozen initial policy assigns to token j of the reference answer after rollout i's
reasoning. R3_i = sum_j w_j p_ij with w = softmax(beta sigma), where sigma_j is the standard deviation over the group
(eq. 2), so tokens that depend on the reasoning count most. Two gates of yes/no criteria on the final answers (section
4.1) and a filter for groups whose certainties hardly vary (section 4.2) decide which groups are trained on. The
mathematics is in `trainer_client.dro`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from trainer_client.advantages import Array
from trainer_client.dro import (
    SMALLEST_PROBABILITY,
    Gates,
    RollingThreshold,
    average_log_probability,
    average_probability,
    gate,
    reasoning_reflection_reward,
    variance_score,
)
from trainer_client.rows.reading import WithoutRubric
from trainer_client.text.thinking import SplitRule, find_answer
from trainer_client.trl.methods.base import Method, Rollout

GroupStatus = Literal["accepted", "undecided", "coverage", "consistency", "variance", "unscored"]
"""Whether a group is accepted, and otherwise why it is rejected."""


@dataclass(frozen=True, kw_only=True)
class Dro(Method):
    """Group advantages of R3, for groups that pass the gates and the filter.

    Attributes:
        reward: `r3`, or a baseline: `average_probability`, `average_log_probability`, `rouge_l`.
        sharpness: beta, how strongly R3 weights tokens that vary (ours: 10).
        p_min, p_max: the bounds to which R3 and the variance score clip probabilities (ours: 0.05, 0.95).
        floor: the smallest p in the average log-probability; see `trainer_client.dro`.
        gates: whether to use rubrics as gates.
        min_rollouts: m, the number of rollouts that must satisfy each criterion (ours: 1).
        top_k: k, the number of best rollouts that the consistency gate examines (ours: G / 4, rounded up).
        min_fraction: rho, the share of the criteria that each of them must satisfy (ours: 0.5).
        variance_filter: whether to reject groups of low variance.
        top_fraction: the share of tokens in the variance score (ours: 0.1).
        every, percentile: K and q of the rolling threshold, in generation batches and percent (ours: 20, 50).
        answer_rule: finds where the answer begins in a response; see `trainer_client.text.thinking`.
    """

    settings: ClassVar[Mapping[str, Any]] = {
        "beta": 0.0,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "loss_type": "dr_grpo",
        "lr_scheduler_type": "constant_with_warmup",
        "mask_truncated_completions": True,
        "num_generations": 16,
        "top_p": 0.95,
        "vllm_importance_sampling_correction": False,
        "warmup_steps": 0.2,
    }
    uses_certainty: ClassVar[bool] = True
    without_rubric: ClassVar[WithoutRubric] = "accept"

    reward: Literal["r3", "average_probability", "average_log_probability", "rouge_l"] = "r3"
    sharpness: float = 10.0
    p_min: float = 0.05
    p_max: float = 0.95
    floor: float = SMALLEST_PROBABILITY
    gates: bool = True
    min_rollouts: int = 1
    top_k: int | None = None
    min_fraction: float = 0.5
    variance_filter: bool = True
    top_fraction: float = 0.1
    every: int = 20
    percentile: float = 50.0
    answer_rule: SplitRule = find_answer

    @property
    def reward_defaults(self) -> Mapping[str, Any]:
        """Judge all criteria of a response in one call, for the gates only."""
        return {
            "mode": "gate",
            "on_failure": "null",
            "criteria_per_call": "all",
            "gate_fraction": self.min_fraction,
        }

    def rewards(self, group: Sequence[Rollout]) -> list[float | None]:
        """Return R3, or the chosen baseline, of each rollout; None for rollouts without probabilities."""
        if self.reward == "rouge_l":
            return [rollout.overlap for rollout in group]
        rows = [rollout.certainty for rollout in group if rollout.certainty]
        if not rows:
            return [None] * len(group)
        values = iter(self._group_values(rows).tolist())
        return [next(values) if rollout.certainty else None for rollout in group]

    def start(self) -> RollingThreshold:
        """Start without a threshold: the variance filter rejects no group during the first K batches."""
        return RollingThreshold(every=self.every, percentile=self.percentile)

    def update_memory(self, memory: RollingThreshold, groups: Sequence[Sequence[Rollout]]) -> RollingThreshold:
        """Add the variance scores of a batch, including those of rejected groups."""
        scores = [self._variance(group) for group in groups]
        return memory.after_step([score for score in scores if score is not None])

    def as_json(self, memory: RollingThreshold) -> Any:
        """Convert the threshold to JSON-compatible data for a checkpoint."""
        return asdict(memory)

    def from_json(self, kept: Any) -> RollingThreshold:
        """Restore the threshold from a checkpoint."""
        return RollingThreshold(**{**kept, "recent": tuple(kept["recent"])})

    def uninformative(self, group: Sequence[Rollout], memory: RollingThreshold) -> bool:
        """Whether a gate or the filter rejects a group. An undecided gate rejects it."""
        return super().uninformative(group, memory) or self.group_status(group, memory) != "accepted"

    @property
    def filters_groups(self) -> bool:
        """Whether any gate or filter is on."""
        return self.dynamic_sampling or self.gates or self.variance_filter

    def group_status(self, group: Sequence[Rollout], memory: RollingThreshold) -> GroupStatus:
        """Return the first of coverage, consistency and variance that rejects a group, or `accepted`."""
        if all(reward is None for reward in self.rewards(group)):
            return "unscored"
        gates = self._gates(group) if self.gates else Gates(True, True)
        for name, passed in (("coverage", gates.coverage), ("consistency", gates.consistency)):
            if passed is False:
                return name  # type: ignore[return-value]
        if None in gates:
            return "undecided"
        score = self._variance(group)
        rejected = self.variance_filter and score is not None and not memory.accepts(score)
        return "variance" if rejected else "accepted"

    def metrics(self, groups: Sequence[Sequence[Rollout]], memory: RollingThreshold) -> Mapping[str, float]:
        """Return the shares of groups by status and of responses without an answer, the mean reward, the threshold."""
        statuses = Counter(self.group_status(group, memory) for group in groups)
        known = [reward for group in groups for reward in self.rewards(group) if reward is not None]
        shares = {f"dro/{name}": statuses[name] / len(groups) for name in ("accepted", *_REJECTED)}
        more = {"dro/reward": float(np.mean(known))} if known else {}
        threshold = {} if memory.threshold is None else {"dro/threshold": memory.threshold}
        answer_flags = [rollout.answered for group in groups for rollout in group if rollout.answered is not None]
        unanswered = {"dro/no_answer": answer_flags.count(False) / len(answer_flags)} if answer_flags else {}
        return {**shares, **more, **threshold, **unanswered}

    def _group_values(self, rows: Sequence[Sequence[float]]) -> Array:
        match self.reward:
            case "average_probability":
                return average_probability(rows)
            case "average_log_probability":
                return average_log_probability(rows, floor=self.floor)
            case _:
                return reasoning_reflection_reward(rows, beta=self.sharpness, p_min=self.p_min, p_max=self.p_max)[0]

    def _variance(self, group: Sequence[Rollout]) -> float | None:
        rows = [rollout.certainty for rollout in group if rollout.certainty]
        if len(rows) < 2:
            return None
        return variance_score(rows, top_fraction=self.top_fraction, p_min=self.p_min, p_max=self.p_max)

    def _gates(self, group: Sequence[Rollout]) -> Gates:
        """Evaluate the gates. A rollout without an answer counts as one missing verdict per criterion."""
        count = max((len(rollout.scores) for rollout in group if rollout.scores is not None), default=None)
        if count is None:
            return Gates(None, None)
        rows = [[None] * count if rollout.scores is None else list(rollout.scores) for rollout in group]
        return gate(
            rows,
            self.rewards(group),
            min_rollouts=self.min_rollouts,
            top_k=self.top_k,
            min_fraction=self.min_fraction,
        )


_REJECTED: tuple[GroupStatus, ...] = ("coverage", "consistency", "undecided", "variance", "unscored")
