"""SRaR: a step of a solution earns what its own criteria say, beside what the final answer earns.

Base reward = (1 - lambda) * accuracy + lambda * format. A satisfied criterion gives its step budget / number of its
kind (eq. 3); a step's deltas are normalised over the rollouts that have one (eq. 4); a token's advantage is the base
reward's group advantage + its step's z + that of step 0, the whole response (eqs. 5 and 6). The mathematics is in
`trainer_client.steps` and `trainer_client.advantages`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trainer_client.advantages import StepVariant, stepwise_advantages
from trainer_client.steps import NO_STEP, step_deltas
from trainer_client.trl._dataset import WithoutRubric
from trainer_client.trl.methods.base import Array, FilterMetric, Method, Rollout, ScoredResponse
from trainer_client.wire import CriterionKind


@dataclass(frozen=True, kw_only=True)
class Srar(Method):
    """Step-wise advantages, and the ablations of the paper, one switch each.

    Attributes:
        variant: `decoupled` (paper); `rar`, one scalar for the whole response; `merged`, that scalar for the tokens
            of steps that received a delta.
        normalise: whether each step's deltas are normalised over the group; without it training collapses (section
            4.4).
        kinds: the kinds of criteria that carry deltas; `("suggest",)` is the paper's ablation.
        count_satisfied_only: give a step a delta only when a satisfied criterion is attributed to it (the authors'
            code).
        suggest, pitfall, bonus: the budgets (paper: 0.8, -1, 1).
        format_weight: lambda (paper: 0.1). 0 is training without the step format.
        ddof: 0, the population's deviation (the paper's proofs); the authors' code has 1.
        filter_metric: `accuracy`, where groups are filtered (the authors' code).
    """

    settings: ClassVar[Mapping[str, Any]] = {
        "beta": 0.0,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "loss_type": "dapo",
        "vllm_importance_sampling_correction": False,
    }
    stepwise: ClassVar[bool] = True
    without_rubric: ClassVar[WithoutRubric] = "outcome"

    variant: StepVariant = "decoupled"
    normalise: bool = True
    kinds: tuple[CriterionKind, ...] = ("suggest", "pitfall", "bonus")
    count_satisfied_only: bool = False
    suggest: float = 0.8
    pitfall: float = -1.0
    bonus: float = 1.0
    format_weight: float = 0.1
    ddof: int = 0
    filter_metric: FilterMetric = "accuracy"

    @property
    def reward_defaults(self) -> Mapping[str, Any]:
        """The judge names each criterion's step; a response without a base reward has no reward."""
        return {"mode": "stepwise", "on_failure": "null", "format_weight": self.format_weight}

    def deltas(self, scored: ScoredResponse) -> Mapping[int, float]:
        """Sum each step's deltas by the verdicts, no step's under -1; one without a score is left out (eq. 3)."""
        verdict_by_criterion = {verdict.criterion: verdict for verdict in scored.answer.verdicts}
        carrying = [criterion for criterion in scored.criteria if criterion.kind in self.kinds]
        verdicts = [verdict_by_criterion.get(criterion.id) for criterion in carrying]
        return step_deltas(
            carrying,
            [None if verdict is None else verdict.score for verdict in verdicts],
            [None if verdict is None else verdict.step for verdict in verdicts],
            max((step.number for step in scored.answer.steps), default=0),
            suggest=self.suggest,
            pitfall=self.pitfall,
            bonus=self.bonus,
            count_satisfied_only=self.count_satisfied_only,
            keep_no_step=True,
        )

    def advantages(self, group: Sequence[Rollout]) -> list[Array]:
        """Give each token of each rollout its advantage (eqs. 4 to 6)."""
        return stepwise_advantages(
            [rollout.reward for rollout in group],
            [rollout.deltas for rollout in group],
            [rollout.spans for rollout in group],
            [rollout.tokens for rollout in group],
            variant=self.variant,
            normalise=self.normalise,
            ddof=self.ddof,
            eps=self.eps,
        )

    def metrics(self, groups: Sequence[Sequence[Rollout]], memory: Any) -> Mapping[str, float]:
        """Shares of responses without steps and with a criterion of no step; steps with a delta, per response."""
        rollouts = [rollout for group in groups for rollout in group]
        return {
            "steps/without": sum(not rollout.spans for rollout in rollouts) / len(rollouts),
            "steps/scored": sum(len(rollout.deltas.keys() - {NO_STEP}) for rollout in rollouts) / len(rollouts),
            "steps/unattributed": sum(NO_STEP in rollout.deltas for rollout in rollouts) / len(rollouts),
        }
