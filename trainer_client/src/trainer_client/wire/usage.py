"""What judging cost, and the judge that was asked: parts of every answer with verdicts."""

from pydantic import Field

from trainer_client.modes import UsedProtocol
from trainer_client.wire.base import AnswerModel, is_unset


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
