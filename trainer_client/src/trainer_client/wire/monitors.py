"""`GET /v1/runs/{run}/monitors`: what the monitors of a training run find, and the thresholds that they use."""

from typing import Annotated, Literal

from pydantic import Field

from trainer_client.wire.base import STRICT_NUMBER, AnswerModel, RequestModel

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
Share = Annotated[float, Field(ge=0, le=1), STRICT_NUMBER]


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
