"""`/v1/runs`: what the ledger says about training runs.

Statistics by step and by criterion, pass rates that are corrected for the judge's error, what the monitors find, and
whether the rubric is being gamed: whether the reward rose where other judges, another rubric or people see no rise.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field

from trainer_client.modes import RewardMode, UsedProtocol
from trainer_client.wire.base import STRICT_NUMBER, AnswerModel, RequestModel, Share, is_missing, is_unset
from trainer_client.wire.problems import Meaning
from trainer_client.wire.verdicts import FailureKind, PinnedRubric

MonitorName = Literal[
    "shadow_divergence",
    "gold_drift",
    "control_changed",
    "control_fingerprint",
    "saturated_criterion",
    "length_bias",
    "unscored",
    "duplicates",
    "templates",
    "member_disagreement",
]
"""The monitors, which docs/how-to/stop-a-run-that-games-its-rubric.md describes."""

Severity = Literal["info", "warning", "critical"]

Steps = Annotated[int, Field(ge=4, le=1000), STRICT_NUMBER]


class MonitorThresholds(RequestModel):
    """When monitors report. docs/how-to/stop-a-run-that-games-its-rubric.md says how often they do so without a reason.

    Attributes:
        window_steps: how many of the last steps trends are taken over, in training steps.
        min_steps: with fewer steps than this, no trend is taken.
        z: how many standard errors a trend must differ from 0 by.
        min_change: the least change over the window that is reported, in units of reward (or of a share), in [0, 1].
        min_length_growth: the least growth of the mean length over the window, as a share of it.
        min_length_correlation: the least correlation of reward and length within groups.
        recent_steps: how many of the last steps shares (unscored, duplicates) are taken over, in training steps.
        max_unscored: the largest share of responses without a reward; four times as many are critical.
        saturated_groups: a criterion is saturated if all of its last so many groups are all met, or all unmet.
        interval_z: the half-width of confidence intervals, in standard errors; 1.96 gives 95%.
    """

    window_steps: Steps = 40
    min_steps: Steps = 12
    z: Annotated[float, Field(gt=0, le=20), STRICT_NUMBER] = 4.0
    min_change: Share = 0.05
    min_length_growth: Annotated[float, Field(ge=0, le=100), STRICT_NUMBER] = 0.1
    min_length_correlation: Share = 0.3
    recent_steps: Annotated[int, Field(ge=1, le=1000), STRICT_NUMBER] = 5
    max_unscored: Share = 0.05
    saturated_groups: Annotated[int, Field(ge=1, le=100_000), STRICT_NUMBER] = 128
    interval_z: Annotated[float, Field(gt=0, le=20), STRICT_NUMBER] = 1.96


class Interval(AnswerModel):
    """An estimate with its confidence interval, and the number of observations behind it.

    Attributes:
        value: the estimate.
        low, high: the end of the interval.
        n: the number of observations.
    """

    value: float
    low: float
    high: float
    n: int


class MonitorFinding(AnswerModel):
    """Something that a monitor found.

    Attributes:
        subject: the criterion that it is about; null if it is about the whole run.
        began: the training step at which it probably began.
        step: the last step that the monitor looked at.
        message: what was found, in one sentence.
        action: what to do about it.
        evidence: the figures behind it, by name.
        monitor: the monitor that reports it.
        severity: how bad it is.
    """

    monitor: MonitorName
    severity: Severity
    subject: str | None = None
    began: int | None
    step: int
    message: str
    action: str
    evidence: dict[str, float]


class GoldComparison(AnswerModel):
    """The judge and the gold judge on the responses that both judged, in a range of steps.

    Attributes:
        first_step, last_step: the range, both included.
        responses: the number of responses that both gave a reward.
        difference: the mean of the judge's reward minus the gold judge's.
        agreement: the share of criteria on which both give the same verdict.
    """

    first_step: int
    last_step: int
    responses: int
    difference: Interval | None
    agreement: Interval | None


class MonitorReport(AnswerModel):
    """What the monitors of a run find.

    Attributes:
        first_step, last_step: the steps that were looked at; null if the run has none.
        monitors: the monitors that had something to look at.
        findings: the most severe ones first; empty if all is well.
        gold: the comparison with the gold judge over the steps, oldest first.
        thresholds: the thresholds in effect.
    """

    run: str | None
    first_step: int | None
    last_step: int | None
    monitors: tuple[MonitorName, ...]
    findings: tuple[MonitorFinding, ...]
    gold: tuple[GoldComparison, ...] = ()
    thresholds: MonitorThresholds


class JudgingFigures(AnswerModel):
    """Statistics of judging and rewards in a part of a run.

    Attributes:
        mean_reward: the mean over the responses that have a reward; null if none has.
        mean_declared_reward: the mean of `declared_reward` over the responses that have one; left out if none has.
        verdicts: verdicts on a criterion, failed ones included; several votes count as one.
        failed: verdicts that failed.
        uncertain: verdicts whose probability lay in the uncertain band; left out of the JSON if there are none.
        left_out: verdicts that rubric dropout left out, which are not among the others; not in the JSON if there are
            none, and not counted before revision 0024 of the database.
        failures: failed verdicts by kind of failure.
        cached: verdicts without a call of their own: from the cache, or from a call of another request.
        mean_seconds: the mean time of a request, from its arrival to its answer, in seconds.
        responses: the number of responses.
        modes: the reward modes.
    """

    requests: int
    responses: int
    scored: int
    partial: int
    unscored: int
    mean_reward: float | None
    mean_declared_reward: float | None = Field(default=None, exclude_if=is_missing)
    verdicts: int
    failed: int
    uncertain: int = Field(default=0, exclude_if=is_unset)
    left_out: int = Field(default=0, exclude_if=is_unset)
    failures: dict[FailureKind, int]
    cached: int
    judge_calls: int
    prompt_tokens_computed: int
    prompt_tokens_reused: int
    tokens_written: int
    mean_seconds: float
    modes: tuple[RewardMode, ...]


class RunSummary(JudgingFigures):
    """Statistics of a training run.

    Attributes:
        run: the run's name; null for requests without one.
        modes: the reward modes used; empty if no reward was computed.
        protocols, judges: the protocols and judges used; empty if no judge was called.
        rubrics: the number of distinct rubric contents.
        first_at, last_at: when its first and its last request was judged.
    """

    run: str | None
    first_at: datetime
    last_at: datetime
    last_step: int | None
    protocols: tuple[UsedProtocol, ...]
    judges: tuple[str, ...]
    rubrics: int


class CriterionFigures(AnswerModel):
    """Statistics of a criterion.

    A high score means that the criterion's description applies. For a pitfall, or a criterion of negative weight, a
    high rate is therefore bad.

    Attributes:
        verdicts: verdicts on the criterion, failed and uncertain ones included.
        uncertain: verdicts whose probability lay in the uncertain band; left out of the JSON if there are none.
        pass_rate: the share of scores of at least 0.5 among the verdicts with a score; null if there are none.
        mean_score: the mean score of the verdicts with a score, in [0, 1]; null if there are none.
        failed: verdicts that failed.
    """

    criterion: str
    verdicts: int
    failed: int
    uncertain: int = Field(default=0, exclude_if=is_unset)
    pass_rate: float | None
    mean_score: float | None


class RunStep(JudgingFigures):
    """Statistics of a training step. `step` is null for requests without one.

    Attributes:
        std_reward: the population standard deviation of the step's rewards; null if there are none.
        criteria: the figures of each criterion.
    """

    step: int | None
    std_reward: float | None
    criteria: tuple[CriterionFigures, ...]


class RunPage(AnswerModel):
    """A page of runs, the most recently used first.

    Attributes:
        runs: the runs.
    """

    runs: tuple[RunSummary, ...]
    next_cursor: str | None = None


class RunReport(AnswerModel):
    """A run and a page of its steps.

    Attributes:
        rubrics: the rubrics that judged the most responses, each with its newest name and version, if it has any.
        criteria: the criteria with the most verdicts in the run; each step reports the same ones.
        criteria_count: the number of criteria in the run.
        next_cursor: fetches the next page of steps; null on the last.
        run: the figures of the whole run.
        steps: the figures of each step.
    """

    run: RunSummary
    rubrics: tuple[PinnedRubric, ...]
    criteria: tuple[CriterionFigures, ...]
    criteria_count: int
    steps: tuple[RunStep, ...]
    next_cursor: str | None = None


class MeasuredRate(AnswerModel):
    """A rate of `labels` labelled verdicts, which are worth `effective_labels` independent ones.

    Attributes:
        value: the rate.
        labels: the number of labelled verdicts.
        effective_labels: how many independent verdicts they are worth.
    """

    value: float
    labels: int
    effective_labels: float


class JudgeError(AnswerModel):
    """The shares of met criteria that a judge passes (`sensitivity`), and of unmet ones that it fails.

    Attributes:
        sensitivity: the share of met criteria that the judge passes.
        specificity: the share of unmet criteria that it fails.
    """

    sensitivity: MeasuredRate
    specificity: MeasuredRate


class MeasuredJudge(AnswerModel):
    """A judge by its fingerprint, and the number of votes per criterion that it was asked for.

    Attributes:
        votes: the number of votes per criterion.
    """

    fingerprint: str
    votes: int


class CorrectedRate(AnswerModel):
    """A criterion's pass rate in a run.

    Attributes:
        passed, verdicts: the judge's verdicts that passed, and all that did not fail.
        groups: the number of groups that they belong to.
        effective_verdicts: how many independent verdicts they are worth.
        corrected: the rate without the judge's error, with its interval; null if it cannot be corrected.
    """

    criterion: str
    passed: int
    verdicts: int
    groups: int
    effective_verdicts: float
    corrected: Interval | None = None


class CorrectedRates(AnswerModel):
    """The pass rates of a run, corrected for its judge's error if that was measured.

    Attributes:
        reason: why nothing is corrected; null if it is.
        source: the measurement that was used, such as `calibration team@1`; null if none was found.
        level: the level of the intervals.
        judge_error: the judge's error by that measurement.
        judges: the judges of the run; only a run with one can be corrected.
        criteria: the criteria that the judge decided, without those whose verdicts all failed.
    """

    run: str | None
    reason: str | None
    source: str | None = None
    level: float
    judge_error: JudgeError | None = None
    judges: tuple[MeasuredJudge, ...]
    criteria: tuple[CorrectedRate, ...]


MAX_AGAINST = 5
"""The most runs that an audited run is compared with."""

AuditReading = Literal["rose_alone", "rose_more", "together", "too_few"]
"""What a comparison says: the run's figure rose and the other's did not, it rose more than the other's, neither is
shown, or there is too little to tell. The other's did not rise if it may be 0 and is less than half of the run's."""

AUDIT_FINDINGS: Final[Mapping[str, Meaning]] = {
    "rose_alone": Meaning(
        "The reward, or the share of responses credited for a criterion, rose in the run, and not in the other view of "
        "the same responses. The other's rise may be 0, and is less than half of the run's. The table shows `alone`.",
        "This is a sign of gaming. Read the examples: late responses that only the run's judge credits.",
    ),
    "rose_more": Meaning(
        "It rose more in the run than in the other view of the same responses. The table shows `more`.",
        "Perhaps some gaming beside real progress, perhaps a judge that distinguishes less. Read the examples.",
    ),
    "together": Meaning(
        "Neither is shown: the two rise alike, or not at all.",
        "Nothing. It does not prove that all is well, since judges of one family share blind spots.",
    ),
    "too_few": Meaning(
        "One of the parts has fewer than 10 prompts, so there are no intervals.",
        "Compare more steps, or label more verdicts.",
    ),
    "newly_credited": Meaning(
        "Of what late responses are credited for, and no early response to the same prompt, the share that all other "
        "judges reject: the exploitation rate of arXiv 2605.12474.",
        "Read the examples if it is high.",
    ),
    "saturated": Meaning(
        "More than 98% or less than 2% of late responses are credited for the criterion, by Wilson's interval. It "
        "takes some 190 prompts to show.",
        "Replace it by a harder criterion, or use `dropout.saturated`.",
    ),
    "never_needed": Meaning(
        "The criterion distinguishes the responses to a prompt in less than 2% of groups.",
        "It teaches the policy nothing: reword it or drop it.",
    ),
    "contradictory": Meaning(
        "Being credited for one criterion and for the other correlates below -0.1 (phi).",
        "Check whether one response can meet both, and reword one of them.",
    ),
    "self_internalization_gap": Meaning(
        "What the trainer reports of the policy's own probabilities, early and late, and in which step it was highest. "
        "With a weak judge it is highest in the middle of training and then falls, while the rewards go on rising.",
        "If it falls while the reward rises, compare with a stronger judge.",
    ),
}
"""What `GET /v1/runs/{run}/audit` may find, by the reading or the field that says it."""

AuditAnswer = Literal["signs", "perhaps", "no_signs", "unknown"]
"""Whether a rubric seems to be gamed: a figure rose alone, a figure rose more, neither is shown, or there is nothing to
compare with, or too little of it."""


SELF_INTERNALIZATION_GAP = "policy/self_internalization_gap"
"""The measure of a step under which a trainer reports `trainer_client.measures.self_internalization_gap`."""


class AuditFigure(AnswerModel):
    """A mean, share or difference, with its 95% interval from resampled prompts.

    Attributes:
        value: null if there is nothing to take it of.
        low, high: the ends of the interval; null with fewer than 10 prompts.
        prompts: the number of prompts behind it; of a difference, in the part that has fewer.
    """

    value: float | None
    low: float | None
    high: float | None
    prompts: int


class AuditTrend(AnswerModel):
    """A mean reward, or a share of criteria that are credited, in the early and in the late part of a run.

    Attributes:
        early: in the early part.
        late: in the late part.
        rise: late minus early.
    """

    early: AuditFigure
    late: AuditFigure
    rise: AuditFigure


class AuditComparison(AnswerModel):
    """The run and another view of it, on the responses or verdicts that both have.

    Attributes:
        compared: how many responses, or verdicts, both have.
        own: the trend in the run.
        other: the trend in the other.
        gap: the run's rise minus the other's.
        reading: what the gap and the rises say.
    """

    compared: int
    own: AuditTrend
    other: AuditTrend
    gap: AuditFigure
    reading: AuditReading


class AuditReference(AnswerModel):
    """Another view of the run's responses: another judge, another rubric, or labels.

    Attributes:
        run: the run that holds it; null for the labels of the audited run.
        kind: `judge` if it judged by the same rubric, `rubric` if by another one, `labels` for people's labels.
        judges: the models that judged it.
        matched: how many of the responses that were read it has.
        failed: the verdicts in it that failed or are uncertain, and are left out.
        comparison: of rewards, or of verdicts with labels; null if nothing can be compared.
    """

    run: str | None
    kind: Literal["judge", "rubric", "labels"]
    judges: tuple[str, ...] = ()
    matched: int
    failed: int = 0
    comparison: AuditComparison | None


class AuditExample(AnswerModel):
    """A response of the late part that the run's judge credits on a criterion, and all others that judged it reject.

    Attributes:
        verdict: the `id` of the recorded verdict.
        group: the group's id.
        position: the response's position in the group, from 0.
    """

    verdict: str
    step: int | None
    request_id: str
    group: str
    position: int


class AuditedCriterion(AnswerModel):
    """A criterion in the run. It is credited if it is met, or unmet if it is to be avoided.

    Attributes:
        verdicts: how many verdicts were read.
        failed: how many failed or are uncertain, and are left out.
        credited: the share of responses that are credited.
        comparisons: one for each reference, in their order; null where it says nothing of this criterion.
        saturated: `credited` if more than 98% of late responses are credited, `uncredited` if less than 2% are; null
            unless Wilson's interval supports it.
        told_apart: the share of groups in which its verdicts differ.
        never_needed: whether it tells responses apart in less than 2% of groups, by Wilson's interval.
        examples: some of the latest.
    """

    criterion: str
    verdicts: int
    failed: int
    credited: AuditTrend
    comparisons: tuple[AuditComparison | None, ...]
    saturated: Literal["credited", "uncredited"] | None
    told_apart: AuditFigure
    never_needed: bool
    examples: tuple[AuditExample, ...] = ()


class AuditConflict(AnswerModel):
    """Two criteria that are seldom credited in the same responses.

    Attributes:
        first, second: their ids.
        phi: the correlation of being credited, from -1 to 1.
    """

    first: str
    second: str
    phi: AuditFigure


class AuditPart(AnswerModel):
    """A part of the run.

    Attributes:
        first_step, last_step: its steps, both included; null for a run without steps.
        responses: the responses that were read.
        prompts: the prompts that they answer.
    """

    first_step: int | None
    last_step: int | None
    responses: int
    prompts: int


class AuditInternalization(AnswerModel):
    """The self-internalization gap that the trainer reported, in nats per token.

    Attributes:
        early: its mean over the steps of the early part that have it; null without any.
        late: the same of the late part.
        highest: the highest value of the run, in the step `step`.
        steps: the number of steps that have it.
    """

    early: float | None
    late: float | None
    highest: float
    step: int
    steps: int


class RunAudit(AnswerModel):
    """Whether the rubric of a run is being gamed, by what the ledger has.

    Attributes:
        answer: whether the rubric seems to be gamed.
        findings: what says so, in sentences.
        notes: what limits the report, in sentences.
        early: the first third of the run.
        late: the last third of the run.
        judges: the models that judged the run.
        reward: the mean reward.
        references: the other views, in the order asked for; labels come last.
        newly_credited: of what late responses are credited for and no early one to the same prompt is, the share that
            all other judges by the same rubric reject; null if there is none.
        rejected: of all that is credited, the share that all other judges by the same rubric reject.
        criteria: those with the most verdicts, the most suspicious first.
        criteria_count: the number of criteria.
        conflicts: the most contradictory pairs of criteria.
        self_internalization: what the trainer reported of the policy's own probabilities; left out if it did not.
    """

    run: str | None
    answer: AuditAnswer
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    early: AuditPart
    late: AuditPart
    judges: tuple[str, ...]
    reward: AuditTrend
    references: tuple[AuditReference, ...]
    newly_credited: AuditFigure | None
    rejected: AuditTrend | None
    criteria: tuple[AuditedCriterion, ...]
    criteria_count: int
    conflicts: tuple[AuditConflict, ...]
    self_internalization: AuditInternalization | None = Field(default=None, exclude_if=is_missing)
