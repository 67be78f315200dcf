"""`POST /v1/rewards`: groups of responses in; rewards, and the verdicts behind them, out.

The request of `POST /v1/rewards`: groups of responses, the rubric to judge them by, and how they are rewarded.

The answer of `POST /v1/rewards`: rewards, the verdicts they came from, and what judging cost.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer_client.wire.base import (
    LIMIT_ERRORS,
    STRICT_NUMBER,
    AnswerModel,
    BoundedFloat,
    Flag,
    RequestList,
    RequestModel,
    SafeInt,
)
from trainer_client.wire.criteria import CriterionKind, VerificationMethod
from trainer_client.wire.groups import Group, RubricChoice, RunName, as_response
from trainer_client.wire.judging import DEFAULT_JUDGE, JudgeName, JudgingOptions, JudgingProtocol, Priority
from trainer_client.wire.problems import Problem

RewardMode = Literal[
    "weighted_mean",
    "factual_override",
    "points",
    "clipped_points",
    "absolute_points",
    "partial_credit",
    "stepwise",
    "graded_mean",
    "likert",
    "outcome",
    "gate",
]
FailurePolicy = Literal["null", "error", "zero", "zero_unparseable", "skip"]
AppliedPolicy = Literal["zero", "zero_unparseable", "skip"]
"""A failure policy that made a reward."""

ZERO_POLICIES: tuple[AppliedPolicy, ...] = ("zero", "zero_unparseable")
"""The policies under which a failure is worth 0."""

PROTOCOLS_FOR: dict[RewardMode, tuple[JudgingProtocol, ...]] = {
    "weighted_mean": ("binary", "stepwise", "graded", "checklist"),
    "factual_override": ("binary", "stepwise"),
    "points": ("binary", "stepwise"),
    "clipped_points": ("binary", "stepwise"),
    "absolute_points": ("binary", "graded"),
    "partial_credit": ("checklist", "graded"),
    "stepwise": ("stepwise",),
    "graded_mean": ("graded",),
    "likert": ("likert",),
    "outcome": (),
    "gate": ("binary", "stepwise"),
}
"""Which protocols' verdicts can feed a mode, the mode's own protocol first. `outcome` asks no judge."""

NEEDS_NO_RUBRIC: frozenset[RewardMode] = frozenset({"likert", "outcome"})


class LengthPenalty(RequestModel):
    """Takes `coefficient` * (tokens - `target_tokens`) from the reward (RGR-GRPO: 1e-4 and 2000).

    Linear on both sides, so that a shorter response gains; `excess_only` leaves it alone.
    """

    coefficient: BoundedFloat = Field(default=1e-4, ge=0)
    target_tokens: SafeInt = Field(default=2000, ge=0)
    excess_only: Flag = False


class OverlongPenalty(RequestModel):
    """Takes up to 1 from a response whose length comes near the limit it would be cut at (DAPO's soft punishment).

    Nothing up to `limit_tokens` - `buffer_tokens`, then linear up to 1 at `limit_tokens`.
    """

    limit_tokens: SafeInt = Field(ge=1)
    buffer_tokens: SafeInt = Field(ge=1)

    @model_validator(mode="after")
    def _buffer_fits(self) -> "OverlongPenalty":
        if self.buffer_tokens > self.limit_tokens:
            raise ValueError("buffer_tokens exceeds limit_tokens; the buffer is the last part of the limit")
        return self


class RewardOptions(RequestModel):
    """How verdicts become a reward.

    Attributes:
        mode: the formula, see `trainer_client.rewards`.
        kinds: the kinds of criteria that count; the reward is that of the rubric without all others. Null for all.
        format_weight: lambda of the `stepwise` base reward (SRaR: 0.1).
        gate_fraction: the share of the criteria that a response must satisfy to pass a `gate` (rho).
        length_penalty: applied to the reward; needs every response's `tokens`.
        overlong_penalty: the same.
        truncation_factor: what the reward of a response that did not stop by itself is multiplied by, unless it is
            negative; needs every response's `stopped`.
    """

    mode: RewardMode = "weighted_mean"
    kinds: Annotated[tuple[CriterionKind, ...], Field(min_length=1, fail_fast=True), LIMIT_ERRORS] | None = None
    format_weight: BoundedFloat = Field(default=0.1, ge=0, le=1)
    gate_fraction: BoundedFloat = Field(default=0.5, ge=0, le=1)
    length_penalty: LengthPenalty | None = None
    overlong_penalty: OverlongPenalty | None = None
    truncation_factor: Annotated[float, Field(ge=0, le=1), STRICT_NUMBER] | None = None

    @model_validator(mode="after")
    def _mode_reads_criteria(self) -> "RewardOptions":
        if self.kinds is not None and self.mode in NEEDS_NO_RUBRIC:
            raise ValueError(
                f"mode {self.mode!r} rewards the whole response, not criteria of some kinds; leave kinds out"
            )
        return self

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty is asked for."""
        return any(p is not None for p in (self.length_penalty, self.overlong_penalty, self.truncation_factor))


class RewardRequest(RequestModel):
    """Judge groups of responses by rubrics and reward them. Retired ones are refused but with `allow_retired`."""

    run: RunName | None = None
    step: Annotated[int, Field(ge=0), STRICT_NUMBER] | None = None
    rubric: RubricChoice | None = None
    allow_retired: Flag = False
    judge: JudgeName = DEFAULT_JUDGE
    reward: RewardOptions = RewardOptions()
    judging: JudgingOptions = JudgingOptions()
    on_failure: FailurePolicy = "null"
    deadline_s: BoundedFloat = Field(default=60.0, gt=0, le=3600)
    priority: Priority = "online"
    groups: RequestList[Group] = Field(min_length=1, max_length=4096)

    @property
    def protocol(self) -> JudgingProtocol | None:
        """The judging protocol in force: the one asked for, else the mode's own; None where no judge is asked."""
        return self.judging.protocol or next(iter(PROTOCOLS_FOR[self.reward.mode]), None)

    @model_validator(mode="after")
    def _protocol_feeds_mode(self) -> "RewardRequest":
        usable = PROTOCOLS_FOR[self.reward.mode]
        if self.judging.protocol is not None and self.judging.protocol not in usable:
            remedy = f"use {' or '.join(map(repr, usable))}, or leave" if usable else "it asks no judge; leave"
            raise ValueError(
                f"reward.mode {self.reward.mode!r} cannot be fed by judging.protocol {self.judging.protocol!r}; "
                f"{remedy} judging.protocol out"
            )
        return self

    @model_validator(mode="after")
    def _check_group_fields(self) -> "RewardRequest":
        options = self.reward
        if self.rubric is None and options.mode not in NEEDS_NO_RUBRIC:
            missing = [g.id for g in self.groups if g.rubric is None]
            if missing:
                raise ValueError(f"group {missing[0]!r} has no rubric; give it one, or give the request one")
        if options.mode == "outcome":
            missing = [g.id for g in self.groups if not g.ground_truth]
            if missing:
                raise ValueError(f"group {missing[0]!r} has no ground_truth, which reward.mode 'outcome' compares with")
        if options.length_penalty or options.overlong_penalty:
            self._require_response_field("tokens", "a length penalty needs it")
        if options.truncation_factor is not None:
            self._require_response_field("stopped", "reward.truncation_factor needs it")
        return self

    def _require_response_field(self, field: str, reason: str) -> None:
        for g, group in enumerate(self.groups):
            for r, response in enumerate(group.responses):
                if getattr(as_response(response), field) is None:
                    raise ValueError(
                        f"groups.{g}.responses.{r} has no {field}, and {reason}; "
                        f'write the response as {{"text": …, "{field}": …}}'
                    )


FailureKind = Literal["parse", "timeout", "engine", "overloaded", "truncated_input"]
ResponseStatus = Literal["scored", "partial", "unscored"]


class Failure(AnswerModel):
    """Why a verdict could not be had. Not a wrong answer: it never counts as one."""

    kind: FailureKind
    detail: str


class Verdict(AnswerModel):
    """What the judge said of one criterion on one response.

    `score` is in [0, 1] and null if and only if `status` is `failed`. `raw_probability` is the judge's mass on yes over
    its mass on yes and no, before any constraint and before calibration. `probability` is the calibrated one, equal to
    the raw one for a judge without a calibration; where there is one, `score` is 1 if and only if it is at least 0.5.
    `choice_mass` is the share of all its mass that the answers on offer had. Each is null where the engine shows none.
    Of several votes they are the means, while the majority makes the score. `grade` is on the criterion's own scale:
    0..scale (`graded`), 0..weight (`checklist`), 1..10 (`likert`). Points awarded outside 0..weight stay as they are in
    `grade`, and `score` is 0 or 1. Where the judge's probabilities of the grades are
    read, it is the expected grade, such as 2.7; else it is the number that the judge gave. `step` is the number of the
    step the verdict belongs to: 0 the whole response, -1 no step, null not asked. `method` says who decided: the judge,
    or a program. `votes` holds each vote's score where several were asked for, null for one that failed.
    """

    criterion: str
    status: Literal["ok", "failed"]
    score: float | None = None
    probability: float | None = None
    raw_probability: float | None = None
    choice_mass: float | None = None
    grade: float | None = None
    step: int | None = None
    rationale: str | None = None
    method: VerificationMethod = "judge"
    votes: tuple[float | None, ...] = ()
    failure: Failure | None = None
    cached: bool = False


class StepReward(AnswerModel):
    """A step of a response: its number, its span, and the raw sum of the deltas attributed to it.

    `start` and `end` are a half-open range of Unicode code points of the response as sent; of one sent as messages, of
    its assistant messages' contents joined by blank lines. Step 0 is all that was judged. `delta` is null where no
    scored criterion was attributed to the step.
    """

    number: int
    start: int
    end: int
    delta: float | None = None


class ResponseReward(AnswerModel):
    """One response's reward and everything it was made from.

    `status`: `scored` if every criterion has a verdict, `partial` if some failed and there is a reward all the same,
    `unscored` if the verdicts give none. `policy_applied` names the failure policy that made the reward, where one
    did; `dropped` counts the criteria it left out; `characters_omitted` says how much of the response the judge did
    not see. `unpenalised` is the reward before the penalties that were asked for, null where none was.
    """

    reward: float | None
    unpenalised: float | None = None
    status: ResponseStatus
    policy_applied: AppliedPolicy | None = None
    dropped: int = 0
    characters_omitted: int = 0
    verdicts: tuple[Verdict, ...]
    steps: tuple[StepReward, ...] = ()


class GroupRewards(AnswerModel):
    """The responses of one group in the order they were sent, and the digest of the rubric that judged them.

    `grounding_characters_omitted` says how much of the grounding the judge did not see.
    """

    id: str
    rubric: str | None = None
    grounding_characters_omitted: int = 0
    responses: tuple[ResponseReward, ...]


class PinnedRubric(AnswerModel):
    """A rubric as it was used: what was asked for and the immutable content it stood for."""

    digest: str
    name: str | None = None
    version: int | None = None


class JudgeInfo(AnswerModel):
    """Who judged. Equal fingerprints mean the same weights, templates, decoding, protocol and way of asking.

    `withheld` names what the set of prompt templates keeps from the judge though a request may give it: `grounding`,
    `reference_answer`, `ground_truth`, or the `criteria` of a rating.
    """

    model: str
    protocol: JudgingProtocol | Literal["comparison"]
    fingerprint: str
    withheld: tuple[str, ...] = ()


class Usage(AnswerModel):
    """What the request cost. Tokens are the judge's, times are wall seconds summed over responses.

    `judge_calls` counts calls that were made for this request and that the judge came to, tries again included, and
    not those that the deadline cut off. `cached` and `failed` count distinct verdicts, `joined` those that another
    request's calls brought, which that request is charged for, and `checks` those that a program decided. `clipped`
    counts the distinct verdicts that awarded more points than there are, or fewer than none.
    """

    judge_calls: int = 0
    checks: int = 0
    cached: int = 0
    joined: int = 0
    failed: int = 0
    clipped: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_reused: int = 0
    tokens_written: int = 0
    seconds_queued: float = 0.0
    seconds_judging: float = 0.0


class RewardAnswer(AnswerModel):
    """The answer to a `RewardRequest`; groups stand in the request's order. `judge` is null if none was asked."""

    request_id: str
    run: str | None = None
    step: int | None = None
    mode: RewardMode
    on_failure: FailurePolicy
    judge: JudgeInfo | None = None
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage
    groups: tuple[GroupRewards, ...]


class RewardSummary(AnswerModel):
    """The last line of a streamed answer: everything of a `RewardAnswer` but its groups, which came before."""

    request_id: str
    run: str | None = None
    step: int | None = None
    mode: RewardMode
    on_failure: FailurePolicy
    judge: JudgeInfo | None = None
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage


class RewardEvent(AnswerModel):
    """One line of a streamed answer: a group as soon as it is done, then a summary, or a problem that ends it."""

    group: GroupRewards | None = None
    summary: RewardSummary | None = None
    problem: Problem | None = None
