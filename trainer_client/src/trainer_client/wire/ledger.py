"""Reading the ledger: recorded verdicts, training runs, and rewards recomputed from them.

What the ledger gives out: verdicts as they were used, page by page, and how recording stands.

What `/v1/runs` tells of training runs: what was judged and rewarded in them, by step and by criterion.

Knows figures. Refuses to know verdicts, texts, and what a good figure is.

`POST /v1/rewards/recompute`: the rewards of a run under other rules, from verdicts that are there already.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from trainer_client.wire.base import STRICT_NUMBER, AnswerModel, BoundedFloat, RequestDict, RequestModel
from trainer_client.wire.criteria import CriterionId, CriterionKind
from trainer_client.wire.groups import Prompt, RunName
from trainer_client.wire.judging import JudgingProtocol
from trainer_client.wire.problems import Problem
from trainer_client.wire.rewards import (
    AppliedPolicy,
    FailureKind,
    FailurePolicy,
    PinnedRubric,
    RewardMode,
    RewardOptions,
    StepReward,
    Verdict,
)


class RecordedVerdict(AnswerModel):
    """A verdict as one request used it.

    `response` is the place of the response in its group as that request sent it, from 0. `rubric` is the digest of the
    rubric's content, null where there was none, `prompt_digest` that of the prompt, by which responses to the same
    prompt are found together. `reward` is the response's as answered, null where it got none. `kind` and `weight` are
    the criterion's in that rubric, null where the rubric is not kept. `prompt`, `text` and `grounding` are what was
    judged, where texts were asked for and are kept.
    """

    run: str | None
    step: int | None
    group: str
    response: int
    rubric: str | None
    verdict: Verdict
    reward: float | None = None
    kind: CriterionKind | None = None
    weight: float | None = None
    prompt_digest: str | None = None
    request_id: str
    judge: str | None = None
    fingerprint: str | None = None
    at: datetime
    prompt: Prompt | None = None
    text: Prompt | None = None
    grounding: str | None = None


class RecordedPage(AnswerModel):
    """A page of the ledger, oldest first; `next_cursor` fetches the following page and is null on the last."""

    verdicts: tuple[RecordedVerdict, ...]
    next_cursor: str | None = None


class LedgerState(AnswerModel):
    """How the ledger of this process stands.

    `recorded` counts verdicts handed to it since the process started, those found in the spool at its start included;
    `written` those that the database has; `waiting` those still on their way; `refused` those that the database refused
    and that are kept aside; `lost` those given up because memory, the spool or what is kept aside was full.
    `refused_files` is how many files are kept aside: see `adjudge ledger refused`. `spool_bytes` is what waits on disk,
    `memory_bytes` what waits in memory because the spool cannot be written, and `spool_problem` says why, null while it
    can. `lag_s` is how long ago what waits longest was judged or spooled, 0 where nothing waits. `restarts` counts
    threads of the ledger that ended and were started again. `problem` says why the database cannot be written, null
    while it can.
    """

    keeps: Literal["all", "verdicts", "nothing"]
    recorded: int = 0
    written: int = 0
    waiting: int = 0
    lost: int = 0
    refused: int = 0
    refused_files: int = 0
    spool_bytes: int = 0
    memory_bytes: int = 0
    lag_s: float = 0.0
    restarts: int = 0
    problem: str | None = None
    spool_problem: str | None = None


class JudgingFigures(AnswerModel):
    """What was judged and rewarded in a part of a run.

    `mean_reward` is over the responses that have a reward, null where none has. `verdicts` counts verdicts on a
    criterion, several votes as one, and those that failed too; `failures` counts those by kind. `cached` counts
    verdicts that cost no call, because they were known or another request was asking for them. `mean_seconds` is a
    request's, from its arrival to its answer.
    """

    requests: int
    responses: int
    scored: int
    partial: int
    unscored: int
    mean_reward: float | None
    verdicts: int
    failed: int
    failures: dict[FailureKind, int]
    cached: int
    judge_calls: int
    prompt_tokens_computed: int
    prompt_tokens_reused: int
    tokens_written: int
    mean_seconds: float
    modes: tuple[RewardMode, ...]


class RunSummary(JudgingFigures):
    """A training run: all that was judged for it.

    `run` is null for what was judged under no run's name. `modes` is empty where nothing was rewarded, `protocols`
    and `judges` where no judge was asked. `rubrics` counts the distinct contents of rubrics.
    """

    run: str | None
    first_at: datetime
    last_at: datetime
    last_step: int | None
    protocols: tuple[JudgingProtocol, ...]
    judges: tuple[str, ...]
    rubrics: int


class CriterionFigures(AnswerModel):
    """What became of a criterion.

    `verdicts` counts those that failed too, which are in neither rate. `pass_rate` is the share of the others with a
    score of 0.5 or more, `mean_score` the mean of their scores, both in [0, 1] and null where there are none. A score
    says that what the criterion describes is so: of a pitfall, or a criterion of negative weight, a high rate is bad.
    """

    criterion: str
    verdicts: int
    failed: int
    pass_rate: float | None
    mean_score: float | None


class RunStep(JudgingFigures):
    """A training step of a run; `step` is null for what was judged without one.

    `std_reward` is the standard deviation of the step's rewards around their mean (division by their number), null
    where there are none.
    """

    step: int | None
    std_reward: float | None
    criteria: tuple[CriterionFigures, ...]


class RunPage(AnswerModel):
    """A page of runs, the one that was judged for last first; `next_cursor` is null on the last page."""

    runs: tuple[RunSummary, ...]
    next_cursor: str | None = None


class RunReport(AnswerModel):
    """A run and a page of its steps.

    `rubrics` holds those that judged most responses, with the newest name and version that stand for each, if any.
    `criteria` holds the criteria with the most verdicts of the run, of `criteria_count` that there are; steps tell of
    the same ones. `next_cursor` fetches the following page of steps and is null on the last.
    """

    run: RunSummary
    rubrics: tuple[PinnedRubric, ...]
    criteria: tuple[CriterionFigures, ...]
    criteria_count: int
    steps: tuple[RunStep, ...]
    next_cursor: str | None = None


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
