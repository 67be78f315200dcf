"""`python -m benchmarks.agreement.labels DATA`: what a few labels of a task do for the default judge's other verdicts.

Run `python -m benchmarks.agreement DATA` first: this command reads its stored replies and does not load a model. Of
each task, labels are drawn again and again, by rows; a calibration is fitted on them as `adjudge calibrate` does, and
measured on rows that no number of labels of that draw contains. Nothing is drawn from HealthBench, whose licence asks
not to train on it.

- *no label* is the judge as it ships.
- *ECE by chance* is what the calibration error would be, on as many items, if every probability were right.
- With `--error`, *decided* and *wrong* are the share of verdicts outside the band for that rate, and the rate that came
  out over all draws; *no band* is the share of draws in which the labels could not show it, and *broken* that of the
  others in which more of the measured verdicts were wrong than promised, which chance alone does to few of them.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import Item, add_item_options, chosen_items
from benchmarks.agreement.store import slug
from benchmarks.agreement.verdicts import Verdicts, load_verdicts
from benchmarks.report import publish
from judge_server.evaluation.fitting.calibrations import (
    NotEnoughLabelsError,
    band_for_error,
    cross_validate,
    fit_calibration,
    outside,
)
from judge_server.evaluation.labelled import criterion
from judge_server.evaluation.metrics import Bools, VerdictArrays
from judge_server.evaluation.report import Measured
from judge_server.judging.calibration import Calibration

LABELS = (8, 16, 32, 64)
FEWEST_MEASURED = 24
"""The fewest items of a task that are left to measure on."""

Curves = Mapping[str, Mapping[str, Mapping[int, float]]]
"""A figure by its name, the task and the number of labels; the mean over draws."""


class JudgedTask(NamedTuple):
    """The verdicts on a task's items that have one, and the description of each one's criterion."""

    name: str
    verdicts: tuple[Measured, ...]
    descriptions: Mapping[tuple[str, str], str]

    def split(self, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        """Return the places of the verdicts to draw labels from, in random order of rows, and of those to measure."""
        rows = [one.row for one in self.verdicts]
        order = rng.permutation(sorted(set(rows)))
        shuffled = [place for row in order for place, own in enumerate(rows) if own == row]
        most = max([k for k in LABELS if len(rows) - k >= FEWEST_MEASURED], default=0)
        labelled = {rows[place] for place in shuffled[:most]}
        return shuffled[:most], [place for place in shuffled if rows[place] not in labelled]


def task_of(name: str, items: Sequence[Item], verdicts: Verdicts) -> JudgedTask:
    """Return a task's verdicts as `adjudge calibrate` has them."""
    known: list[tuple[Item, ItemVerdict]] = [(item, verdicts[item.key]) for item in items if item.key in verdicts]
    measured = [
        Measured(
            item.row, item.key, float(item.label), float(own.satisfied), own.probability, own.raw_probability, item.kind
        )
        for item, own in known
    ]
    descriptions = {(item.row, item.key): item.criterion for item, _ in known}
    return JudgedTask(name, tuple(measured), descriptions)


def measure_labels(tasks: Sequence[JudgedTask], draws: int) -> Curves:
    """Return each figure by task and number of labels, 0 for the judge as it ships."""
    found: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for draw in range(draws):
        for task in tasks:
            given, rest = task.split(np.random.default_rng([draw, 1]))
            for k in [k for k in (0, *LABELS) if k <= len(given) and rest]:
                maps = calibrate([task.verdicts[place] for place in given[:k]], task.descriptions) if k else None
                for name, value in figures(task, rest, maps, draw).items():
                    found[name][task.name][k].append(value)
    return {
        name: {task: {k: _mean(own) for k, own in by_k.items()} for task, by_k in by_task.items()}
        for name, by_task in found.items()
    }


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the numbers that are known; nan without any."""
    known = [value for value in values if value == value]
    return float(np.mean(known)) if known else float("nan")


def calibrate(some: Sequence[Measured], descriptions: Mapping[tuple[str, str], str]) -> Calibration | None:
    """Fit a calibration as `adjudge calibrate` does; None where it refuses, as for labels of one row."""
    if len({one.row for one in some}) < 2:
        return None
    try:
        return fit_calibration(some, descriptions, name="draw")[1]
    except ValueError:
        return None


def figures(task: JudgedTask, rest: Sequence[int], maps: Calibration | None, draw: int) -> dict[str, float]:
    """Return the figures of some of a task's verdicts, with the calibration error that chance gives in this draw."""
    verdicts = calibrated(task, rest, maps)
    chance = np.random.default_rng([draw, 2]).random(len(rest)) < verdicts.probabilities
    measured = verdicts.figures()
    by_chance = replace(verdicts, labels=chance).calibration_error(np.ones((1, len(rest))))
    return {
        "balanced_accuracy": float(measured["balanced_accuracy"][0]),
        "ece": float(measured["ece"][0]),
        "ece by chance": float(by_chance[0]),
        "brier": float(measured["brier"][0]),
    }


def calibrated(task: JudgedTask, rest: Sequence[int], maps: Calibration | None) -> VerdictArrays:
    """Apply maps to verdicts; None for the judge as it ships."""
    some = [task.verdicts[place] for place in rest]
    labels: Bools = np.array([one.label == 1 for one in some])
    if maps is None:
        shipped = np.array([one.likelihood for one in some])
        return VerdictArrays(labels, shipped >= 0.5, shipped)
    own = [maps.scaling_for(criterion("c", task.descriptions[one.row, one.criterion], one.kind)) for one in some]
    p = np.array([of.calibrate(one.raw_probability or 0.0) for of, one in zip(own, some, strict=True)])
    return VerdictArrays(labels, p >= 0.5, p)


def check_bands(tasks: Sequence[JudgedTask], error: float, draws: int) -> list[dict[str, Any]]:
    """Fit the band for a promised rate of errors on most of a task's items, and count the errors on the rest."""
    rows = []
    for task in tasks:
        decided, wrong, none, broken = [], [], 0, 0
        for draw in range(draws):
            order = np.random.default_rng([draw, 3]).permutation(sorted({one.row for one in task.verdicts}))
            fitted_rows = set(order[: 2 * len(order) // 3])
            given = [one for one in task.verdicts if one.row in fitted_rows]
            rest = [place for place, one in enumerate(task.verdicts) if one.row not in fitted_rows]
            maps = calibrate(given, task.descriptions)
            try:
                band = band_for_error(cross_validate(given, task.descriptions, method="platt"), error)
            except NotEnoughLabelsError:
                none += 1
                continue
            verdicts = calibrated(task, rest, maps)
            certain = outside(verdicts.probabilities, band)
            decided.append(float(certain.mean()))
            errors = (verdicts.satisfied != verdicts.labels)[certain]
            wrong += errors.tolist()
            broken += bool(len(errors) and errors.mean() > error)
        rows.append(
            {
                "task": task.name,
                "labels": 2 * len(task.verdicts) // 3,
                "no band": f"{none / draws:.0%}",
                "decided": f"{np.mean(decided):.0%}" if decided else "–",
                "wrong": f"{np.mean(wrong):.1%}" if wrong else "–",
                "broken": f"{broken / (draws - none):.0%}" if none < draws else "–",
            }
        )
    return rows


def table(curves: Curves) -> list[dict[str, Any]]:
    """Return a row per figure and task, and for the means over tasks with 32 and with 64 labels."""
    rows: list[dict[str, Any]] = []
    for name, by_task in curves.items():
        shown = dict(by_task)
        for most in LABELS[-2:]:
            whole = [own for own in by_task.values() if most in own]
            known = [k for k in (0, *LABELS) if k <= most]
            if whole:
                shown |= {f"mean of {len(whole)}": {k: float(np.mean([own[k] for own in whole])) for k in known}}
        for task, own in shown.items():
            cells = {"no label" if not k else f"{k}": f"{own[k]:.2f}" if k in own else "" for k in (0, *LABELS)}
            rows.append({"figure": name.replace("_", " "), "task": task, **cells})
    return rows


def main() -> None:
    """Print the curves of each model, and write them to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_item_options(parser)
    parser.add_argument("--models", nargs="+", default=["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"])
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--error", type=float, default=0.2, help="the promised rate of errors")
    given = parser.parse_args()
    items = chosen_items(given, without=["healthbench"])
    for model in given.models:
        verdicts = load_verdicts([item for own in items.values() for item in own], "adjudge", model)
        tasks = [task for name, own in items.items() if (task := task_of(name, own, verdicts)).verdicts]
        if not tasks:
            parser.error(
                f"there are no stored replies of {model}; run python -m benchmarks.agreement {given.data} first"
            )
        curves = measure_labels(tasks, given.draws)
        title = f"Verdicts after a few labels of the task, {model}, rows of the half {given.half}"
        publish(f"labels_{given.half}_{slug(model)}", title, table(curves), [f"{given.draws} draws"], detail=curves)
        publish(
            f"bands_{given.half}_{slug(model)}",
            f"Bands for at most {given.error:.0%} wrong verdicts, {model}",
            check_bands(tasks, given.error, given.draws),
        )


if __name__ == "__main__":
    main()
