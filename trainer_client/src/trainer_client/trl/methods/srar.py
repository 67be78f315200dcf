"""SRaR: step-wise advantages from the criteria of each step of a solution, plus a base reward for the final answer.

Base reward = (1 - lambda) * accuracy + lambda * format. A satisfied criterion adds budget / number of criteria of its
kind to the delta of its step (eq. 3). A step's deltas are normalized over the rollouts that have one (eq. 4). A token's
advantage is the base reward's group advantage + the z of its step + the z of step 0, the whole response (eqs. 5 and 6).
The mathematics is in `trainer_client.steps` and `trainer_client.advantages`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trainer_client.advantages import Array, StepVariant, stepwise_advantages
from trainer_client.dropout import read_sample
from trainer_client.rows.reading import WithoutRubric
from trainer_client.steps import NO_STEP, step_deltas
from trainer_client.trl.methods.base import FilterMetric, Method, Rollout, ScoredResponse
from trainer_client.wire import CriterionKind


@dataclass(frozen=True, kw_only=True)
class Srar(Method):
    """Step-wise advantages, and the ablations of the paper, one switch each.

    Attributes:
        variant: `decoupled` (paper); `rar`, one scalar for the whole response; `merged`, that scalar for the tokens
            of steps that received a delta.
        normalise: whether to normalize each step's deltas over the group; without it training collapses (section
            4.4).
        kinds: the kinds of criteria that carry deltas; `("suggest",)` is the paper's ablation.
        count_satisfied_only: give a step a delta only when a satisfied criterion is attributed to it (the authors'
            code).
        suggest, pitfall, bonus: the budgets (paper: 0.8, -1, 1).
        format_weight: lambda (paper: 0.1). 0 trains without the step format.
        ddof: 0 for the population's standard deviation (the paper's proofs); the authors' code uses 1.
        filter_metric: `accuracy`, if groups are filtered (the authors' code).
    """

    settings: ClassVar[Mapping[str, Any]] = {
        "beta": 0.0,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "loss_type": "dapo",
        "vllm_importance_sampling_correction": False,
    }
    stepwise: ClassVar[bool] = True
    always_scales: ClassVar[bool] = True
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
        """The judge names the step of each criterion; a response without a base reward has no reward."""
        return {"mode": "stepwise", "on_failure": "null", "format_weight": self.format_weight}

    def deltas(self, scored: ScoredResponse) -> Mapping[int, float]:
        """Sum the verdicts' deltas of each step, with those of no step under -1, leaving out unscored ones (eq. 3)."""
        verdict_by_criterion = {verdict.criterion: verdict for verdict in scored.answer.verdicts}
        judged = [verdict_by_criterion.get(criterion.id) for criterion in scored.criteria]
        sample = read_sample(scored.criteria, judged)
        inclusions = (
            {} if sample is None else dict(zip((c.id for c in scored.criteria), sample.inclusions(), strict=True))
        )
        carrying = [criterion for criterion in scored.criteria if criterion.kind in self.kinds and not criterion.shadow]
        verdicts = [verdict_by_criterion.get(criterion.id) for criterion in carrying]
        return step_deltas(
            carrying,
            [None if verdict is None else verdict.value(scored.use) for verdict in verdicts],
            [None if verdict is None else verdict.step for verdict in verdicts],
            max((step.number for step in scored.answer.steps), default=0),
            suggest=self.suggest,
            pitfall=self.pitfall,
            bonus=self.bonus,
            count_satisfied_only=self.count_satisfied_only,
            keep_no_step=True,
            soft=scored.use == "probability",
            inclusions=[inclusions.get(criterion.id, 1.0) for criterion in carrying],
        )

    def advantages(self, group: Sequence[Rollout]) -> list[Array]:
        """Compute the advantage of each token of each rollout (eqs. 4 to 6)."""
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
        """Return the shares of responses without steps and with deltas of no step, and scored steps per response."""
        rollouts = [rollout for group in groups for rollout in group]
        return {
            "steps/without": sum(not rollout.spans for rollout in rollouts) / len(rollouts),
            "steps/scored": sum(len(rollout.deltas.keys() - {NO_STEP}) for rollout in rollouts) / len(rollouts),
            "steps/unattributed": sum(NO_STEP in rollout.deltas for rollout in rollouts) / len(rollouts),
        }


@dataclass(frozen=True, kw_only=True)
class Rar(Srar):
    """Rubrics as Rewards, SRaR's baseline: it differs only in that no delta is assigned to a step.

    r = base reward + the sum of all step deltas, and every token gets its group advantage.
    """

    variant: StepVariant = "rar"
