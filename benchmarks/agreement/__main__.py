"""`python -m benchmarks.agreement DATA`: measure binary verdicts against the labels of public data sets.

Contenders ask the same model about the same items: `plain` is the question anyone would type, `adjudge` is what the
service does for `binary`. Replies are kept in `.cache/agreement`, so a second run asks only what is missing. The data
sets are read where they are, and none of their text is stored.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.agreement.contenders import CONTENDERS, DEFAULT_CONTENDERS, UnknownContender
from benchmarks.agreement.items import LONGEST, TASKS, Item, load_items, tasks_of
from benchmarks.agreement.metrics import measure
from benchmarks.agreement.store import slug, stored_engine
from benchmarks.agreement.tables import detail, notes, table_rows
from benchmarks.agreement.verdicts import Verdicts, judge_items, started
from benchmarks.report import publish
from judge_server.errors import EngineStartError, InvalidRequest

MODELS = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
WIDTH = 200


async def judge_tasks(model: str, tasks: dict[str, list[Item]], names: Sequence[str]) -> dict[str, Verdicts]:
    """Have a model judge every item for every contender; returns the verdicts by contender."""
    found: dict[str, Verdicts] = {name: {} for name in names}
    async with stored_engine(model) as engine, started(names, engine) as contenders:
        for task, items in tasks.items():
            for name, contender in contenders.items():
                before = engine.asked
                shown = track(items, f"{model} {task} {name}", transient=True, disable=not sys.stdout.isatty())
                judged = await judge_items(contender, shown)
                found[name] |= judged.verdicts
                why = "".join(f"; {times} failed: {reason}" for reason, times in judged.failures.most_common(3))
                print(f"{model} {task} {name}: {len(items)} items, asked {engine.asked - before}{why}", flush=True)
    return found


def main() -> None:
    """Measure each model, print its table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--half", choices=["fit", "held"], default="held", help="half of the rows; held unless given")
    parser.add_argument("--size", type=int, default=150, help="most items per task, as many met as not")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), help="all unless given; fit has no healthbench")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=list(DEFAULT_CONTENDERS),
        help=f"{', '.join(CONTENDERS)}, adjudge:DIR (a folder of templates); {' and '.join(DEFAULT_CONTENDERS)} "
        "unless given",
    )
    parser.add_argument("--longest", type=int, default=LONGEST, help="leave out items of more characters than this")
    given = parser.parse_args()
    names = given.tasks or tasks_of(given.half)
    contenders = list(dict.fromkeys(given.contenders))
    try:
        tasks = load_items(given.data, given.half, names, given.size, given.longest)
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
            width=WIDTH,
        )


if __name__ == "__main__":
    main()
