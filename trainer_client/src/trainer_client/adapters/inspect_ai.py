"""inspect_ai: a scorer whose value is a rubric's reward.

A sample that could not be judged is unscored: inspect_ai keeps it in the log, and leaves it out of all metrics.
"""

from collections.abc import Sequence
from typing import Any

from inspect_ai.model import ChatMessage
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from trainer_client.adapters.scorer import RubricScorer

__all__ = ["rubric_scorer"]


@scorer(metrics=[mean(), stderr()], name="adjudge_rubric")  # type: ignore[untyped-decorator]
def rubric_scorer(client: str | None = None, rubric: Any = None, **options: Any) -> Scorer:
    """Score samples by a rubric.

    The judge sees the sample's input and the model's output, or all messages after the input if there were tool calls.
    `rubric`, `grounding`, `reference_answer` and `ground_truth` come from the sample's metadata; the target is the
    ground truth unless the metadata has one.

    Args:
        client: the service's address, by default the environment variable ADJUDGE_URL.
        rubric: a reference or a list of criteria, for samples whose metadata has no rubric.
        options: as for `RubricScorer`.
    """
    scorer_ = RubricScorer(client, rubric, **options)

    async def score(state: TaskState, target: Target) -> Score:
        row = dict(state.metadata or {})
        if target.text and "ground_truth" not in row:
            row["ground_truth"] = target.text
        prompt = state.input if isinstance(state.input, str) else _messages(state.input)
        scored = await scorer_.score_one(prompt, _response(state), row)
        if scored.reward is None:
            return Score.unscored(
                reason=f"adjudge: {', '.join(scored.failures) or 'no reward'}",
                answer=state.output.completion,
                metadata=scored.metadata,
            )
        return Score(
            value=scored.reward,
            answer=state.output.completion,
            explanation=scored.explanation,
            metadata=scored.metadata,
        )

    return score


def _response(state: TaskState) -> Any:
    """The output, or, if there were tool calls, all that the model and its tools said."""
    given = 1 if isinstance(state.input, str) else len(state.input)
    said = [message for message in state.messages if message.role != "system"]
    said = said[given - sum(message.role == "system" for message in state.messages[:given]) :]
    return _messages(said) if any(message.role == "tool" for message in said) else state.output.completion


def _messages(given: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for message in given:
        fields: dict[str, Any] = {"role": message.role, "content": message.text}
        if calls := getattr(message, "tool_calls", None):
            fields["tool_calls"] = [
                {"id": call.id, "function": {"name": call.function, "arguments": call.arguments}} for call in calls
            ]
        if call_id := getattr(message, "tool_call_id", None):
            fields["tool_call_id"] = call_id
        messages.append(fields)
    return messages
