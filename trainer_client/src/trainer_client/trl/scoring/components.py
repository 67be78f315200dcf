"""The components of a rubric's reward as reward functions of their own, which share one judging of each batch.

The trainer calls the functions of a split one after another or all at once, each with the same arguments. The first one
has the batch judged, and the others wait for the same rows, so that each batch is one request, one entry in the log and
one exchange between ranks.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any

from trainer_client.errors import InvalidRequest
from trainer_client.rewards import component_names, component_weights
from trainer_client.trl.scoring.context import TrainerContext
from trainer_client.trl.scoring.extra_rewards import weighted_sum
from trainer_client.trl.scoring.results import ScoredRow
from trainer_client.wire import NOT_LINEAR, Criterion, RewardOptions

REST = "rest"
"""The function of the components that have none of their own."""

PENALTIES = "penalties"
"""The function of what penalties take off the reward, which belongs to no component."""


class SharedJudging:
    """Judges each batch once, by a `RubricReward`, for all functions of a split.

    `named` are the components that have a function of their own, other than `rest`.
    """

    def __init__(self, whole: Any, named: Collection[str]) -> None:
        self.whole, self.named = whole, frozenset(named)
        self._arguments: Mapping[str, Any] = {}
        self._rows: Awaitable[Sequence[ScoredRow]] | None = None
        self._taken_by: list[object] = []

    def rows(self, function: object, arguments: Mapping[str, Any]) -> Awaitable[Sequence[ScoredRow]]:
        """Return the scored rows of a batch, which is judged unless another function has asked for it."""
        same = all(arguments[name] is self._arguments.get(name) for name in ("prompts", "completions"))
        if self._rows is None or not same or function in self._taken_by:
            # the arguments are kept, so that no other batch can have the same identity
            self._arguments, self._taken_by = arguments, []
            self._rows = asyncio.ensure_future(self._judge(arguments))
        self._taken_by.append(function)
        return self._rows

    async def _judge(self, arguments: Mapping[str, Any]) -> Sequence[ScoredRow]:
        await self.whole(**arguments)
        rows: Sequence[ScoredRow] = self.whole.last.rows  # set by the call, and nothing was awaited since
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_arguments": {}, "_rows": None, "_taken_by": []}


class ComponentReward:
    """The reward of one component as an async reward function for TRL's trainers; see `RubricReward.split`.

    Attributes:
        component: the component's name, `rest` or `penalties`.
        weight: its weight in the reward by the rubric of rows without one of their own; None if there is none, or if
            the mode is not linear.
        whole: the `RubricReward` that judges for all functions of the split.
    """

    def __init__(self, component: str, weight: float | None, judging: SharedJudging) -> None:
        self.component, self.weight, self.whole = component, weight, judging.whole
        self._judging = judging
        self.__name__ = f"{self.whole.name or 'rubric'}/{component}"
        self.__signature__ = inspect.signature(self.__call__)

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the component's reward of N completions, None where it has none; see `RubricReward.split`."""
        arguments = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        rows = await self._judging.rows(self, arguments)
        apart = TrainerContext(columns.get("log_metric")).normalises_each_reward
        return [self._value(row) if apart or _is_complete(row) else None for row in rows]

    # as in `RubricReward`, for TRL before 1.16
    __code__ = __call__.__code__
    __defaults__ = __call__.__defaults__
    __kwdefaults__ = __call__.__kwdefaults__

    def _value(self, row: ScoredRow) -> float | None:
        if row.answer is None:
            return None
        answer, named = row.answer, self._judging.named
        if self.component == PENALTIES:
            before, after = answer.unpenalised, answer.reward
            return None if before is None or after is None else after - before
        if self.component in named:
            return answer.components.get(self.component)
        rest = {name: value for name, value in answer.components.items() if name not in named}
        weights = [row.component_weights[name] for name in rest]
        total = weighted_sum(list(rest.values()), weights)
        return None if total is None or not any(weights) else total / sum(weights)


def _is_complete(row: ScoredRow) -> bool:
    """Whether every component of a response has a reward."""
    return row.answer is not None and None not in row.answer.components.values()


def component_functions(
    whole: Any,
    options: RewardOptions,
    criteria: Sequence[Criterion] | None,
    names: Sequence[str] | None,
) -> list[ComponentReward]:
    """Return a reward function for each component; `RubricReward.split` says which, and their order.

    `criteria` are those of rows without a rubric of their own, if there are any, and `names` the components that get a
    function of their own; None for all. Raises ValueError if the names are needed and not given, are not distinct, or
    leave a rest that has no reward.
    """
    if options.weighting == "contrast" and options.components != "tag":
        raise ValueError(
            "under the weighting 'contrast' only the weights of tags stay the same from group to group, so that no "
            "other components can be reward functions with a weight; use components='tag'"
        )
    known = component_names(criteria, options)
    if isinstance(names, str) or (names is not None and not names):
        raise ValueError(f"names is {names!r}; give a list of at least one component, or none for all")
    named = list(known if names is None else names)
    if not named:
        raise ValueError(
            "the components are not known before the rubrics of the dataset are read; name those that get a function "
            "of their own, such as split(['clarity', 'safety'])"
        )
    if len(set(named)) < len(named) or {REST, PENALTIES} & set(named):
        raise ValueError(f"the components are {named}; give each name once, and call none {REST!r} or {PENALTIES!r}")
    others = set(known) - set(named)
    if others and options.mode in NOT_LINEAR:
        raise ValueError(
            f"mode {options.mode!r} {NOT_LINEAR[options.mode]}, so {', '.join(map(repr, sorted(others)))} would have "
            "no common reward; name all components, or take a linear mode such as 'weighted_mean' or 'points'"
        )
    wanted = named if (known and not others) or options.mode in NOT_LINEAR else [*named, REST]
    weights: dict[str, float] = {} if criteria is None else component_weights(criteria, options)
    if weights and others:
        weights[REST] = sum(weights[name] for name in others)
    judging = SharedJudging(whole, named)
    functions = [ComponentReward(name, weights.get(name), judging) for name in wanted]
    return functions + ([ComponentReward(PENALTIES, 1.0, judging)] if options.has_penalties else [])


def check_components(rows: Sequence[ScoredRow], named: Sequence[str], context: TrainerContext) -> None:
    """Check that the functions of a split give every row the components of its reward.

    Raises InvalidRequest if a row has a component without a function, or lacks one that the trainer would count as 0.
    """
    for number, row in enumerate(rows):
        components = {} if row.answer is None else row.answer.components
        other = next((name for name in components if name not in named), None)
        if other is not None and REST not in named:
            raise InvalidRequest(
                f"row {number}: its rubric has the component {other!r}, for which split() made no function; name all "
                f"components: split({[*named, other]})"
            )
        if context.never_leaves_out and not context.normalises_each_reward and None in components.values():
            raise InvalidRequest(
                f"row {number}: a component has no reward, so the row is left out, but TRL {context.never_leaves_out} "
                "would count it as 0. Use TRL 1.6 or newer, or multi_objective_aggregation='normalize_then_sum'"
            )
