"""OpenEnv: a rubric of an environment that asks an Adjudge service, as `LLMJudge` asks a model.

    rubric = RubricJudge("http://judge:8000", "math/quadratics", read=self.judged)

OpenEnv's `Gate` and `WeightedSum` cannot compute with None, so a step that could not be judged raises `NoReward`: the
environment's server answers the step with an error, and the client raises it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from openenv.core.rubrics import Rubric

from trainer_client import AsyncClient, Client
from trainer_client.adapters.scorer import RubricScorer, Scored
from trainer_client.client.calls import RubricLike
from trainer_client.errors import InvalidRequest

__all__ = ["RubricJudge"]


class RubricJudge(Rubric):  # type: ignore[misc]
    """A rubric whose score is a reward of the service. It is asynchronous, as OpenEnv's `LLMJudge`.

    Args:
        client: the service's address, or a client; by default the environment variable ADJUDGE_URL.
        rubric: a reference or a list of criteria, for steps whose `read` names none.
        read: a function of an action and an observation, which returns what the judge sees: `prompt`, `response` (texts
            or lists of messages), and `rubric`, `grounding`, `reference_answer` and `ground_truth` if there are some.
        deadline_s: seconds that the service has; OpenEnv's client waits 60 seconds for a step.
        options: as for `RubricScorer`.

    Attributes:
        last_scored: the last result with all verdicts; None before the first.
    """

    def __init__(
        self,
        client: str | Client | AsyncClient | None = None,
        rubric: RubricLike | None = None,
        *,
        read: Callable[[Any, Any], Mapping[str, Any]],
        deadline_s: float = 45.0,
        **options: Any,
    ) -> None:
        super().__init__()
        self._scorer = RubricScorer(client, rubric, deadline_s=deadline_s, **options)
        self._read = read
        self.last_scored: Scored | None = None

    async def forward(self, action: Any, observation: Any) -> float:
        """Return the reward of what `read` returns for this step.

        Raises:
            InvalidRequest: `read` returns no prompt or no response.
            NoReward: it could not be judged.
        """
        row = dict(self._read(action, observation))
        if missing := {"prompt", "response"} - row.keys():
            raise InvalidRequest(f"read returned no {' and no '.join(sorted(missing))}, but {sorted(row)}")
        self.last_scored = None
        self.last_scored = await self._scorer.score_one(row.pop("prompt"), row.pop("response"), row)
        return self._scorer.require(self.last_scored)
