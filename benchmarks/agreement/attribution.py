"""Compare the steps that `stepwise` names as deciding a criterion with rules that use only a step's position.

`python -m benchmarks.agreement.attribution DATA` measures two tasks: the first wrong step of ProcessBench solutions
(labels by humans), and the step of a GSM8K solution that makes a given calculation (labels by program).
"""

import argparse
import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement.contenders import AdjudgeContender
from benchmarks.agreement.items import CALCULATION, Half, Item
from benchmarks.agreement.store import StoredEngine, slug, stored_engine
from benchmarks.data import GSM8K, GSM8K_MODELS, PROCESSBENCH, in_steps, rows
from benchmarks.report import publish
from judge_server.judging.calibration import builtin_calibrations
from judge_server.ports import CallFailure


@dataclass(frozen=True, slots=True)
class StepItem:
    """A criterion that one step of a response decides: the item, the number of the step, and the number of steps."""

    item: Item
    step: int
    steps: int


def first_wrong_step(folder: Path) -> Iterator[StepItem]:
    """Yield wrong solutions of ProcessBench; the step is the first wrong one according to the annotators."""
    for row in rows(folder / PROCESSBENCH, wanted=lambda row: row["label"] >= 0):
        criterion = "A step that reasons or calculates wrongly."
        item = Item("first-wrong-step", row["id"], row["problem"], in_steps(row["steps"]), criterion, True, "pitfall")
        yield StepItem(item, row["label"] + 1, len(row["steps"]))


def calculating_step(folder: Path) -> Iterator[StepItem]:
    """Yield calculations that only one line of a rollout makes, where lines are steps. Later lines may use the result.

    The criterion is worded differently from the line, so that the line cannot be recognised by its spelling.
    """
    for row in rows(folder / GSM8K):
        for model in GSM8K_MODELS:
            lines = [line for line in row[model]["solution"].split("\n") if line.strip()]
            results = [[result for _, result in CALCULATION.findall(line)] for line in lines]
            every = [result for line_results in results for result in line_results]
            response = in_steps([CALCULATION.sub("", line) for line in lines])
            for number, line_results in enumerate(results, 1):
                alone = [result for result in line_results if every.count(result) == 1]
                if alone and len(lines) > 2:
                    criterion = f"Works out an intermediate result of {alone[-1]}."
                    item = Item("calculating-step", row["question"], row["question"], response, criterion, True)
                    yield StepItem(item, number, len(lines))


STEP_TASKS: Mapping[str, Callable[[Path], Iterator[StepItem]]] = {
    "first-wrong-step": first_wrong_step,
    "calculating-step": calculating_step,
}

RULES: Mapping[str, Callable[[int], int]] = {
    "first": lambda steps: 1,
    "second": lambda steps: min(2, steps),
    "middle": lambda steps: (steps + 1) // 2,
    "last": lambda steps: steps,
}
"""Rules that use only the number of steps."""


def load_step_items(folder: Path, half: Half, size: int, longest: int) -> dict[str, list[StepItem]]:
    """Read at most `size` items of each task in one half of the rows, at most `longest` characters long."""
    items = {}
    for task, make in STEP_TASKS.items():
        short = [s for s in make(folder) if s.item.half == half and len(s.item.prompt + s.item.response) <= longest]
        items[task] = sorted(short, key=lambda step_item: step_item.item.key)[:size]
    return items


async def ask_steps(engine: StoredEngine, items: Sequence[StepItem]) -> dict[str, int | None]:
    """Return the step that `stepwise` names for each item, by the item's key; failed judgements are left out.

    The judge is asked for a step even where the service does not, because of what was measured before.
    """
    calibrations = builtin_calibrations().model_copy(update={"step_blind": ()})
    contender = AdjudgeContender(engine, protocol="stepwise", calibrations=calibrations)
    await contender.start()
    named: dict[str, int | None] = {}
    for one in items:
        answer = await contender.answer(one.item)
        if not isinstance(answer, CallFailure):
            named[one.item.key] = answer[0].step
    await contender.close()
    return named


def table_rows(
    fit: Mapping[str, Sequence[StepItem]], held: Mapping[str, Sequence[StepItem]], named: Mapping[str, int | None]
) -> list[dict[str, Any]]:
    """Return a row per task. The rule of place is the one that is right most often on the half `fit`."""
    table = []
    for task, items in held.items():
        judged = [one for one in items if one.item.key in named]
        rule = max(RULES, key=lambda name: np.mean([RULES[name](one.steps) == one.step for one in fit[task]]))
        by_judge = np.array([named[one.item.key] == one.step for one in judged])
        by_rule = np.array([RULES[rule](one.steps) == one.step for one in judged])
        answered = np.array([(named[one.item.key] or 0) > 0 for one in judged])
        table.append(
            {
                "task": task,
                "n": len(judged),
                "failed": len(items) - len(judged),
                "chance": f"{np.mean([1 / one.steps for one in judged]):.2f}",
                "rule of place": f"{by_rule.mean():.2f} ({rule})",
                "stepwise": f"{by_judge.mean():.2f}",
                "difference": _interval(by_judge.astype(float) - by_rule),
                "names a step": f"{answered.mean():.0%}",
                "right where it does": f"{by_judge[answered].mean():.2f}" if answered.any() else "-",
            }
        )
    return table


def _interval(differences: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    rng = np.random.default_rng(1)
    means = rng.choice(differences, size=(1000, len(differences))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{differences.mean():+.2f} [{low:+.2f}, {high:+.2f}]"


def main() -> None:
    """Measure the steps that each model names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--size", type=int, default=40, help="maximum items per task")
    parser.add_argument("--longest", type=int, default=1500, help="maximum characters of prompt and response")
    parser.add_argument("--models", nargs="+", default=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    given = parser.parse_args()
    fit = load_step_items(given.data, "fit", 10_000, given.longest)
    held = load_step_items(given.data, "held", given.size, given.longest)

    async def ask(model: str) -> dict[str, int | None]:
        async with stored_engine(model) as engine:
            return await ask_steps(engine, [one for items in held.values() for one in items])

    for model in given.models:
        named = asyncio.run(ask(model))
        notes = [
            "share of items whose step is named correctly, on rows of the half held; rule of place: the best of "
            f"{', '.join(RULES)} on the half fit;",
            "difference: stepwise - rule, 95% interval of 1,000 resamples",
        ]
        publish(f"attribution_{slug(model)}", f"Steps named, {model}", table_rows(fit, held, named), notes)


if __name__ == "__main__":
    main()
