"""The answer of `POST /v1/rewards`: rewards, the verdicts they came from, and what judging cost."""

from typing import Literal

from trainer_client.wire.base import AnswerModel
from trainer_client.wire.judging import JudgingProtocol
from trainer_client.wire.problems import Problem
from trainer_client.wire.rewards import AppliedPolicy, FailurePolicy, RewardMode
from trainer_client.wire.verification import VerificationMethod

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
