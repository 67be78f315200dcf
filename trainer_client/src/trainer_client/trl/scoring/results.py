"""The scored rows of a reward call, as the trainer's methods and callbacks read them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_client._inputs import RubricOrReference
from trainer_client.client.keywords import RewardKeywords
from trainer_client.rows.tables import failure_kinds
from trainer_client.text.thinking import JudgedContent, judged_content
from trainer_client.wire import ZERO_POLICIES, Criterion, PromptOpens, ReasoningPart, Response, ResponseReward
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
