"""TRL's environments where only a part of a batch is tokenised or generated.

TRL keeps a batch's environments and their tools in lists, one entry for each row, and walks them beside whatever
prompts it is given. A method that looks at one prompt, or generates some responses anew, narrows the lists first.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_PER_ROW_ATTRIBUTES = ("_batch_environments", "environments", "_sync_tool_dicts", "_async_tool_dicts")
"""What TRL's trainer holds one entry of for each row of a batch, where it has environments."""


@contextmanager
def select_environments(trainer: Any, rows: Sequence[int]) -> Iterator[None]:
    """Have a trainer's environments be those of some rows of the batch, in this order, and then all of them again."""
    kept = {name: held for name in _PER_ROW_ATTRIBUTES if (held := getattr(trainer, name, None))}
    if trainer.environment_factories is None or not kept:
        yield
        return
    try:
        for name, held in kept.items():
            setattr(trainer, name, [held[row] for row in rows])
        yield
    finally:
        for name, held in kept.items():
            setattr(trainer, name, held)


def reset_environments(
    trainer: Any, rows: Sequence[int], inputs: Sequence[Mapping[str, Any]], num_padding: int
) -> None:
    """Reset the environments that a trainer has at hand, for responses that are generated anew.

    Args:
        trainer: within `select_environments` of these rows.
        rows: of the batch.
        inputs: the columns of all rows of the batch.
        spare: how many of the last rows are generated only so that all ranks generate equally many; these get
            environments of their own, so that those of the batch stay as they are.
    """
    if not trainer.environments:
        return
    for place, row in enumerate(rows):
        if place >= len(rows) - num_padding:
            instance = trainer.environment_factories[trainer._batch_environments[place]]()
            trainer.environments[place] = instance
            if trainer.tools:
                trainer._sync_tool_dicts[place], trainer._async_tool_dicts[place] = _tools(trainer, instance)
        columns = dict(inputs[row])
        if trainer._multi_environment:
            columns.pop("environment", None)
        trainer.environments[place].reset(**columns)


def _tools(trainer: Any, instance: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the tools that a rollout in an environment can call, those that are awaited apart."""
    members = inspect.getmembers(type(instance), predicate=inspect.isfunction)
    names = [name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")]
    tools = [*trainer._standalone_tools, *(getattr(instance, name) for name in names)]
    awaited = {tool.__name__: tool for tool in tools if inspect.iscoroutinefunction(tool)}
    return {tool.__name__: tool for tool in tools if tool.__name__ not in awaited}, awaited
