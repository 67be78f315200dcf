"""`python -m benchmarks.agreement DATA`: measure binary verdicts against the labels of public data sets.

Contenders ask the same model about the same items: `plain` asks an ordinary hand-written question, `adjudge` does what
the service does for `binary`. Replies are stored in `.cache/agreement`, so that a second run asks only for missing
ones. The data sets are read in place, and none of their text is stored.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from rich.progress import track

from benchmarks.agreement.contenders import CONTENDERS, DEFAULT_CONTENDERS, UnknownContender
from benchmarks.agreement.items import Item, add_item_options, chosen_items
from benchmarks.agreement.metrics import measure
from benchmarks.agreement.store import slug, stored_engine
from benchmarks.agreement.tables import detail, notes, table_rows
from benchmarks.agreement.verdicts import Verdicts, judge_items, started
from benchmarks.report import publish
from judge_server.errors import EngineStartError, InvalidRequest

MODELS = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")


async def judge_tasks(model: str, tasks: dict[str, list[Item]], names: Sequence[str]) -> dict[str, Verdicts]:
    """Let a model judge every item for every contender; return the verdicts by contender."""
    verdicts: dict[str, Verdicts] = {name: {} for name in names}
    async with stored_engine(model) as engine, started(names, engine) as contenders:
        for task, items in tasks.items():
            for name, contender in contenders.items():
                before = engine.asked
                shown = track(items, f"{model} {task} {name}", transient=True, disable=not sys.stdout.isatty())
                judged = await judge_items(contender, shown)
                verdicts[name] |= judged.verdicts
                failures = "".join(f"; {times} failed: {reason}" for reason, times in judged.failures.most_common(3))
                print(f"{model} {task} {name}: {len(items)} items, asked {engine.asked - before}{failures}", flush=True)
    return verdicts


def main() -> None:
    """Measure each model and publish its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_item_options(parser)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=list(DEFAULT_CONTENDERS),
        help=f"{', '.join(CONTENDERS)}, adjudge:DIR (a folder of templates); "
        f"default: {' and '.join(DEFAULT_CONTENDERS)}",
    )
    given = parser.parse_args()
    contenders = list(dict.fromkeys(given.contenders))
    try:
        tasks = chosen_items(given)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    items = [item for of_task in tasks.values() for item in of_task]
    if not items:
        parser.error("no item is left; raise --size or --longest")
    for model in given.models:
        try:
            verdicts = asyncio.run(judge_tasks(model, tasks, contenders))
        except (UnknownContender, EngineStartError, InvalidRequest) as error:
            parser.error(str(error))
        agreement = measure(items, verdicts)
        publish(
            f"agreement_{given.half}_{slug(model)}",
            f"Verdicts against labels, {model}, rows of the half {given.half}",
            table_rows(agreement, contenders),
            notes(contenders),
            detail=detail(agreement, contenders),
        )


if __name__ == "__main__":
    main()
