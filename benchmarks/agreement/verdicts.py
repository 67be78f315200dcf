"""Verdicts of contenders on items, from a model or from the store without a model."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.agreement.contenders import Contender, ItemVerdict, make_contender
from benchmarks.agreement.items import Item
from benchmarks.agreement.store import ReplyStore, StoredEngine

Verdicts = dict[str, ItemVerdict]
"""Verdicts by the key of their item; an item whose judgement failed has none."""


@dataclass(slots=True)
class JudgedItems:
    """The verdicts on items, and the failures of the others by reason."""

    verdicts: Verdicts = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)


async def judge_items(contender: Contender, items: Iterable[Item]) -> JudgedItems:
    """Judge items one after another, in order."""
    judged = JudgedItems()
    for item in items:
        outcome = await contender.judge(item)
        if isinstance(outcome, ItemVerdict):
            judged.verdicts[item.key] = outcome
        else:
            judged.failures[f"{outcome.kind}: {outcome.detail}"] += 1
    return judged


@asynccontextmanager
async def started(names: Sequence[str], engine: StoredEngine) -> AsyncIterator[dict[str, Contender]]:
    """Start contenders; yield them by name and close them at the end."""
    contenders = {name: make_contender(name, engine) for name in names}
    open_contenders: list[Contender] = []
    try:
        for contender in contenders.values():
            await contender.start()
            open_contenders.append(contender)
        yield contenders
    finally:
        for contender in open_contenders:
            await contender.close()


def load_verdicts(items: Iterable[Item], contender: str, model: str, folder: Path | None = None) -> Verdicts:
    """Read the verdicts in a model's store, without loading the model.

    Items without a stored reply are left out. Only replies with the weights and the engine build of the latest reply in
    the store count.

    Args:
        items: the items.
        contender: a contender's name, such as `plain` or `adjudge`.
        model: the model's reference as it was measured, such as `qwen2.5-coder-0.5b`.
        folder: the folder of the stores; `.cache/agreement` by default.

    Raises:
        EngineStartError: the store has no replies of the model.
        UnknownContender: the contender does not exist.
    """

    async def read() -> Verdicts:
        engine = StoredEngine(ReplyStore.of_model(model, folder), None)
        async with started([contender], engine) as by_name:
            chosen = by_name[contender]
            stored = [item for item in items if all(map(engine.find, chosen.batches(item)))]
            return (await judge_items(chosen, stored)).verdicts

    return asyncio.run(read())
