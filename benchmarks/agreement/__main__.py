"""`python -m benchmarks.agreement DATA`: measure binary verdicts against the labels of public data sets.

Contenders ask the same model about the same items: `plain` is the question anyone would type, `adjudge` is what the
service does. Replies are kept in `.cache/agreement`, so a second run asks only what is missing. The data sets are read
where they are, and none of their text is stored.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.agreement.contenders import CONTENDERS, UnknownContender
from benchmarks.agreement.items import LONGEST, MEASURED_ONLY, TASKS, Item, load_items
from benchmarks.agreement.metrics import measure
from benchmarks.agreement.store import ReplyStore, StoredEngine, slug
from benchmarks.agreement.tables import detail, notes, table_rows
from benchmarks.agreement.verdicts import Verdicts, judge_items, started
from benchmarks.report import publish
from judge_server.engines.llamacpp import LlamaCppEngine
from judge_server.errors import EngineStartError, InvalidRequest
from judge_server.ports import Engine

MODELS = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
WIDTH = 200


def engine_of(model: str) -> Engine:
    """The engine of a model: a catalogue name, an `hf://` address or a path."""
    return LlamaCppEngine(model)


async def judge_tasks(model: str, tasks: dict[str, list[Item]], names: Sequence[str]) -> dict[str, Verdicts]:
    """Have a model judge every item for every contender; returns the verdicts by contender."""
    found: dict[str, Verdicts] = {name: {} for name in names}
    inner = engine_of(model)
    engine = StoredEngine(ReplyStore.of_model(model), inner)
    try:
        async with started(names, engine) as contenders:
            for task, items in tasks.items():
                for name, contender in contenders.items():
                    before = engine.asked
                    shown = track(items, f"{model} {task} {name}", transient=True, disable=not sys.stdout.isatty())
                    judged = await judge_items(contender, shown)
                    found[name] |= judged.verdicts
                    why = "".join(f"; {times} failed: {reason}" for reason, times in judged.failures.most_common(3))
                    print(f"{model} {task} {name}: {len(items)} items, asked {engine.asked - before}{why}", flush=True)
    finally:
        await inner.close()
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
        default=list(CONTENDERS),
        help=f"{', '.join(CONTENDERS)}, adjudge:DIR (a folder of templates)",
    )
    parser.add_argument("--longest", type=int, default=LONGEST, help="leave out items of more characters than this")
    given = parser.parse_args()
    names = given.tasks or [task for task in TASKS if given.half == "held" or task not in MEASURED_ONLY]
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
