"""`POST /v1/rewards`: groups of responses in; rewards, and the verdicts behind them, out.

The request holds groups of responses, the rubric to judge them by, and how verdicts become rewards. The answer holds
the rewards, the verdicts that they were computed from, and what judging cost.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from trainer_client.documentation import Meaning
from trainer_client.modes import MODES, JudgingProtocol, RewardMode, UsedProtocol
from trainer_client.wire.base import (
    LIMIT_ERRORS,
    STRICT_NUMBER,
    AnswerModel,
    BoundedFloat,
    Flag,
    RequestList,
    RequestModel,
    SafeInt,
    is_missing,
    is_unset,
)
from trainer_client.wire.criteria import CriterionId, CriterionKind, VerificationMethod
from trainer_client.wire.groups import (
    MAX_RUN_CHARACTERS,
    Group,
    JudgingRequest,
    as_response,
    check_given_steps,
)
from trainer_client.wire.judging import (
    MAX_RANKED,
    JudgeName,
    JudgingOptions,
    LengthPenalty,
    OverlongPenalty,
    Priority,
    RankingReport,
    RankingSchedule,
    ranking_problem,
)
from trainer_client.wire.options import Option
from trainer_client.wire.problems import Problem
from trainer_client.wire.usage import JudgeInfo, Usage


def _in_order(band: tuple[float, float]) -> tuple[float, float]:
    if band[0] > band[1]:
        raise ValueError(f"the uncertain band begins at {band[0]:g} and ends at {band[1]:g}; write the lower end first")
    return band


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

UncertainBand = Annotated[
    tuple[
        Annotated[float, Field(ge=0, le=1), STRICT_NUMBER],
        Annotated[float, Field(ge=0, le=1), STRICT_NUMBER],
    ],
    AfterValidator(_in_order),
]
"""Two calibrated probabilities, LOW and HIGH: a verdict is uncertain if LOW <= probability < HIGH. Equal ones mean that
no verdict is uncertain."""

VerdictUse = Literal["verdict", "probability"]
"""What of a yes/no verdict enters a reward: its score of 0 or 1, or the calibrated probability of yes."""

NOT_LINEAR: dict[RewardMode, str] = {name: mode.not_linear for name, mode in MODES.items() if mode.not_linear}
"""The modes whose reward is not linear in the scores of criteria, and why. All other modes are linear."""

WEIGHED: tuple[RewardMode, ...] = tuple(name for name, mode in MODES.items() if mode.weighs)
"""The modes whose reward is linear in the weights of criteria, but for the size of the rubric."""

YES_NO_PROTOCOLS: tuple[UsedProtocol, ...] = ("binary", "stepwise", "comparison")
"""The protocols whose verdicts are yes or no, and so have a probability of yes."""


def why_no_probability(protocol: UsedProtocol | None, judging: JudgingOptions) -> str | None:
    """Return why verdicts judged like this have no probability of yes, and what to change; None if they have one."""
    if protocol not in YES_NO_PROTOCOLS:
        return (
            f"verdicts of the protocol {protocol!r} are grades and have no probability of yes; use judging.protocol "
            "'binary' or 'stepwise'"
        )
    if judging.criteria_per_call not in (None, 1):
        return (
            f"with judging.criteria_per_call {judging.criteria_per_call!r} the judge writes its verdicts, which then "
            "have no probability; leave out criteria_per_call"
        )
    return None


ComponentsBy = Literal["criterion", "kind", "tag"]
"""What the components of a reward are made of: each criterion, or the criteria of a kind, or of a first tag."""

Weighting = Literal["declared", "contrast"]
"""The weights of criteria in a reward: those of the rubric, or more for those on which a group's responses differ."""


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
    truncation_factor: Annotated[float, Field(ge=0, le=1), STRICT_NUMBER] | None = None
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


FailureKind = Literal["parse", "timeout", "engine", "overloaded", "truncated_input", "decoy"]

FAILURE_MEANINGS: Final[Mapping[FailureKind, Meaning]] = {
    "parse": Meaning(
        "The judge's output could not be read as an answer. For a program, the text or the expected answer could not "
        "be read.",
        "Use another judge model, or fewer `criteria_per_call`. For a program, correct the `expected` answer.",
    ),
    "timeout": Meaning(
        "The verdict was not ready by the request's deadline. Or a check exceeded its 5 CPU seconds, or an endpoint "
        "sent nothing for its `?timeout_s=`.",
        "Use a longer `deadline_s`, or send fewer responses at once. For a check, use another pattern or formula.",
    ),
    "engine": Meaning(
        "The engine gave no answer in two attempts. An endpoint withheld it (content filter, refusal, tool call), "
        "broke it off, or has no quota left. For a program, its process died.",
        "Look at the server's log, and try the engine with `adjudge doctor URL`.",
    ),
    "overloaded": Meaning(
        "An endpoint of the OpenAI API refused the call under load, twice.",
        "Lower the engine's `?concurrency=`, or use a larger endpoint.",
    ),
    "truncated_input": Meaning(
        "The texts are longer than the judge can read: the prompt and the tokens reserved for the judge's output "
        "exceed its context.",
        "Set `judging.truncate` or `judging.passages`, or raise the engine's `?context=`.",
    ),
    "decoy": Meaning(
        "The judge said that the response meets a decoy criterion, and the request has such responses fail "
        "(`judging.on_decoy`).",
        "Read the response. It deceives the judge, or the judge is too weak.",
    ),
}
"""What each kind of failure means, and what helps."""

ResponseStatus = Literal["scored", "partial", "unscored"]
VerdictStatus = Literal["ok", "failed", "uncertain", "left_out"]


class Failure(AnswerModel):
    """Why judging a criterion failed. A failure never counts as a wrong answer.

    Attributes:
        kind, detail: what went wrong: as a word, such as `parse` for a reply that could not be read; and in a sentence.
    """

    kind: FailureKind
    detail: str


class MemberVerdict(AnswerModel):
    """What one judge of a cascade or panel said: its `score` and `probability`, or the kind of its `failure`."""

    judge: str
    score: float | None = None
    probability: float | None = None
    failure: FailureKind | None = None


class TurnVerdict(AnswerModel):
    """The verdict on one turn.

    Attributes:
        turn: the turn's number, from 1: the Nth message of role `assistant`.
        score: in [0, 1]; null if judging failed.
        probability: the calibrated probability of yes, if there is one.
        failure: the kind of the failure; null if there is none.
    """

    turn: int
    score: float | None = None
    probability: float | None = None
    failure: FailureKind | None = None


class Passage(AnswerModel):
    """A part of a text that a verdict was asked on.

    Attributes:
        text: which text: the `response`, or the group's `grounding`.
        start, end: a half-open range of Unicode code points of the text as sent.
    """

    text: Literal["response", "grounding"]
    start: int
    end: int


VerdictMethod = VerificationMethod | Literal["no_content"]


class Verdict(AnswerModel):
    """The verdict on one criterion for one response.

    Attributes:
        status: `ok`; `failed`, if there is no verdict; `uncertain`, if its probability lies in the uncertain band; or
            `left_out`, if rubric dropout left the criterion out.
        score: in [0, 1]; null unless `status` is `ok`.
        probability: the calibrated probability of yes, equal to `raw_probability` if the judge has no calibration. If
            present, `score` is 1 if and only if it is at least 0.5. Null if the engine returns no probabilities.
        raw_probability: the judge's probability of yes divided by that of yes and no together, before any output
            constraint and before calibration. Null if the engine returns no probabilities. Under contextual
            calibration, its log-odds are those of the judge's answer less those of `content_free_probability`.
        content_free_probability: under contextual calibration, the judge's probability of yes about an empty response;
            left out of the JSON otherwise.
        choice_mass: the share of the judge's total probability that fell on the allowed answers. Null if the engine
            returns no probabilities, or only those of the allowed answers among themselves.
        grade: the grade on the criterion's own scale: 0..scale (`graded`), 0..weight (`checklist`) or 1..10 (`likert`).
            If the judge's probabilities of the grades are read, it is the expected grade, such as 2.7; else it is the
            number that the judge wrote. Points outside 0..weight are kept here as written, and `score` is then 0 or 1.
        step: the step that the verdict is attributed to: 0 for the whole response, -1 for no step, null if no step was
            asked for.
        method: what decided: the judge, or a program; `no_content` if the response says nothing, so that it cannot meet
            the criterion.
        votes: the score of each vote if several were requested, null for a failed one. `score` is then the majority,
            and the probabilities are means.
        members: what each judge of a cascade or panel said, in order, without those that were not asked. Empty for any
            other judge, for a failed verdict, and if several votes were requested.
        turns: the verdict on each turn, for a criterion that applies to each turn; left out of the JSON otherwise.
            `step` is then the turn that decides the verdict, 0 if they do together.
        passages: under `judging.passages`, what the judge was shown of texts that are longer than that, in order; left
            out of the JSON for a verdict on whole texts. Empty if no passage was found.
    """

    criterion: str
    status: VerdictStatus
    score: float | None = None
    probability: float | None = None
    raw_probability: float | None = None
    content_free_probability: float | None = Field(default=None, exclude_if=is_unset)
    choice_mass: float | None = None
    grade: float | None = None
    step: int | None = None
    rationale: str | None = None
    method: VerdictMethod = "judge"
    votes: tuple[float | None, ...] = ()
    failure: Failure | None = None
    cached: bool = False
    members: tuple[MemberVerdict, ...] = ()
    turns: tuple[TurnVerdict, ...] = Field(default=(), exclude_if=is_unset)
    passages: tuple[Passage, ...] | None = Field(default=None, exclude_if=is_missing)

    def value(self, use: VerdictUse) -> float | None:
        """Return the number in [0, 1] that enters a reward; None if there is none.

        It is `score`, or with `probability` the calibrated probability of yes. What a program decided is certain, so
        its score counts either way.
        """
        hard = use == "verdict" or self.score is None or self.method != "judge"
        return self.score if hard else self.probability

    @property
    def judge_failure(self) -> FailureKind | None:
        """Why the judge gave no verdict; None if it did, or if a program was responsible for it."""
        return self.failure.kind if self.failure is not None and self.method == "judge" else None


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


class ResponseReward(AnswerModel):
    """One response's reward and the verdicts and steps it was computed from.

    Attributes:
        declared_reward: under the weighting `contrast`, the reward under the rubric's own weights, with the same
            penalties; otherwise left out of the JSON, and also if the response has no reward.
        unpenalised: the reward before penalties; null if the request has no penalties.
        status: `scored` if every criterion has a verdict, `partial` if some failed or are uncertain but there is a
            reward, `unscored` if the verdicts give no reward.
        dropped: the number of criteria that the policy left out.
        components: the component rewards by name, before penalties; null where a missing verdict could change one. Left
            out of the JSON if none were asked for.
        verdicts: the verdicts behind it, one for each criterion.
    """

    reward: float | None
    declared_reward: float | None = Field(default=None, exclude_if=is_missing)
    unpenalised: float | None = None
    status: ResponseStatus
    policy_applied: AppliedPolicy | None = None
    dropped: int = 0
    components: dict[str, float | None] = Field(default={}, exclude_if=is_unset)
    characters_omitted: int = 0
    characters_hidden: int = 0
    suspicious: bool | None = None
    verdicts: tuple[Verdict, ...]
    steps: tuple[StepReward, ...] = ()

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


class PinnedRubric(AnswerModel):
    """A rubric that the request used: its immutable digest, and its name and version if it was used by reference."""

    digest: str
    name: str | None = None
    version: int | None = None


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
