"""`POST /v1/rewards`: groups of responses in; rewards, and the verdicts behind them, out.

The request holds groups of responses, the rubric to judge them by, and how verdicts become rewards. The answer holds
the rewards, the verdicts that they were computed from, and what judging cost.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from trainer_client.modes import MODES, JudgingProtocol, RewardMode, UsedProtocol
from trainer_client.wire.base import (
    LIMIT_ERRORS,
    STRICT_NUMBER,
    AnswerModel,
    BoundedFloat,
    Coefficient,
    Flag,
    RequestList,
    RequestModel,
    SafeInt,
    Share,
    is_missing,
    is_unset,
)
from trainer_client.wire.criteria import CriterionId, CriterionKind
from trainer_client.wire.groups import (
    MAX_RUN_CHARACTERS,
    Group,
    JudgingRequest,
    RunName,
    as_response,
    check_given_steps,
)
from trainer_client.wire.judging import DEFAULT_JUDGE, JudgeName, JudgingOptions, Priority
from trainer_client.wire.options import Option
from trainer_client.wire.problems import Problem
from trainer_client.wire.verdicts import (
    JudgeInfo,
    PinnedRubric,
    ResponseVerdicts,
    UncertainBand,
    Usage,
    VerdictUse,
    why_no_probability,
)

FailurePolicy = Literal["null", "error", "zero", "zero_unparseable", "skip"]
UncertainPolicy = Literal["null", "error", "zero", "skip"]
"""What a response gets if its reward needs an uncertain verdict: the failure policies of the same names."""

AppliedPolicy = Literal["zero", "zero_unparseable", "skip"]
"""A failure policy that can determine a reward."""

ZERO_POLICIES: tuple[AppliedPolicy, ...] = ("zero", "zero_unparseable")
"""The policies that give a failed response the reward 0."""

PROTOCOLS_FOR: dict[RewardMode, tuple[UsedProtocol, ...]] = {name: mode.protocols for name, mode in MODES.items()}
"""The protocols that each mode supports, its default first. `outcome` does not call a judge."""

COMPARES_RESPONSES = frozenset({name for name, mode in MODES.items() if mode.reads == "group"})
"""The modes whose rewards depend on the other responses of the group, which must be judged in one request."""


def needs_whole_groups(mode: object, weighting: object = "declared") -> bool:
    """Whether rewards depend on all responses of a group, which must then be judged in one request."""
    return mode in COMPARES_RESPONSES or weighting == "contrast"


NEEDS_NO_RUBRIC = frozenset({name for name, mode in MODES.items() if mode.reads == "response"})


NOT_LINEAR: dict[RewardMode, str] = {name: mode.not_linear for name, mode in MODES.items() if mode.not_linear}
"""The modes whose reward is not linear in the scores of criteria, and why. All other modes are linear."""

WEIGHED: tuple[RewardMode, ...] = tuple(name for name, mode in MODES.items() if mode.weighs)
"""The modes whose reward is linear in the weights of criteria, but for the size of the rubric."""


ComponentsBy = Literal["criterion", "kind", "tag"]
"""What the components of a reward are made of: each criterion, or the criteria of a kind, or of a first tag."""

Weighting = Literal["declared", "contrast"]
"""The weights of criteria in a reward: those of the rubric, or more for those on which a group's responses differ."""


class LengthPenalty(RequestModel):
    """Subtract `coefficient` * (tokens - `target_tokens`) from the reward (RGR-GRPO: 1e-4 and 2000).

    Attributes:
        coefficient: what each token takes from the reward.
        target_tokens: the length without a penalty; a shorter response gains.
        excess_only: leave the reward of shorter responses unchanged.
    """

    coefficient: Coefficient = 1e-4
    target_tokens: SafeInt = Field(default=2000, ge=0)
    excess_only: Flag = False


class OverlongPenalty(RequestModel):
    """Subtract up to 1 from the reward of a response whose length nears the generation limit (DAPO's soft punishment).

    Attributes:
        limit_tokens: the generation limit, where the penalty is 1.
        buffer_tokens: how far below the limit the penalty begins; it grows linearly.
    """

    limit_tokens: SafeInt = Field(ge=1)
    buffer_tokens: SafeInt = Field(ge=1)

    @model_validator(mode="after")
    def _buffer_fits(self) -> "OverlongPenalty":
        if self.buffer_tokens > self.limit_tokens:
            raise ValueError("buffer_tokens exceeds limit_tokens; use at most limit_tokens")
        return self


RankingSchedule = Literal["all_pairs", "swiss", "pivot"]
"""Which pairs of a group are compared; `RewardOptions.schedule` says what each one means."""

MAX_RANKED = 512
"""The most responses of a group in the mode `ranking`."""


class RankingReport(AnswerModel):
    """How a group was compared in the mode `ranking`, and how much the order of showing decided.

    Attributes:
        schedule: the schedule in force.
        pairs: the pairs that were to be compared, each in both orders.
        failed: the pairs without an answer in both orders. They count neither as a win nor as a loss.
        inconsistent: the answered pairs on which the judge's verdicts in the two orders differ.
        first_preferred: over the answered pairs, how often the judge preferred the response that was shown first. A
            judge without position bias has 0.5; one that always takes the first has 1. Null without an answered pair.
    """

    schedule: RankingSchedule
    pairs: int
    failed: int
    inconsistent: int
    first_preferred: float | None = None


def ranking_problem(responses: Sequence[int], judging: JudgingOptions) -> str | None:
    """Return what to change about a request for a ranking; None if it can be answered.

    Args:
        responses: the number of responses of each group.
        judging: how the judge is to be asked.
    """
    for index, count in enumerate(responses):
        if not 2 <= count <= MAX_RANKED:
            return f"groups.{index} has {count} responses: send 2 to {MAX_RANKED} in one group, or use another mode"
    unused = {
        "votes": judging.votes > 1,
        "temperature": bool(judging.temperature),
        "criteria_per_call": judging.criteria_per_call not in (None, 1),
        "truncate": judging.truncate,
        "passages": judging.passages is not None,
    }
    return next((f"leave out judging.{name}" for name, given in unused.items() if given), None)


class RewardOptions(RequestModel):
    """How verdicts become a reward.

    Attributes:
        mode: how verdicts become a reward. `trainer_client.rewards` has the formulas.
        kinds: the kinds of criteria that count, as if the rubric had no others. Null for all.
        format_weight: lambda of the `stepwise` base reward, the weight of the format in [0, 1] (SRaR has 0.1).
        gate_fraction: rho, the share of the criteria that a response must satisfy to pass a `gate`, in [0, 1].
        length_penalty: a penalty on length; needs `tokens` of every response.
        overlong_penalty: a penalty near the generation limit; needs `tokens` of every response.
        truncation_factor: the factor, in [0, 1], for the reward of a response that was cut off; needs `stopped` of
            every response. A negative reward stays unchanged.
        use: what of a yes/no verdict enters the reward: `verdict` for hard rewards from scores of 0 and 1;
            `probability` for soft rewards, where the calibrated probability of yes takes the place of the score. In a
            linear mode, the soft reward is the expectation of the hard one over verdicts drawn with these
            probabilities. The modes in `NOT_LINEAR` refuse it, except `ranking`, where a comparison then counts as a
            share of a win.
        schedule: the pairs of a group that `ranking` compares, each in both orders: `all_pairs`; `swiss`, rounds in
            which each response meets another of about its own standing; `pivot`, every response against the same one
            of the group, which a hash of the texts picks.
        rounds: the rounds of a `swiss` schedule; by default log2 of the number of responses, rounded up.
        components: answer each response's component rewards too: of each criterion, or of the criteria of each kind or
            tag. A criterion counts for its first tag, and without one for `untagged`. `trainer_client.modes` has the
            formula.
        weighting: the weights of the criteria: `declared` for those of the rubric; `contrast` to shift weight, within
            each category, to the criteria that tell the responses of a group apart. The category of a criterion is its
            first tag. After POW3R (arXiv 2605.20164); docs/reference/modes.md has the formula. Only for the modes in
            `WEIGHED`.
    """

    mode: RewardMode = "weighted_mean"
    kinds: Annotated[tuple[CriterionKind, ...], Field(min_length=1, fail_fast=True), LIMIT_ERRORS] | None = None
    format_weight: BoundedFloat = Field(default=0.1, ge=0, le=1)
    gate_fraction: BoundedFloat = Field(default=0.5, ge=0, le=1)
    length_penalty: LengthPenalty | None = None
    overlong_penalty: OverlongPenalty | None = None
    truncation_factor: Share | None = None
    use: VerdictUse = "verdict"
    schedule: RankingSchedule = "all_pairs"
    rounds: Annotated[int, Field(ge=1, le=MAX_RANKED), STRICT_NUMBER] | None = None
    components: ComponentsBy | None = None
    weighting: Weighting = "declared"

    @model_validator(mode="after")
    def _schedule_is_of_a_ranking(self) -> "RewardOptions":
        if self.mode != "ranking" and (self.schedule, self.rounds) != ("all_pairs", None):
            raise ValueError(f"mode {self.mode!r} compares no pairs; leave out schedule and rounds, or use 'ranking'")
        if self.rounds is not None and self.schedule != "swiss":
            raise ValueError(f"schedule {self.schedule!r} has one round; leave out rounds, or use schedule 'swiss'")
        return self

    @model_validator(mode="after")
    def _mode_is_linear(self) -> "RewardOptions":
        if self.use == "probability" and self.mode in NOT_LINEAR and self.mode != "ranking":
            raise ValueError(
                f"mode {self.mode!r} {NOT_LINEAR[self.mode]}, so it is not linear in the scores and cannot use "
                "probabilities; leave out use, or take a linear mode such as 'weighted_mean' or 'points'"
            )
        return self

    @model_validator(mode="after")
    def _mode_weighs_criteria(self) -> "RewardOptions":
        if self.weighting == "contrast" and self.mode not in WEIGHED:
            raise ValueError(
                f"mode {self.mode!r} is not a weighted sum of the scores of criteria, so weighting 'contrast' cannot "
                f"act on it; leave out weighting, or use mode {' or '.join(map(repr, WEIGHED))}"
            )
        return self

    @model_validator(mode="after")
    def _mode_reads_criteria(self) -> "RewardOptions":
        if self.mode in NEEDS_NO_RUBRIC or self.mode == "ranking":
            if self.kinds is not None:
                raise ValueError(
                    f"mode {self.mode!r} rewards the whole response, not criteria of some kinds; leave out kinds"
                )
            if self.components is not None:
                raise ValueError(
                    f"mode {self.mode!r} rewards the whole response, so its reward has no components; leave out "
                    "components, or take a mode that reads criteria, such as 'weighted_mean'"
                )
        return self

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty is set."""
        return any(p is not None for p in (self.length_penalty, self.overlong_penalty, self.truncation_factor))


GOLD_SUFFIX, CONTROL_SUFFIX = "/gold", "/control"
"""Run NAME's gold judge is recorded under NAME/gold, and its control set under NAME/control."""


class GoldSampling(RequestModel):
    """Judge a share of the responses a second time, by another judge, after the request was answered.

    The gold judge's rewards are compared with the first ones and never trained on.

    Attributes:
        judge: the name of the gold judge.
        share: the share of responses to judge again, in (0, 1]; a hash of prompt and response decides which.
    """

    judge: JudgeName
    share: BoundedFloat = Field(default=0.05, gt=0, le=1)


class RubricDropout(RequestModel):
    """Judge a random subset of the criteria of each group, with an unbiased estimate of the reward.

    All responses of a group are judged by the same criteria. `trainer_client.dropout` has the formulas, and which
    criteria are always judged. Only for modes that are linear in the scores.

    Attributes:
        keep: the share of the droppable criteria to judge, in (0, 1]; their number is rounded up. Of saturated
            criteria, the share of the groups in which each is judged.
        seed: with the run, the step and the group's id, it decides which.
        saturated: leave out saturated criteria only, and count one that is left out as met: true for those that the
            run's ledger shows before this step, which needs a `run` and a `step`, or the ids of up to 512 criteria.
    """

    keep: Annotated[float, Field(gt=0, le=1), STRICT_NUMBER]
    seed: SafeInt = 0
    saturated: Flag | Annotated[RequestList[CriterionId], Field(max_length=512)] = False


class RewardRequest(JudgingRequest):
    """Judge groups of responses by rubrics and compute their rewards.

    An uncertain verdict has no score. Without an `uncertain_band` of its own, the request takes the calibration's, if
    that has one.

    Attributes:
        reward: how verdicts become a reward.
        rubric: the rubric of every group without its own.
        dropout: judge a random share of the criteria of each group, with an unbiased reward; only in linear modes.
        gold: judge a share of the responses by a second judge too, which needs a `run`.
    """

    reward: RewardOptions = RewardOptions()
    judging: JudgingOptions = JudgingOptions()
    on_failure: Annotated[FailurePolicy, Option("Reward")] = "null"
    uncertain_band: Annotated[UncertainBand | None, Option("Reward", metavar="LOW HIGH")] = None
    on_uncertain: Annotated[UncertainPolicy, Option("Reward")] = "null"
    dropout: Annotated[RubricDropout | None, Option("Reward")] = None
    deadline_s: Annotated[BoundedFloat, Option("Service and load")] = Field(default=60.0, gt=0, le=3600)
    priority: Annotated[Priority, Option("Service and load")] = "online"
    gold: Annotated[GoldSampling | None, Option("Service and load")] = None
    groups: RequestList[Group] = Field(min_length=1, max_length=4096)

    @property
    def protocol(self) -> UsedProtocol | None:
        """The judging protocol in force: as requested, else the mode's default; None if the mode needs no judge."""
        return self.judging.protocol or next(iter(PROTOCOLS_FOR[self.reward.mode]), None)

    @model_validator(mode="after")
    def _protocol_feeds_mode(self) -> "RewardRequest":
        usable = [protocol for protocol in PROTOCOLS_FOR[self.reward.mode] if protocol in get_args(JudgingProtocol)]
        if self.judging.protocol is not None and self.judging.protocol not in usable:
            needs = "it compares pairs" if self.reward.mode == "ranking" else "it needs no judge"
            remedy = f"use {' or '.join(map(repr, usable))}, or leave" if usable else f"{needs}; leave"
            raise ValueError(
                f"reward.mode {self.reward.mode!r} does not support judging.protocol {self.judging.protocol!r}; "
                f"{remedy} out judging.protocol"
            )
        return self

    @model_validator(mode="after")
    def _ranking_compares_pairs(self) -> "RewardRequest":
        if self.reward.mode != "ranking":
            return self
        problem = ranking_problem([len(group.responses) for group in self.groups], self.judging)
        problem = problem or next(
            (f"leave out {one}" for one in ("uncertain_band", "gold") if getattr(self, one)), None
        )
        if problem is not None:
            raise ValueError(f"reward.mode 'ranking' asks about each pair once in each order; {problem}")
        return self

    @model_validator(mode="after")
    def _gold_needs_a_run(self) -> "RewardRequest":
        if self.gold is not None and not 0 < len(self.run or "") <= MAX_RUN_CHARACTERS - len(CONTROL_SUFFIX):
            raise ValueError(
                "gold needs a run, under whose name the comparison is recorded; set run to a name of at most "
                f"{MAX_RUN_CHARACTERS - len(CONTROL_SUFFIX)} characters, or leave out gold"
            )
        return self

    @model_validator(mode="after")
    def _verdicts_have_probabilities(self) -> "RewardRequest":
        reason = why_no_probability(self.protocol, self.judging)
        if reason is not None and self.reward.use == "probability":
            raise ValueError(f"reward.use is 'probability', but {reason}, or leave out reward.use")
        if reason is not None and self.uncertain_band is not None:
            raise ValueError(f"uncertain_band is set, but {reason}, or leave out uncertain_band")
        return self

    @model_validator(mode="after")
    def _dropout_is_unbiased(self) -> "RewardRequest":
        mode = self.reward.mode
        if self.dropout is not None and mode in NOT_LINEAR:
            raise ValueError(
                f"mode {mode!r} {NOT_LINEAR[mode]}, so it is not linear in the scores and some of them give no "
                "unbiased reward; leave out dropout, or take a linear mode such as 'weighted_mean' or 'points'"
            )
        if self.dropout is not None and self.dropout.saturated is not False and self.protocol == "stepwise":
            raise ValueError(
                "dropout.saturated counts criteria that are left out as met, and judging.protocol 'stepwise' asks in "
                "which step they are met; leave out dropout.saturated, or take another protocol"
            )
        if self.dropout is not None and self.dropout.saturated is True and (not self.run or self.step is None):
            raise ValueError(
                "dropout.saturated is true, which takes the criteria from the earlier steps of the run; give the "
                "request a run and a step, or name the criteria"
            )
        if self.dropout is not None and self.reward.weighting == "contrast":
            raise ValueError(
                "reward.weighting 'contrast' takes weights from the verdicts on all criteria, so some of them give no "
                "unbiased reward; leave out dropout, or leave out reward.weighting"
            )
        return self

    @model_validator(mode="after")
    def _check_group_fields(self) -> "RewardRequest":
        options = self.reward
        check_given_steps(self.groups, self.judging.steps)
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


class _Rules(AnswerModel):
    """Rules of a request that the ledger records."""

    def recorded(self) -> str:
        """Return what differs from the defaults, as JSON."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def read(cls, recorded: str | None) -> Self | None:
        """Read recorded rules; None if there are none, or if a later release recorded options unknown to this one."""
        try:
            return None if recorded is None else cls.model_validate_json(recorded)
        except ValidationError:
            return None


class JudgingRules(_Rules):
    """How a request was judged, as the ledger records it. The fields are those of the request.

    Attributes:
        reverifies: the run whose responses it judged again.
        uncertain_band: the band in force if the request was for verdicts only; of others, `RewardRules` have it.
    """

    judge: JudgeName = DEFAULT_JUDGE
    judging: JudgingOptions = JudgingOptions()
    reverifies: RunName | None = None
    uncertain_band: UncertainBand | None = None


class RewardRules(_Rules):
    """How a request turned verdicts into rewards, as the ledger records it. The fields are those of `RewardRequest`.

    `uncertain_band` is the band in force: the request's own, or else that of the judge's calibration. The saturated
    criteria of `dropout` are named, whoever found them.
    """

    reward: RewardOptions = RewardOptions()
    on_failure: FailurePolicy = "null"
    uncertain_band: UncertainBand | None = None
    on_uncertain: UncertainPolicy = "null"
    dropout: RubricDropout | None = None

    @classmethod
    def of(cls, request: RewardRequest, band: UncertainBand | None) -> "RewardRules":
        """Return the rules of a request, with the uncertain band in force."""
        return cls(
            reward=request.reward,
            on_failure=request.on_failure,
            uncertain_band=band,
            on_uncertain=request.on_uncertain,
            dropout=request.dropout,
        )


ResponseStatus = Literal["scored", "partial", "unscored"]


class StepReward(AnswerModel):
    """A step of a response: its number, its span, and the raw sum of the deltas attributed to it.

    Attributes:
        number: the step's number; step 0 covers everything that was judged. With `judging.steps` "turns", step N is the
            Nth message of role `assistant`; its range is empty if the message only calls tools.
        start, end: a half-open range of Unicode code points of the response as sent. For a response sent as messages,
            they refer to the contents of its assistant messages, joined by blank lines.
        delta: the sum of what verdicts add to it; null if no scored criterion was attributed to it.
    """

    number: int
    start: int
    end: int
    delta: float | None = None


class ComputedReward(AnswerModel):
    """The reward of a response, and how it was determined.

    Attributes:
        declared_reward: under the weighting `contrast`, the reward under the rubric's own weights, with the same
            penalties; otherwise left out of the JSON, and also if the response has no reward.
        unpenalised: the reward before penalties; null if the request has no penalties.
        status: `scored` if every criterion has a verdict, `partial` if some failed or are uncertain but there is a
            reward, `unscored` if the verdicts give no reward.
        dropped: the number of criteria that the policy left out.
        components: the component rewards by name, before penalties; null where a missing verdict could change one. Left
            out of the JSON if none were asked for.
    """

    reward: float | None
    declared_reward: float | None = Field(default=None, exclude_if=is_missing)
    unpenalised: float | None = None
    status: ResponseStatus
    policy_applied: AppliedPolicy | None = None
    dropped: int = 0
    components: dict[str, float | None] = Field(default={}, exclude_if=is_unset)
    steps: tuple[StepReward, ...] = ()


class ResponseReward(ResponseVerdicts, ComputedReward):
    """One response's reward and the verdicts and steps it was computed from."""

    @property
    def known_components(self) -> dict[str, float]:
        """The component rewards by name, without those that a missing verdict could change."""
        return {name: reward for name, reward in self.components.items() if reward is not None}


class GroupRewards(AnswerModel):
    """The responses of one group in the request's order, and the digest of the rubric that they were judged by.

    Attributes:
        id: the group's id.
        rubric: the digest of the rubric.
        left_out: the criteria that dropout left out; not in the JSON without dropout.
        saturated: the criteria that dropout may have left out because they are saturated; not in the JSON without any.
        inclusion: the probability with which dropout judged each droppable criterion; not in the JSON without it.
        ranking: how the responses were ranked; only in that mode.
        component_weights: in a linear mode, the weight of each component: a reward before penalties is the sum of
            weight times component, unless the policy `skip` left out criteria. Not in the JSON without components.
        criterion_weights: under the weighting `contrast`, the weights that rewarded the group, by criterion; otherwise
            left out of the JSON.
    """

    id: str
    rubric: str | None = None
    grounding_characters_omitted: int = 0
    left_out: tuple[str, ...] = Field(default=(), exclude_if=is_unset)
    saturated: tuple[str, ...] = Field(default=(), exclude_if=is_unset)
    inclusion: float | None = Field(default=None, exclude_if=is_unset)
    ranking: RankingReport | None = Field(default=None, exclude_if=is_unset)
    component_weights: dict[str, float] = Field(default={}, exclude_if=is_unset)
    criterion_weights: dict[str, float] = Field(default={}, exclude_if=is_unset)
    responses: tuple[ResponseReward, ...]


class RewardSummary(AnswerModel):
    """The last line of a streamed answer: all but the groups, which were sent before.

    `judge` is null if none was called. `uncertain_band` and `on_uncertain` are left out if there is no band.
    """

    request_id: str
    run: str | None = None
    step: int | None = None
    mode: RewardMode
    on_failure: FailurePolicy
    uncertain_band: UncertainBand | None = Field(default=None, exclude_if=is_unset)
    on_uncertain: UncertainPolicy | None = Field(default=None, exclude_if=is_unset)
    judge: JudgeInfo | None = None
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage


class RewardAnswer(RewardSummary):
    """The answer to a `RewardRequest`. Groups are in the request's order."""

    groups: tuple[GroupRewards, ...]


class RewardEvent(AnswerModel):
    """One line of a streamed answer: a group as soon as it is done, at the end a summary, or a problem that ends it.

    Attributes:
        group: the rewards of a group.
        summary, problem: the last line: all but the groups, or why the request failed midway.
    """

    group: GroupRewards | None = None
    summary: RewardSummary | None = None
    problem: Problem | None = None
