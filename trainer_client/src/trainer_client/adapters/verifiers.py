"""verifiers and prime-rl: a judge plugin, configured in `taskset.task.judges`.

    judges = [{ id = "adjudge-verifiers", name = "rubric", rubric = "math/quadratics" }]

A rollout that could not be judged raises `NoReward`, so that verifiers records an error of the rollout and no reward;
prime-rl does not train on such rollouts.
"""

from functools import cached_property
from typing import Any, Literal

from pydantic import Field
from verifiers.v1.configs.judge import JudgeConfig
from verifiers.v1.judge import Judge
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace
from verifiers.v1.types import ID

from trainer_client.adapters.scorer import RubricScorer

__all__ = ["AdjudgeJudge", "AdjudgeJudgeConfig"]


class AdjudgeJudgeConfig(JudgeConfig):  # type: ignore[misc]
    """The judge's settings. The fields of `JudgeConfig` about a model and its prompt have no effect.

    Attributes:
        url: the service's address; by default the environment variable ADJUDGE_URL.
        rubric: a reference or a list of criteria, for tasks without a field `rubric`.
        run: the run under which requests are recorded.
        mode, on_failure, deadline_s: as for `RubricScorer`.
        columns: the task's field for each judged column that has another name there, such as
            `{"ground_truth": "answer"}`.
        view: what the judge sees of the rollout: the `last_reply`, or all `messages` after the prompt, with tool calls
            and their results.
        options: further options of `Client.rewards`.
    """

    id: ID = "adjudge-verifiers"
    url: str | None = None
    rubric: Any = None
    run: str | None = None
    mode: str = "weighted_mean"
    on_failure: str = "null"
    deadline_s: float = 60.0
    columns: dict[str, str | None] = Field(default_factory=dict)
    view: Literal["last_reply", "messages"] = "last_reply"
    options: dict[str, Any] = Field(default_factory=dict)


class AdjudgeJudge(Judge[float, AdjudgeJudgeConfig]):  # type: ignore[misc]
    """A judge whose score is a rubric's reward. Each criterion's score is a metric `<judge>/<criterion>`."""

    @cached_property
    def scorer(self) -> RubricScorer:
        """The scorer of these settings."""
        config = self.config
        return RubricScorer(
            config.url,
            config.rubric,
            run=config.run,
            mode=config.mode,
            on_failure=config.on_failure,
            deadline_s=config.deadline_s,
            columns=config.columns,
            **config.options,
        )

    async def score(self, task: TaskData, trace: Trace) -> float:
        """Score a rollout.

        Raises:
            NoReward: it could not be judged.
        """
        row = {name: value for name, value in task if name not in TaskData.model_fields and value is not None}
        scored = await self.scorer.score_one(_prompt(task), self._response(trace), row)
        reward = self.scorer.require(scored)
        for criterion, score in scored.scores.items():
            trace.record_metric(f"{self.reward_name}/{criterion}", score)
        return reward

    def _response(self, trace: Trace) -> Any:
        if self.config.view == "last_reply" or not trace.branches:
            return trace.last_reply
        nodes = trace.branches[-1].nodes
        first = next((place for place, node in enumerate(nodes) if node.sampled), len(nodes))
        return [_message(node.message) for node in nodes[first:]]


def _prompt(task: TaskData) -> Any:
    if task.prompt is None or isinstance(task.prompt, str):
        return task.prompt or ""
    return [_message(message) for message in task.prompt]


def _message(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = message.model_dump(mode="json", exclude_none=True)
    if calls := fields.get("tool_calls"):
        fields["tool_calls"] = [
            call if "function" in call else {"id": call.get("id"), "function": call} for call in calls
        ]
    return fields
