"""Verdicts, what judging them cost, and `POST /v1/verdicts` and `/v1/comparisons`, which answer them without a reward.

`/v1/verdicts` judges responses by a rubric. `/v1/comparisons` asks which of two responses is better, in both orders.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from trainer_client.modes import JudgingProtocol, UsedProtocol
from trainer_client.wire.base import (
    AnswerModel,
    BoundedFloat,
    Flag,
    RequestList,
    RequestModel,
    Share,
    is_missing,
    is_unset,
)
from trainer_client.wire.criteria import VerificationMethod
from trainer_client.wire.groups import (
    Group,
    GroupId,
    JudgingRequest,
    Prompt,
    ResponseLike,
    RubricChoice,
    check_given_steps,
)
from trainer_client.wire.judging import ComparisonOptions, JudgingOptions, Priority
from trainer_client.wire.options import Option
from trainer_client.wire.problems import Meaning


def _in_order(band: tuple[float, float]) -> tuple[float, float]:
    if band[0] > band[1]:
        raise ValueError(f"the uncertain band begins at {band[0]:g} and ends at {band[1]:g}; write the lower end first")
    return band


UncertainBand = Annotated[tuple[Share, Share], AfterValidator(_in_order)]
"""Two calibrated probabilities, LOW and HIGH: a verdict is uncertain if LOW <= probability < HIGH. Equal ones mean that
no verdict is uncertain."""

VerdictUse = Literal["verdict", "probability"]
"""What of a yes/no verdict enters a reward: its score of 0 or 1, or the calibrated probability of yes."""

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


class PinnedRubric(AnswerModel):
    """A rubric that the request used: its immutable digest, and its name and version if it was used by reference."""

    digest: str
    name: str | None = None
    version: int | None = None


class MemberUsage(AnswerModel):
    """What one judge of a cascade or panel cost, and its distinct verdicts, failed ones included.

    Attributes:
        verdicts, failed: distinct verdicts, failed ones included; and those that failed.
        seconds_judging: time that the judge worked on calls, in seconds.
    """

    verdicts: int = 0
    failed: int = 0
    judge_calls: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_reused: int = 0
    tokens_written: int = 0
    seconds_judging: float = 0.0


class JudgeMember(AnswerModel):
    """A judge of a cascade or panel, by its name in the service; the other fields are those of `JudgeInfo`.

    Attributes:
        usage: its part of the cost; in a cascade, the `verdicts` of the large judge are those escalated to it.
    """

    judge: str
    model: str
    fingerprint: str
    calibration: str | None = None
    usage: MemberUsage = MemberUsage()


class JudgeInfo(AnswerModel):
    """The judge that was used. Equal fingerprints mean equal weights, templates, decoding, protocol and options.

    The fingerprint of a cascade or panel changes when a member's does; it has no calibration of its own.

    Attributes:
        withheld: the fields of the request that the prompt templates do not show to the judge: `grounding`,
            `reference_answer`, `ground_truth`, or the `criteria` of a rating.
        uncalibrated: the fingerprint that the judge would have without its calibration; equal ones mean comparable raw
            probabilities.
        members: the judges of a cascade or panel, in order.
    """

    model: str
    protocol: UsedProtocol
    fingerprint: str
    withheld: tuple[str, ...] = ()
    calibration: str | None = None
    uncalibrated: str | None = None
    members: tuple[JudgeMember, ...] = ()


class Usage(AnswerModel):
    """What the request cost. Tokens are the judge's; times are wall-clock seconds summed over responses.

    Attributes:
        judge_calls: calls made for this request that the judge processed, retries included; not those that the deadline
            cut off.
        checks: distinct verdicts decided by a program.
        cached: distinct verdicts taken from the cache.
        joined: distinct verdicts from calls of another request, which is charged for them.
        failed: distinct verdicts that failed.
        clipped: distinct verdicts that awarded more points than the criterion has, or fewer than 0.
        uncertain: distinct verdicts that were uncertain; left out of the JSON if there are none.
        left_out: verdicts that rubric dropout left out; not in the JSON if there are none.
        seconds_queued: time that calls waited for the judge.
        seconds_judging: time that the judge worked on calls.
        compared: distinct verdicts on which at least two judges of a cascade or panel gave a score.
        disagreed: how many of these they did not agree on.
    """

    judge_calls: int = 0
    checks: int = 0
    cached: int = 0
    joined: int = 0
    failed: int = 0
    clipped: int = 0
    uncertain: int = Field(default=0, exclude_if=is_unset)
    left_out: int = Field(default=0, exclude_if=is_unset)
    prompt_tokens_computed: int = 0
    prompt_tokens_reused: int = 0
    tokens_written: int = 0
    seconds_queued: float = 0.0
    seconds_judging: float = 0.0
    compared: int = 0
    disagreed: int = 0


class VerdictRequest(JudgingRequest):
    """Judge groups of responses by rubrics, without computing rewards.

    The fields are the same as in `RewardRequest`. `judging.protocol` defaults to `binary`. Only `likert` works without
    a rubric.

    Attributes:
        fresh: ask the judge even where its verdict is known. This shows whether it still gives the same one.
    """

    judging: JudgingOptions = JudgingOptions()
    uncertain_band: Annotated[UncertainBand | None, Option("Reward", metavar="LOW HIGH")] = None
    deadline_s: Annotated[BoundedFloat, Option("Service and load")] = Field(default=60.0, gt=0, le=3600)
    priority: Annotated[Priority, Option("Service and load")] = "online"
    fresh: Annotated[Flag, Option("Service and load")] = False
    groups: RequestList[Group] = Field(min_length=1, max_length=4096)

    @property
    def protocol(self) -> JudgingProtocol:
        """The judging protocol in force."""
        return self.judging.protocol or "binary"

    @model_validator(mode="after")
    def _verdicts_have_probabilities(self) -> "VerdictRequest":
        reason = why_no_probability(self.protocol, self.judging) if self.uncertain_band is not None else None
        if reason is not None:
            raise ValueError(f"uncertain_band is set, but {reason}, or leave out uncertain_band")
        return self

    @model_validator(mode="after")
    def _every_group_has_a_rubric(self) -> "VerdictRequest":
        check_given_steps(self.groups, self.judging.steps)
        if self.rubric is None and self.protocol != "likert":
            missing = [g.id for g in self.groups if g.rubric is None]
            if missing:
                raise ValueError(f"group {missing[0]!r} has no rubric; give it one, or give the request one")
        return self


class ResponseVerdicts(AnswerModel):
    """One response's verdicts, and how many characters of the response the judge did not see."""

    verdicts: tuple[Verdict, ...]
    characters_omitted: int = 0
    characters_hidden: int = 0
    suspicious: bool | None = None


class GroupVerdicts(AnswerModel):
    """The verdicts on the responses of one group, in the request's order.

    Attributes:
        id: the group's id.
        rubric: the digest of the rubric that they were judged by.
    """

    id: str
    rubric: str | None = None
    grounding_characters_omitted: int = 0
    responses: tuple[ResponseVerdicts, ...]


class VerdictAnswer(AnswerModel):
    """The answer to a `VerdictRequest`. Groups are in the request's order.

    `uncertain_band` is the band in force; it is left out if there is none.
    """

    request_id: str
    run: str | None = None
    step: int | None = None
    uncertain_band: UncertainBand | None = Field(default=None, exclude_if=is_unset)
    judge: JudgeInfo | None = None
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage
    groups: tuple[GroupVerdicts, ...]


class Pair(RequestModel):
    """Two responses to one prompt. Only the judge sees `grounding` and `reference_answer`.

    Attributes:
        id: a name of your own, which the answer repeats.
        a, b: a response to the prompt.
    """

    id: GroupId
    prompt: Prompt
    a: ResponseLike
    b: ResponseLike
    grounding: str | None = None
    reference_answer: str | None = None
    rubric: RubricChoice | None = None


class ComparisonRequest(JudgingRequest):
    """Compare pairs of responses. The other fields are the same as in `RewardRequest`.

    Attributes:
        question: what to ask the judge instead of which response is better.
        pairs: the pairs to compare.
        rubric: criteria that tell the judge what to look at.
    """

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2_000)] | None = None
    judging: ComparisonOptions = ComparisonOptions()
    deadline_s: Annotated[BoundedFloat, Option("Service and load")] = Field(default=60.0, gt=0, le=3600)
    priority: Annotated[Priority, Option("Service and load")] = "online"
    pairs: RequestList[Pair] = Field(min_length=1, max_length=4096)


class OrderVerdict(AnswerModel):
    """The judge's verdict in one order.

    Attributes:
        first: the response that the judge saw first.
        probability: the probability that `a` is better.
        preferred: the response that the judge preferred, or `tie`.
    """

    first: Literal["a", "b"]
    status: Literal["ok", "failed"]
    probability: float | None = None
    preferred: Literal["a", "b", "tie"] | None = None
    choice_mass: float | None = None
    rationale: str | None = None
    failure: Failure | None = None
    cached: bool = False


class Comparison(AnswerModel):
    """The comparison of one pair.

    `score` and `preferred` are null if judging failed in either order. If the orders disagree, `preferred` is `tie`.

    Attributes:
        id: the pair's id.
        status: `failed` if judging failed in either order.
        score: the win of `a`, averaged over both orders: 1 for a win, 0 for a loss.
        preferred: the better response, or `tie`.
        probability: the probability that `a` is better, averaged over both orders.
        consistent: whether both orders agree.
        orders: the verdict in each order.
    """

    id: str
    status: Literal["ok", "failed"]
    score: float | None = None
    preferred: Literal["a", "b", "tie"] | None = None
    probability: float | None = None
    consistent: bool | None = None
    orders: tuple[OrderVerdict, ...]


class ComparisonAnswer(AnswerModel):
    """The answer to a `ComparisonRequest`. Pairs are in the request's order.

    Attributes:
        win_rate: the mean score of `a` over the pairs that have a score; null if none has.
        pairs: the comparisons, in the order of the request.
    """

    request_id: str
    run: str | None = None
    step: int | None = None
    judge: JudgeInfo
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage
    win_rate: float | None
    pairs: tuple[Comparison, ...]
