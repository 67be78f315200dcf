"""What the ledger records: verdicts as they were used, labels and measures.

`GET /v1/verdicts` lists recorded verdicts. `POST /v1/rewards/recompute` computes the rewards of a run under other rules
from them, without a judge, and `GET /v1/runs/{run}/export` makes training data of them.
"""

from datetime import datetime
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, JsonValue, StringConstraints, model_validator

from trainer_client.modes import RewardMode, UsedProtocol
from trainer_client.wire.base import (
    STRICT_NUMBER,
    AnswerModel,
    BoundedFloat,
    Count,
    Flag,
    LargeFloat,
    RequestDict,
    RequestList,
    RequestModel,
    is_missing,
    is_unset,
)
from trainer_client.wire.criteria import CriterionId, CriterionKind
from trainer_client.wire.groups import Prompt, RunName
from trainer_client.wire.names import MEASURE_PATTERN
from trainer_client.wire.problems import Problem
from trainer_client.wire.rewards import (
    ComputedReward,
    FailurePolicy,
    RewardOptions,
    UncertainPolicy,
)
from trainer_client.wire.verdicts import UncertainBand, Verdict


class RecordedVerdict(AnswerModel):
    """A verdict as one request used it.

    Attributes:
        id: its name within the run, by which it can be labelled.
        response: the response's position in its group as the request sent it, from 0.
        rubric: the digest of the rubric's content; null if there was no rubric.
        reward: the response's reward as answered; null if it got none.
        declared_reward: as in `ResponseReward`.
        kind, weight: the criterion's kind and weight in that rubric; null if the rubric is not stored.
        prompt_digest: the digest of the prompt, equal for all responses to the same prompt.
        prompt, text, grounding: the judged texts; null unless texts were requested and are stored.
        verdict: the verdict.
    """

    id: str = ""
    run: str | None
    step: int | None
    group: str
    response: int
    rubric: str | None
    verdict: Verdict
    reward: float | None = None
    declared_reward: float | None = Field(default=None, exclude_if=is_missing)
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
    """A page of recorded verdicts, oldest first.

    Attributes:
        verdicts: the verdicts, oldest first.
    """

    verdicts: tuple[RecordedVerdict, ...]
    next_cursor: str | None = None


MeasureName = Annotated[str, StringConstraints(pattern=MEASURE_PATTERN)]


class StepMeasures(RequestModel):
    """What a trainer measured in a step and no scoring request tells, such as the share of refined responses.

    Attributes:
        run: the run.
        step: the training step.
        measures: up to 100 numbers by name, such as `rgr/refined`.
    """

    run: RunName
    step: Annotated[int, Field(ge=0, le=2**53 - 1), STRICT_NUMBER]
    measures: RequestDict[MeasureName, LargeFloat] = Field(min_length=1, max_length=100)


class VerdictLabel(RequestModel):
    """Whether a response meets a criterion, as a person says.

    Attributes:
        verdict: the `id` of the recorded verdict.
        met: true or false; null takes the label back.
    """

    verdict: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    met: Flag | None


class LabelRequest(RequestModel):
    """Labels of verdicts of a run, by the caller's key; a later label of the same verdict replaces the earlier one.

    Attributes:
        run: the run.
        labels: the labels.
    """

    run: Annotated[str, StringConstraints(max_length=256)]
    labels: RequestList[VerdictLabel] = Field(min_length=1, max_length=1000)


class LabelReceipt(AnswerModel):
    """What became of labels.

    Attributes:
        labeller: who gave them: the label of the caller's key.
        stored: how many are stored.
        removed: how many were taken back.
    """

    labeller: str
    stored: int
    removed: int


class StepBudgets(RequestModel):
    """The total that all criteria of a kind add to a response's steps (SRaR: 0.8, -1, 1).

    Attributes:
        suggest: what the criteria of kind `suggest` add together.
        pitfall: what the criteria of kind `pitfall` add together.
        bonus: what the criteria of kind `bonus` add together.
    """

    suggest: BoundedFloat = 0.8
    pitfall: BoundedFloat = -1.0
    bonus: BoundedFloat = 1.0


class RecomputeRequest(RequestModel):
    """Recompute the rewards of a run, or of a part of it, without calling a judge.

    What is left out of `reward`, `on_failure` and `on_uncertain` is as each request recorded it, or as the default if
    an older version recorded the request. `null` in `reward` takes a recorded penalty away. A recorded policy `error`
    counts as `null`.

    Attributes:
        run: the run's name; null for requests without one.
        first_step: leave out requests of earlier steps and those without a step.
        last_step: leave out requests of later steps and those without a step.
        protocol: use only verdicts of this judging protocol. Required if the run has several protocols and the mode
            does not support all of them.
        reward: as in `RewardRequest`.
        on_failure: as in `RewardRequest`.
        uncertain_band: as in `RewardRequest`, for the recorded probabilities. Without it, verdicts that were recorded
            as uncertain stay uncertain.
        on_uncertain: as in `RewardRequest`.
        weights: weights by criterion id, which replace those of the rubrics.
        budgets: the budgets of step rewards, for responses that were judged by steps.
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
    first_step: Count | None = None
    last_step: Count | None = None
    protocol: UsedProtocol | None = None
    reward: RewardOptions = RewardOptions()
    on_failure: FailurePolicy | None = None
    uncertain_band: UncertainBand | None = None
    on_uncertain: UncertainPolicy | None = None
    weights: RequestDict[CriterionId, BoundedFloat] = Field(default_factory=dict, max_length=10_000)
    budgets: StepBudgets = StepBudgets()

    @model_validator(mode="after")
    def _steps_in_order(self) -> "RecomputeRequest":
        if self.first_step is not None and self.last_step is not None and self.first_step > self.last_step:
            raise ValueError(
                f"first_step is {self.first_step} and last_step {self.last_step}; first_step must not be the larger one"
            )
        return self


class RecomputedResponse(ComputedReward):
    """A response's recomputed reward.

    Attributes:
        position: its position in the group, from 0.
    """

    position: int


class RecomputedGroup(AnswerModel):
    """The recomputed rewards of a group as one request sent it.

    Attributes:
        id: the group's id.
        rubric: the digest of the rubric; null if there was none.
        component_weights, criterion_weights: as in `GroupRewards`.
    """

    request_id: str
    step: int | None
    id: str
    rubric: str | None
    component_weights: dict[str, float] = Field(default={}, exclude_if=is_unset)
    criterion_weights: dict[str, float] = Field(default={}, exclude_if=is_unset)
    responses: tuple[RecomputedResponse, ...]


class RecomputeStart(AnswerModel):
    """The first line of the answer: how many requests and verdicts will be read.

    Attributes:
        requests: the number of recorded requests.
        verdicts: the number of recorded verdicts.
    """

    run: str | None
    requests: int
    verdicts: int


class RecomputeSummary(AnswerModel):
    """The summary at the end of the answer.

    `mode` and `on_failure` are null if requests were recomputed by different ones.

    Attributes:
        responses: the number of responses.
        verdicts: the number of verdicts, every vote counted.
        missing: verdicts that the ledger does not have; they count as failed.
        mean_reward: the mean over the responses that have a reward; null if none has.
    """

    run: str | None
    mode: RewardMode | None
    on_failure: FailurePolicy | None
    requests: int
    responses: int
    verdicts: int
    missing: int
    scored: int
    partial: int
    unscored: int
    mean_reward: float | None


class RecomputeEvent(AnswerModel):
    """One line of the answer: first `start`, then groups, and at the end a summary, or a problem that ends it.

    Attributes:
        start: how much will be read; the first line.
        group: the recomputed rewards of a group.
        summary: the totals; the last line.
        problem: why the request failed midway; the last line then.
    """

    start: RecomputeStart | None = None
    group: RecomputedGroup | None = None
    summary: RecomputeSummary | None = None
    problem: Problem | None = None


ExportKind = Literal["pairs", "sft", "best", "verdicts"]
"""What a run is exported as: preference pairs, rewarded responses, the best response of each prompt, or verdicts."""

EXPORT_KINDS: tuple[ExportKind, ...] = get_args(ExportKind)

PairsBy = Literal["total", "criterion"]
"""What the two responses of a pair differ in: their reward, or their verdict on one criterion."""


class ExportSummary(AnswerModel):
    """The summary at the end of an export: what was read and written, and what was left out and why.

    Attributes:
        rows: rows of the export.
        responses: responses that were read.
        unrewarded: responses without a reward, because judging failed or no reward was asked for.
        alone: prompts with fewer than two different responses to compare.
        tied: comparisons without a difference: of a prompt, of a pair, or of a prompt on one criterion.
        below: pairs below the smallest margin, and responses below the smallest reward.
        repeated: rows, and responses to the same prompt, that are there already.
        failed: verdicts that failed, are uncertain or were left out by rubric dropout, and have no label.
        without_criterion: verdicts on no criterion of a rubric that the ledger has, such as comparisons.
        without_texts: rows whose texts the ledger does not have.
        with_images: rows with images, of which the ledger keeps only digests.
        of_other_form: rows of messages in an export that began with texts.
    """

    run: str | None
    rows: int = 0
    responses: int = 0
    unrewarded: int = 0
    alone: int = 0
    tied: int = 0
    below: int = 0
    repeated: int = 0
    failed: int = 0
    without_criterion: int = 0
    without_texts: int = 0
    with_images: int = 0
    of_other_form: int = 0


class ExportEvent(AnswerModel):
    """One line of the answer: a row, and at the end a summary, or a problem that ends it.

    Attributes:
        row: a row in a dataset format of TRL.
        summary: the totals; the last line.
        problem: why the export failed midway; the last line then.
    """

    row: dict[str, JsonValue] | None = None
    summary: ExportSummary | None = None
    problem: Problem | None = None
