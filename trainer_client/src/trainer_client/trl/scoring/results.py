"""The scored rows of a reward call, as methods and callbacks read them, and what is logged of them."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_client.client.keywords import RewardKeywords
from trainer_client.rows.tables import RubricOrReference, failure_kinds
from trainer_client.text.thinking import JudgedContent, judged_content
from trainer_client.wire import ZERO_POLICIES, Criterion, PromptOpens, ReasoningPart, Response, ResponseReward, Usage
from trainer_client.wire.judging import StepRule


@dataclass(frozen=True, slots=True)
class SentResponse:
    """A response as it was sent, with what its steps are.

    Attributes:
        judged: the part of it that is judged. Of a text, all of it, because spans of steps refer to the text as sent.
        turns: the number of its messages of role `assistant`; 1 for a text.
        steps: what its steps are.
    """

    judged: JudgedContent
    turns: int
    steps: StepRule

    @classmethod
    def of(cls, response: Response, options: RewardKeywords) -> "SentResponse":
        """Return a response as sent with these options."""
        steps = options.get("steps", "headings")
        if isinstance(response.text, str):
            return cls(judged_content(response, "keep"), 1, steps)
        turns = sum(message.role == "assistant" for message in response.text)
        part, opens = options.get("reasoning", "strip"), options.get("prompt_opens")
        return cls(judged_content(response, part, opens), turns, steps)


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row of a call.

    Attributes:
        group: the id of its group, equal on all ranks.
        reward: the returned reward, extra reward functions included; None if a part of it is missing.
        answer: the service's answer: the judge's own reward, verdicts and steps. None if there was none.
        criteria: the criteria that judged the row; None unless the rubric was inline or `needs_criteria` is set.
        failures: the kinds of failures, without duplicates.
        response: the response as it was sent.
        without_rubric: whether the row had no rubric, and was judged by its final answer alone or not at all.
        rubric: the rubric as the user wrote it: a reference before pinning, or an inline rubric.
        fields: the wire fields of its group, except the responses and the rubric.
        options: the judging options, which say what of the response was judged and what its steps are.
        component_weights: the weights of the components of its reward, if the mode is linear and components are asked
            for.
    """

    group: str
    reward: float | None
    answer: ResponseReward | None
    criteria: tuple[Criterion, ...] | None
    failures: tuple[str, ...]
    response: Response
    without_rubric: bool = False
    rubric: RubricOrReference | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    options: RewardKeywords = field(default_factory=RewardKeywords)
    component_weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def reasoning(self) -> ReasoningPart:
        """The part of the response's thinking that was judged."""
        return self.options.get("reasoning", "strip")

    @property
    def steps(self) -> StepRule:
        """What the steps of the response are."""
        return self.options.get("steps", "headings")

    @property
    def opens(self) -> PromptOpens | None:
        """The tag of the thinking block that the prompt leaves open; None if that is not known."""
        return self.options.get("prompt_opens")

    @property
    def text(self) -> str:
        """The text that the spans of the answer's steps refer to."""
        return self.sent.judged.text

    @property
    def sent(self) -> SentResponse:
        """The response, with what its steps are."""
        return SentResponse.of(self.response, self.options)


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """The scored rows of one call, in order."""

    rows: Sequence[ScoredRow]


def judged_reward(answer: ResponseReward | None) -> float | None:
    """Return the judge's reward; None if it is missing or not finite."""
    if answer is None or answer.reward is None or not math.isfinite(answer.reward):
        return None
    return answer.reward


def failed_to_reward(answer: ResponseReward | None) -> bool:
    """Whether judging gave no reward: it is missing, or a failure policy set it to 0."""
    return judged_reward(answer) is None or (answer is not None and answer.policy_applied in ZERO_POLICIES)


def answer_is_right(row: ScoredRow) -> bool | None:
    """Whether all criteria of kind `answer` are satisfied; None if there are none, or if missing verdicts decide."""
    answers = {criterion.id for criterion in row.criteria or () if criterion.kind == "answer" and not criterion.shadow}
    if not answers or row.answer is None:
        return None
    scores = [verdict.score for verdict in row.answer.verdicts if verdict.criterion in answers]
    if any(score is not None and score < 1.0 for score in scores):
        return False
    return None if len(scores) < len(answers) or None in scores else True


def failures_of(answer: ResponseReward | None, kind: str) -> tuple[str, ...]:
    """Return the kinds of failures of a row, without duplicates; `uncertain` if that alone cost its reward.

    Args:
        answer: the row's answer.
        kind: the kind of failure if there is no answer.
    """
    if answer is None:
        return (kind,)
    kinds = failure_kinds(answer)
    if judged_reward(answer) is None and not kinds:
        return ("not_finite" if answer.reward is not None else "unscored",)
    return kinds


MAX_TRACKED_CRITERIA = 64
"""The number of criteria whose pass rates a run logs by id. Beyond it, pass rates are also logged by kind."""

_MAX_MARKS_SHOWN = 24


def reward_metrics(
    rows: Sequence[ScoredRow], usage: Sequence[Usage], wait_s: float, tracked_criteria: set[str], prefix: str = "rubric"
) -> dict[str, float]:
    """Compute the metrics of a reward call, by name. Metrics without data are left out.

    `unscored`, `partial` and `without_rubric` are shares of the rows, `failed_verdicts`, `uncertain_verdicts` and
    `cached` shares of the verdicts. `zeroed`, `skipped` and `failures/<kind>` count rows, `clipped` counts verdicts,
    and `saved_verdicts` those that rubric dropout left out. `pass/<criterion>` is the mean score of the criterion's
    verdicts, and `declared_reward` the mean reward under the rubric's own weights, where others are trained on.

    Args:
        rows: the scored rows of this rank.
        usage: the usage of each completed request.
        wait_s: wall seconds that judging took.
        tracked_criteria: the criteria whose scores are logged by id. Criteria of these rows are added to it, up to
            `MAX_TRACKED_CRITERIA`.
        prefix: the prefix of all names.
    """
    if not rows:
        return {}
    answers = [row.answer for row in rows if row.answer is not None]
    verdicts = [verdict for answer in answers for verdict in answer.verdicts if verdict.status != "left_out"]
    policies = Counter(answer.policy_applied for answer in answers)
    numbers: dict[str, float] = {
        "unscored": sum(judged_reward(row.answer) is None for row in rows) / len(rows),
        "partial": sum(answer.status == "partial" for answer in answers) / len(rows),
        "without_rubric": sum(row.without_rubric for row in rows) / len(rows),
        "zeroed": sum(policies[policy] for policy in ZERO_POLICIES),
        "skipped": policies["skip"],
        "wait_seconds": wait_s,
    }
    if verdicts:
        numbers["failed_verdicts"] = sum(verdict.status == "failed" for verdict in verdicts) / len(verdicts)
        numbers["uncertain_verdicts"] = sum(verdict.status == "uncertain" for verdict in verdicts) / len(verdicts)
        numbers["cached"] = sum(verdict.cached for verdict in verdicts) / len(verdicts)
    declared = [answer.declared_reward for answer in answers if answer.declared_reward is not None]
    if declared:
        numbers["declared_reward"] = sum(declared) / len(declared)
    if usage:
        numbers["clipped"] = sum(one.clipped for one in usage)
        numbers["judge_calls"] = sum(one.judge_calls for one in usage)
        if saved := sum(one.left_out for one in usage):
            numbers["saved_verdicts"] = saved
        numbers["judge_seconds"] = sum(one.seconds_judging for one in usage)
        numbers["queue_seconds"] = sum(one.seconds_queued for one in usage)
    for kind, count in Counter(kind for row in rows for kind in row.failures).items():
        numbers[f"failures/{kind}"] = count
    numbers |= _pass_rates(rows, tracked_criteria)
    return {f"{prefix}/{name}": float(number) for name, number in numbers.items()}


def _pass_rates(rows: Sequence[ScoredRow], tracked_criteria: set[str]) -> dict[str, float]:
    scores: defaultdict[str, list[float]] = defaultdict(list)
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        kinds = {criterion.id: criterion.kind for criterion in row.criteria or ()}
        for verdict in row.answer.verdicts if row.answer is not None else ():
            if verdict.score is not None and 0.0 <= verdict.score <= 1.0:
                scores[verdict.criterion].append(verdict.score)
                if verdict.criterion in kinds:
                    by_kind[kinds[verdict.criterion]].append(verdict.score)
    if len(tracked_criteria | scores.keys()) <= MAX_TRACKED_CRITERIA:
        tracked_criteria.update(scores)
        by_kind.clear()
    means = {id_: given for id_, given in scores.items() if id_ in tracked_criteria}
    means |= {f"kind/{kind}": given for kind, given in by_kind.items()}
    return {f"pass/{name}": sum(given) / len(given) for name, given in means.items()}


def verdict_summaries(rows: Sequence[ScoredRow]) -> list[str]:
    """Summarize each row's verdicts as `3 of 5: c1 ✓ c2 ✗ c3 ?`, with ? for a missing score."""
    return [_verdict_summary(row) for row in rows]


def _verdict_summary(row: ScoredRow) -> str:
    answer = row.answer
    reason = f"no reward ({', '.join(row.failures)})" if judged_reward(answer) is None else ""
    if answer is None or not answer.verdicts:
        return reason or "no criteria"
    judged = [verdict for verdict in answer.verdicts if verdict.status != "left_out"]
    met = sum(verdict.score or 0.0 for verdict in judged)
    marks = [f"{verdict.criterion} {_mark(verdict.score)}" for verdict in judged[:_MAX_MARKS_SHOWN]]
    if len(judged) > _MAX_MARKS_SHOWN:
        marks.append(f"… {len(judged) - _MAX_MARKS_SHOWN} more")
    policy = f" (policy {answer.policy_applied})" if answer.policy_applied else ""
    summary = f"{met:.4g} of {len(judged)}{policy}: {' '.join(marks)}"
    return f"{reason}; {summary}" if reason else summary


def _mark(score: float | None) -> str:
    if score is None:
        return "?"
    return "✓" if score >= 1.0 else "✗" if score <= 0.0 else f"{score:.2g}"
