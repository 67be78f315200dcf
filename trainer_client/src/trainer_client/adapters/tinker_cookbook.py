"""Tinker cookbook: a group of one-turn environments whose rewards are a rubric's, judged as one group.

A group of which a response could not be judged raises `NoReward`. The rollout strategy decides what follows:
`RetryOnFailure` leaves the group out, and `FailFast`, the default, stops training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.rl.types import Action, ActionExtra, Env, EnvGroupBuilder, Metrics, StepResult, Trajectory

from trainer_client.adapters.scorer import RubricScorer

__all__ = ["RubricGroupBuilder"]


class _OneTurn(Env):  # type: ignore[misc]
    """One response to a conversation. Its reward comes from the group."""

    def __init__(self, renderer: Renderer, messages: Sequence[Message]) -> None:
        self._renderer, self._messages = renderer, list(messages)

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition]:
        return self._renderer.build_generation_prompt(self._messages), self._renderer.get_stop_sequences()

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        return StepResult(
            reward=0.0,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=self._renderer.get_stop_sequences(),
        )


@dataclass(frozen=True)
class RubricGroupBuilder(EnvGroupBuilder):  # type: ignore[misc]
    """Builds a group of responses to a conversation, and rewards it by a rubric.

    Args:
        scorer: asks the service.
        renderer: the policy's renderer.
        messages: the conversation that the policy answers.
        group_size: the number of responses.
        row: what the judge sees beside them: `rubric`, `grounding`, `reference_answer` and `ground_truth`.
        tags: the tags under which metrics are aggregated.
    """

    scorer: RubricScorer
    renderer: Renderer
    messages: Sequence[Message]
    group_size: int
    row: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ("rubric",)

    async def make_envs(self) -> Sequence[Env]:
        """Create one environment for each response."""
        return [_OneTurn(self.renderer, self.messages) for _ in range(self.group_size)]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Judge the group.

        Raises:
            NoReward: a response could not be judged.
        """
        count = len(trajectory_group)
        prompt = [_plain(message) for message in self.messages]
        responses = [[_plain(self.renderer.parse_response(_tokens(one))[0])] for one in trajectory_group]
        columns = {name: [value] * count for name, value in self.row.items()}
        results = await self.scorer.score([prompt] * count, responses, columns)
        return [
            (
                self.scorer.require(scored),
                {f"rubric/{criterion}": score for criterion, score in scored.scores.items()},
            )
            for scored in results
        ]

    def logging_tags(self) -> list[str]:
        """The tags."""
        return list(self.tags)


def _tokens(trajectory: Trajectory) -> list[int]:
    return list(trajectory.transitions[-1].ac.tokens)


def _plain(message: Message) -> dict[str, Any]:
    """A message as the wire takes it: the text, and the thinking apart from it."""
    content = message["content"]
    if isinstance(content, str):
        return {"role": message["role"], "content": content}
    texts = [part["text"] for part in content if part["type"] == "text"]
    thoughts = [part["thinking"] for part in content if part["type"] == "thinking"]
    plain: dict[str, Any] = {"role": message["role"], "content": "\n".join(texts)}
    return plain | ({"reasoning_content": "\n".join(thoughts)} if thoughts else {})
