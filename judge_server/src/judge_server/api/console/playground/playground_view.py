"""What the playground shows of an answer: each response with its steps coloured, and why it has its reward."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from judge_server.api.console.responses.explanation import Explanation, RecordedReward, explain
from trainer_client.steps import has_format
from trainer_client.text.thinking import judged_content
from trainer_client.wire import Criterion, GroupRewards, ResponseReward, RewardRequest, Verdict, as_response
from trainer_client.wire.groups import Response

_LEVELS = 5


class StepText(NamedTuple):
    """A part of a response: the text of a step, or text outside steps, whose number is None.

    `level` is the step's delta as a colour, from -5 to 5; None without a delta. `criteria` are those whose verdict is
    attributed to the step.
    """

    text: str
    number: int | None = None
    delta: float | None = None
    level: int | None = None
    criteria: tuple[str, ...] = ()


class JudgedResponse(NamedTuple):
    """A response of the playground, judged: its place in the request, its answer, its text in parts, and why.

    `messages` are those of a response without steps that was sent as messages, as JSON; None for any other.
    """

    number: int
    answer: ResponseReward
    parts: tuple[StepText, ...]
    explanation: Explanation
    messages: str | None = None

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """The verdicts, in the order of the rubric."""
        return self.answer.verdicts

    @property
    def whole_delta(self) -> float | None:
        """The delta of the criteria that are attributed to the whole response; None if there are none."""
        return next((step.delta for step in self.answer.steps if step.number == 0), None)

    def has_step(self, number: int | None) -> bool:
        """Whether the text shows a step with this number."""
        return any(part.number == number for part in self.parts if part.number is not None)


def judged_responses(
    request: RewardRequest, rewarded: GroupRewards, criteria: Sequence[Criterion] | None
) -> list[JudgedResponse]:
    """The responses of the request's group with their verdicts and rewards."""
    shown = []
    for n, (given, answer) in enumerate(zip(request.groups[0].responses, rewarded.responses, strict=True)):
        response = as_response(given)
        judged = judged_content(response, request.judging.reasoning)
        keeps_format = request.judging.steps != "headings" or has_format(judged.text)
        recorded = RecordedReward(request.reward.mode, answer.reward, answer.status, keeps_format)
        explanation = explain(recorded, criteria, answer.verdicts)
        messages = None
        if not isinstance(response.text, str) and not any(step.number for step in answer.steps):
            messages = json.dumps([message.model_dump(mode="json") for message in response.text])
        shown.append(JudgedResponse(n + 1, answer, _parts(response, judged.text, answer), explanation, messages))
    return shown


def _parts(response: Response, judged: str, answer: ResponseReward) -> tuple[StepText, ...]:
    """The text, divided at the steps; spans are those of a text as sent, or of the judged text of messages."""
    text = response.text if isinstance(response.text, str) else judged
    parts: list[StepText] = []
    at = 0
    for step in sorted((one for one in answer.steps if one.number > 0), key=lambda one: one.start):
        if step.start > at:
            parts.append(StepText(text[at : step.start]))
        named = tuple([verdict.criterion for verdict in answer.verdicts if verdict.step == step.number])
        parts.append(StepText(text[step.start : step.end], step.number, step.delta, _level(step.delta), named))
        at = step.end
    return (*parts, StepText(text[at:])) if text[at:] else tuple(parts)


def _level(delta: float | None) -> int | None:
    if delta is None:
        return None
    size = min(1.0, abs(delta))
    level = max(1, round(size * _LEVELS)) if size else 0
    return level if delta > 0 else -level
