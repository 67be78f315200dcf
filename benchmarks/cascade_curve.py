"""`python -m benchmarks.cascade_curve DATA`: agreement against cost of a cascade of two models on public data sets.

It reads the replies that `python -m benchmarks.agreement DATA --contenders adjudge` stored for both models, and with
`--ask` asks for those that lack. Both judge as the service does, with the calibrations that are shipped and were fitted
on the half `fit`. The band is fitted on that half too, and everything is measured on the half `held`, over the items
that both models judged; intervals are bootstrap intervals over rows.
"""

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement.__main__ import judge_tasks
from benchmarks.agreement.items import Item, load_items, tasks_of
from benchmarks.agreement.verdicts import Verdicts, load_verdicts
from benchmarks.report import publish
from judge_server.errors import EngineStartError
from judge_server.evaluation.labelled import Half
from judge_server.evaluation.metrics import Estimate
from judge_server.evaluation.report import Measured
from judge_server.fitting.cascades import (
    CascadePoint,
    JudgementCost,
    PanelItem,
    TooFewVerdictsError,
    VerdictPair,
    cascade_curve,
    fit_band,
    fit_dawid_skene,
    measure_panel,
)
from judge_server.judging.combining import Band

COST = 0.49 / 1.54
"""What a token costs the 0.5B, in tokens of the 1.5B: the ratio of their parameters, in billions."""


def pair_items(items: Sequence[Item], small: Verdicts, large: Verdicts) -> list[VerdictPair]:
    """Pair both models' verdicts on the items that both judged."""

    def measured(item: Item, verdicts: Verdicts) -> Measured:
        one = verdicts[item.key]
        return Measured(
            item.row,
            item.key,
            float(item.label),
            float(one.satisfied),
            one.probability,
            one.raw_probability,
            item.kind,
            item.task,
        )

    both = [item for item in items if item.key in small and item.key in large]
    return [VerdictPair(measured(item, small), measured(item, large)) for item in both]


def cost_of(pairs: Sequence[VerdictPair], verdicts: Verdicts, weight: float = 1.0) -> JudgementCost:
    """The mean cost of a model's judgements: seconds, computed tokens times `weight`, and calls."""
    own = [verdicts[one.small.criterion] for one in pairs]
    return JudgementCost(
        statistics.fmean(one.seconds for one in own), weight * statistics.fmean(one.tokens_computed for one in own), 1.0
    )


def panel_figures(fit: Sequence[VerdictPair], held: Sequence[VerdictPair]) -> dict[str, Estimate]:
    """The balanced accuracy of each model, of both with equal weights, and of both by error rates of the half `fit`."""
    votes = np.array([[bool(one.small.score), bool(one.large.score)] for one in fit], dtype=np.int8)
    model = fit_dawid_skene(votes, np.array([one.small.label for one in fit], dtype=np.int8)).model
    items = [PanelItem(one.small.row, bool(one.small.label), (one.small, one.large)) for one in held]
    figures = measure_panel(items, ("small", "large"), model)
    return {name: one["balanced_accuracy"] for name, one in figures.items()}


def curve_rows(points: Sequence[CascadePoint], fitted: Band | None) -> list[dict[str, Any]]:
    """The points as rows of a table; costs are relative to the large model alone."""
    whole = points[10]
    spent = whole.tokens_computed - points[0].tokens_computed
    rows = []
    for one in points:
        name = f"{one.band.low:.3f} to {one.band.high:.3f}" + (" (fitted)" if one.band == fitted else "")
        rows.append(
            {
                "band": name,
                "escalated": cell(one.escalated),
                "agreement with the large model": cell(one.agreement),
                "balanced accuracy": cell(one.balanced_accuracy),
                "tokens, as of the large model": f"{one.tokens_computed:.0f}",
                "of the large model's cost": f"{one.tokens_computed / spent:.2f}",
            }
        )
    return rows


def cell(one: Estimate) -> str:
    """A value with its interval."""
    return f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"


def main() -> None:
    """Read or ask, fit, measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--small", default="qwen2.5-coder-0.5b")
    parser.add_argument("--large", default="qwen2.5-coder-1.5b")
    parser.add_argument("--size", type=int, default=48, help="maximum items per task, half of them met (48)")
    parser.add_argument("--longest", type=int, default=1500, help="maximum characters of an item (1500)")
    parser.add_argument("--error", type=float, default=0.1, help="wanted rate of changed verdicts (0.1)")
    parser.add_argument("--cost", type=float, default=COST, help="cost of a token of the small model (0.32)")
    parser.add_argument("--folder", type=Path, help="folder of the stored replies (.cache/agreement)")
    parser.add_argument("--ask", action="store_true", help="ask for replies that lack; not with --folder")
    given = parser.parse_args()
    if given.ask and given.folder is not None:
        parser.error("--ask adds replies to .cache/agreement; leave out --folder")

    def judged(half: Half) -> tuple[list[VerdictPair], Verdicts, Verdicts]:
        tasks = load_items(given.data, half, tasks_of(half), given.size, given.longest)
        items = [item for of_task in tasks.values() for item in of_task]
        found = []
        for model in (given.small, given.large):
            if given.ask:
                asyncio.run(judge_tasks(model, tasks, ["adjudge"]))
            found.append(load_verdicts(items, "adjudge", model, given.folder))
        small, large = found
        pairs = pair_items(items, small, large)
        print(f"{half}: {len(items)} items; replies of {len(small)} and {len(large)}, of both for {len(pairs)}")
        return pairs, small, large

    try:
        fit, _, _ = judged("fit")
        held, small, large = judged("held")
    except EngineStartError as error:
        parser.error(str(error))
    if not held:
        parser.error("both models judged no item of the half held; give --ask")
    notes, band = [f"{len(held)} verdicts of {len({one.small.row for one in held})} rows of the half held"], None
    try:
        band = fit_band(fit, given.error)
    except TooFewVerdictsError as error:
        notes.append(f"no band for an error of {given.error:g}: {error}")
    points = cascade_curve(held, cost_of(held, small, given.cost), cost_of(held, large), [band] if band else [])
    try:
        figures = panel_figures(fit, held)
        notes += [f"panel, {name}: balanced accuracy {cell(one)}" for name, one in figures.items()]
    except ValueError as error:
        notes.append(f"no panel: {error}")
    publish("cascade_curve", f"{given.small} before {given.large}", curve_rows(points, band), notes)


if __name__ == "__main__":
    main()
