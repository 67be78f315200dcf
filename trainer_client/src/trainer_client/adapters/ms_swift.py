"""MS-Swift: a reward function for its GRPO trainers, to register in a file given as `--external_plugins`.

    from swift.rewards import orms
    from trainer_client.adapters.ms_swift import rubric_orm

    orms["rubric"] = rubric_orm("http://judge:8000", "math/quadratics")

Swift sums the rewards of its functions and counts 0 where one has none, so a response that could not be judged raises
`NoReward` once the deadline and its retries are over.
"""

from collections.abc import Sequence
from typing import Any

from swift.rewards import AsyncORM

from trainer_client import AsyncClient, Client
from trainer_client.adapters.scorer import RubricScorer
from trainer_client.client.calls import RubricLike
from trainer_client.errors import InvalidRequest
from trainer_client.wire import needs_whole_groups

__all__ = ["rubric_orm"]

_SWIFT_COLUMNS = frozenset(
    {
        "messages",
        "trainer_state",
        "prompt_id",
        "request_id",
        "finish_reason",
        "is_truncated",
        "rollout_infos",
        "response_token_ids",
        "trajectory_inputs",
    }
)


def rubric_orm(
    client: str | Client | AsyncClient | None = None,
    rubric: RubricLike | None = None,
    *,
    name: str = "RubricReward",
    **options: Any,
) -> type[AsyncORM]:
    """Return a class for `swift.rewards.orms`.

    The judge sees the conversation before the completion, the completion, and the columns `rubric`, `grounding`,
    `reference_answer` and `ground_truth`. Requests are recorded under the trainer's `run_name` unless `run` is given.

    Args:
        client: the service's address, or a client; by default the environment variable ADJUDGE_URL.
        rubric: a reference or a list of criteria, for rows without a rubric.
        name: the name under which Swift logs the reward.
        options: as for `RubricScorer`.
    """

    class RubricORM(AsyncORM):  # type: ignore[misc]
        def __init__(self, args: Any = None, **kwargs: Any) -> None:
            super().__init__(args, **kwargs)
            self._scorer = RubricScorer(client, rubric, **{"run": getattr(args, "run_name", None), **options})
            self._group_size = getattr(args, "num_generations", None)

        async def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
            size, rows = self._group_size, len(completions)
            whole = needs_whole_groups(options.get("mode"), options.get("weighting"))
            if whole and (not isinstance(size, int) or rows % size):
                raise InvalidRequest(
                    "the mode or weighting compares the responses of a group with each other, but a process scores "
                    f"{rows} of them at a time, and a group has {size or 'an unknown number'}, so that a group may be "
                    "split. Set per_device_train_batch_size x steps_per_generation to a multiple of num_generations, "
                    "or choose another"
                )
            prompts = [messages[:-1] for messages in columns["messages"]]
            judged = {
                key: values
                for key, values in columns.items()
                if key not in _SWIFT_COLUMNS and isinstance(values, list) and len(values) == len(completions)
            }
            step = getattr(columns.get("trainer_state"), "global_step", None)
            results = await self._scorer.score(prompts, completions, judged, step=step)
            return [self._scorer.require(scored) for scored in results]

    RubricORM.__name__ = RubricORM.__qualname__ = name
    return RubricORM
