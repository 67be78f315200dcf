"""`POST /v1/rewards/recompute`: the rewards of a run under other rules, from verdicts that are there already."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from trainer_client.wire.answers import StepReward
from trainer_client.wire.base import STRICT_NUMBER, AnswerModel, BoundedFloat, RequestDict, RequestModel
from trainer_client.wire.criteria import CriterionId
from trainer_client.wire.groups import RunName
from trainer_client.wire.judging import JudgingProtocol
from trainer_client.wire.problems import Problem
from trainer_client.wire.rewards import AppliedPolicy, FailurePolicy, RewardMode, RewardOptions


class StepBudgets(RequestModel):
    """What all criteria of a kind together give or take over a response's steps (SRaR: 0.8, -1, 1)."""

    suggest: BoundedFloat = 0.8
    pitfall: BoundedFloat = -1.0
    bonus: BoundedFloat = 1.0


class RecomputeRequest(RequestModel):
    """Reward a run again, or a part of it, without asking any judge.

    Attributes:
        run: the run; null for what was judged under no run's name.
        first_step: leave out what was judged at earlier steps, and at none.
        last_step: leave out what was judged at later steps, and at none.
        protocol: take only what was judged in this protocol; needed where a run has several, some of which cannot feed
            the mode.
        reward: as in `RewardRequest`.
        on_failure: as in `RewardRequest`.
        weights: by criterion id, instead of the rubrics' own.
        budgets: of the steps, where they were judged.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run": "llama-srar-3",
                    "first_step": 100,
                    "last_step": 200,
                    "reward": {"mode": "weighted_mean"},
                    "on_failure": "skip",
                    "weights": {"product": 3, "dropped": 0},
                }
            ]
        }
    )

    run: RunName | None = None
    first_step: Annotated[int, Field(ge=0), STRICT_NUMBER] | None = None
    last_step: Annotated[int, Field(ge=0), STRICT_NUMBER] | None = None
    protocol: JudgingProtocol | None = None
    reward: RewardOptions = RewardOptions()
    on_failure: FailurePolicy = "null"
    weights: RequestDict[CriterionId, BoundedFloat] = Field(default_factory=dict, max_length=10_000)
    budgets: StepBudgets = StepBudgets()

    @model_validator(mode="after")
    def _steps_in_order(self) -> "RecomputeRequest":
        if self.first_step is not None and self.last_step is not None and self.first_step > self.last_step:
            raise ValueError(f"first_step is {self.first_step} and last_step {self.last_step}; the first comes first")
        return self


class RecomputedResponse(AnswerModel):
    """A response's reward; the fields mean what they mean in `ResponseReward`, `position` is its place in the group."""

    position: int
    reward: float | None
    unpenalised: float | None = None
    status: Literal["scored", "partial", "unscored"]
    policy_applied: AppliedPolicy | None = None
    dropped: int = 0
    steps: tuple[StepReward, ...] = ()


class RecomputedGroup(AnswerModel):
    """The responses of a group as one request sent it."""

    request_id: str
    step: int | None
    id: str
    rubric: str | None
    responses: tuple[RecomputedResponse, ...]


class RecomputeStart(AnswerModel):
    """How much there is to do."""

    run: str | None
    requests: int
    verdicts: int


class RecomputeSummary(AnswerModel):
    """What came of it.

    `verdicts` counts every vote, `missing` those that the ledger does not have, which count as failed. `mean_reward` is
    that of the responses that have one, null where none has.
    """

    run: str | None
    mode: RewardMode
    on_failure: FailurePolicy
    requests: int
    responses: int
    verdicts: int
    missing: int
    scored: int
    partial: int
    unscored: int
    mean_reward: float | None


class RecomputeEvent(AnswerModel):
    """One line of the answer: how much there is, then groups, last a summary, or a problem that ends it."""

    start: RecomputeStart | None = None
    group: RecomputedGroup | None = None
    summary: RecomputeSummary | None = None
    problem: Problem | None = None
