"""`GET /v1/runs/{run}/audit`: whether a run's reward rose where other judges, another rubric or people see no rise."""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from trainer_client.documentation import Meaning
from trainer_client.wire.base import AnswerModel, is_missing

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
