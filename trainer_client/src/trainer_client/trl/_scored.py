"""What a reward call saw, row by row: the answer, the reward made of it, and what went wrong."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_client._columns import RubricOrReference
from trainer_client.thinking import judged_content
from trainer_client.wire import ZERO_POLICIES, Criterion, ReasoningPart, Response, ResponseReward


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row of a call.

    Attributes:
        group: the id of its group, equal on all ranks.
        reward: as it was returned, other reward functions included; None where a part of it is missing.
        answer: the service's: the judge's own reward, verdicts, steps. None where there was none.
        criteria: what it was judged by, where that is known: the rubric was given inline, or `needs_criteria` is set.
        failures: the kinds of what went wrong, each once; empty where nothing did.
        response: as it was sent.
        reasoning: what of the response's thinking was judged.
        without_rubric: whether it had none, and was judged by its final answer alone or not at all.
        rubric: what it was judged by, as its user wrote it: a reference that is not pinned, or the rubric itself.
        fields: its group's fields on the wire, but the responses and the rubric.
    """

    group: str
    reward: float | None
    answer: ResponseReward | None
    criteria: tuple[Criterion, ...] | None
    failures: tuple[str, ...]
    response: Response
    reasoning: ReasoningPart
    without_rubric: bool = False
    rubric: RubricOrReference | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What the spans of the answer's steps count in."""
        return judged_text(self.response, self.reasoning)


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """What one call saw, in the order of its rows."""

    rows: Sequence[ScoredRow]


def judged_text(response: Response, reasoning: ReasoningPart) -> str:
    """Give what the steps' spans of an answer to a response count in."""
    return response.text if isinstance(response.text, str) else judged_content(response, reasoning).text


def judged_reward(answer: ResponseReward | None) -> float | None:
    """Give the judge's reward; None where there is none, or no finite number."""
    if answer is None or answer.reward is None or not math.isfinite(answer.reward):
        return None
    return answer.reward


def failed_to_reward(answer: ResponseReward | None) -> bool:
    """Whether the judge's verdicts made no reward: there is none, or a failure policy made it 0."""
    return judged_reward(answer) is None or (answer is not None and answer.policy_applied in ZERO_POLICIES)


def failures_of(answer: ResponseReward | None, kind: str) -> tuple[str, ...]:
    """Name what went wrong with a row, each kind once.

    Args:
        answer: the row's.
        kind: why there is none.
    """
    if answer is None:
        return (kind,)
    kinds = dict.fromkeys(v.failure.kind if v.failure else "engine" for v in answer.verdicts if v.status == "failed")
    if judged_reward(answer) is None and not kinds:
        return ("not_finite" if answer.reward is not None else "unscored",)
    return tuple(kinds)
