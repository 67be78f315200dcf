"""DRO: a dense reward from the policy's own certainty of the reference answer, with rubrics as gates.

p_ij is how probable the frozen initial policy finds token j of the reference answer after rollout i's reasoning. R3_i =
sum_j w_j p_ij, w = softmax(beta sigma), sigma_j being the deviation over the group (eq. 2): tokens that depend on the
reasoning count most. Two gates of yes/no criteria on the final answers (section 4.1) and a filter for groups whose
certainties hardly vary (section 4.2) decide which groups train. The mathematics is in `trainer_client.dro`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

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
from trainer_client.reasoning import SplitRule, find_answer
from trainer_client.trl._dataset import WithoutRubric
from trainer_client.trl.methods.base import Array, Method, Rollout

GroupStatus = Literal["accepted", "undecided", "coverage", "consistency", "variance", "unscored"]
"""What becomes of a group, and which gate rejects it."""


@dataclass(frozen=True, kw_only=True)
class Dro(Method):
    """Group advantages of R3, for groups that pass.

    Attributes:
        reward: `r3`, or a baseline: `average_probability`, `average_log_probability`, `rouge_l`.
        sharpness: beta, how sharply R3 tells tokens apart (ours: 10).
        p_min, p_max: the clip of R3 and of the variance score (ours: 0.05, 0.95).
        floor: the least p that the average log-probability counts with; see `trainer_client.dro`.
        gates: whether rubrics gate at all.
        min_rollouts: m, by how many rollouts each criterion is to be satisfied (ours: 1).
        top_k: k, how many of the best rollouts the consistency gate looks at (ours: G / 4, rounded up).
        min_fraction: rho, the share of the criteria that each of them is to satisfy (ours: 0.5).
        variance_filter: whether groups of low variance are rejected.
        top_fraction: the share of tokens that the variance score is taken of (ours: 0.1).
        every, percentile: K and q of the rolling threshold, in generation batches and percent (ours: 20, 50).
        answer_rule: where in a response its answer begins; see `trainer_client.reasoning`.
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
        """All criteria of a response in one call; what the rubric rewards is not trained on."""
        return {
            "mode": "gate",
            "on_failure": "null",
            "criteria_per_call": "all",
            "gate_fraction": self.min_fraction,
        }

    def rewards(self, group: Sequence[Rollout]) -> list[float | None]:
        """Give R3, or the baseline chosen, of each rollout; None where there are no probabilities to take it of."""
        if self.reward == "rouge_l":
            return [rollout.overlap for rollout in group]
        rows = [rollout.certainty for rollout in group if rollout.certainty]
        if not rows:
            return [None] * len(group)
        values = iter(self._group_values(rows).tolist())
        return [next(values) if rollout.certainty else None for rollout in group]

    def start(self) -> RollingThreshold:
        """Begin without a threshold: nothing is rejected for its variance during the first K batches."""
        return RollingThreshold(every=self.every, percentile=self.percentile)

    def update_memory(self, memory: RollingThreshold, groups: Sequence[Sequence[Rollout]]) -> RollingThreshold:
        """Take the scores of a batch into account, those of rejected groups too."""
        scores = [self._variance(group) for group in groups]
        return memory.after_step([score for score in scores if score is not None])

    def as_json(self, memory: RollingThreshold) -> Any:
        """Write the threshold down for a checkpoint."""
        return asdict(memory)

    def from_json(self, kept: Any) -> RollingThreshold:
        """Read it again."""
        return RollingThreshold(**{**kept, "recent": tuple(kept["recent"])})

    def uninformative(self, group: Sequence[Rollout], memory: RollingThreshold) -> bool:
        """Whether a gate or the filter keeps a group from training; an undecided gate does."""
        return super().uninformative(group, memory) or self.group_status(group, memory) != "accepted"

    @property
    def filters_groups(self) -> bool:
        """Whether there is a gate or a filter."""
        return self.dynamic_sampling or self.gates or self.variance_filter

    def group_status(self, group: Sequence[Rollout], memory: RollingThreshold) -> GroupStatus:
        """Say what becomes of a group: the first of coverage, consistency and variance that rejects it."""
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
        """Shares of groups by what became of them and of responses without an answer, mean reward, threshold."""
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
        """Decide the gates; verdicts that a whole answer lacks are missing, one for each criterion of the group."""
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
