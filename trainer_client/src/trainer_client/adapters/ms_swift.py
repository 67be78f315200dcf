"""MS-Swift: a reward function for its GRPO trainers, to register in a file given as `--external_plugins`.

    from swift.rewards import orms
    from trainer_client.adapters.ms_swift import rubric_orm

    orms["rubric"] = rubric_orm("http://judge:8000", "math/quadratics")

With `rubric_orms`, each component of the reward is a function of its own, over one judging of each batch, for
`--scale_rewards gdpo`.

Swift sums the rewards of its functions and counts 0 where one has none, so a response that could not be judged raises
`NoReward` once the deadline and its retries are over.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from swift.rewards import AsyncORM

from trainer_client import AsyncClient, Client
from trainer_client.adapters.scorer import NoReward, RubricScorer, Scored
from trainer_client.client.calls import RubricLike
from trainer_client.errors import InvalidRequest
from trainer_client.wire import needs_whole_groups

__all__ = ["rubric_orm", "rubric_orms"]

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
            self._judging = _Judging(args, client, rubric, options)

        async def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
            return [self._judging.scorer.require(scored) for scored in await self._judging.score(completions, columns)]

    RubricORM.__name__ = RubricORM.__qualname__ = name
    return RubricORM


def rubric_orms(
    names: Sequence[str],
    client: str | Client | AsyncClient | None = None,
    rubric: RubricLike | None = None,
    *,
    name: str = "rubric",
    **options: Any,
) -> dict[str, type[AsyncORM]]:
    """Return a class for each component of the reward, to add to `swift.rewards.orms`, as `NAME/COMPONENT`.

    Each batch is judged once for all of them. A response whose rubric lacks a component has none there, which
    `--scale_rewards gdpo` leaves out and every other scale counts as 0. A component whose verdict failed raises
    `NoReward`, since Swift would count 0 too.

    Args:
        names: the components: criteria, kinds or first tags, as the option `components` says.
        client, rubric: as for `rubric_orm`.
        name: what the names of the functions begin with.
        options: as for `RubricScorer`; `components` is needed.

    Raises:
        ValueError: the option `components` is missing, or its components have other weights in each group.
    """
    if options.get("components") is None:
        raise ValueError("say what the components are: components='criterion', 'kind' or 'tag'")
    if options.get("weighting") == "contrast" and options["components"] != "tag":
        raise ValueError("under the weighting 'contrast' only the weights of tags stay the same; use components='tag'")
    shared: list[_Judging] = []

    def function(component: str) -> type[AsyncORM]:
        class ComponentORM(AsyncORM):  # type: ignore[misc]
            def __init__(self, args: Any = None, **kwargs: Any) -> None:
                super().__init__(args, **kwargs)
                if not shared:
                    shared.append(_Judging(args, client, rubric, options))
                self._judging = shared[0]

            async def __call__(self, completions: Sequence[str], **columns: Any) -> list[float | None]:
                return [_component(scored, component) for scored in await self._judging.score(completions, columns)]

        ComponentORM.__name__ = ComponentORM.__qualname__ = f"{name}/{component}"
        return ComponentORM

    return {f"{name}/{component}": function(component) for component in names}


def _component(scored: Scored, component: str) -> float | None:
    """The reward of a component; None if the rubric has no such component.

    Raises:
        NoReward: a missing verdict could change it.
    """
    given = scored.answer.components if scored.answer is not None else {component: None}
    if component in given and given[component] is None:
        raise NoReward(f"the component {component!r} has no reward: {', '.join(scored.failures) or 'uncertain'}")
    return given.get(component)


class _Judging:
    """Judges a batch once, however many reward functions ask for it at the same time."""

    def __init__(self, args: Any, client: Any, rubric: Any, options: dict[str, Any]) -> None:
        self.scorer = RubricScorer(client, rubric, **{"run": getattr(args, "run_name", None), **options})
        self._group_size = getattr(args, "num_generations", None)
        self._compares = needs_whole_groups(options.get("mode"), options.get("weighting"))
        self._latest: tuple[Sequence[str], asyncio.Future[list[Scored]]] | None = None

    async def score(self, completions: Sequence[str], columns: dict[str, Any]) -> list[Scored]:
        """Score the completions of a batch; calls with the same list share one judging."""
        if self._latest is None or self._latest[0] is not completions:
            self._latest = completions, asyncio.ensure_future(self._score(completions, columns))
        return await self._latest[1]

    async def _score(self, completions: Sequence[str], columns: dict[str, Any]) -> list[Scored]:
        size, rows = self._group_size, len(completions)
        if self._compares and (not isinstance(size, int) or rows % size):
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
            if key not in _SWIFT_COLUMNS and isinstance(values, list) and len(values) == rows
        }
        step = getattr(columns.get("trainer_state"), "global_step", None)
        return await self.scorer.score(prompts, completions, judged, step=step)
