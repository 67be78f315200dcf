"""How often verdicts of a probability are right, before and after calibration.

`python -m benchmarks.agreement.reliability DATA` reads the replies that `python -m benchmarks.agreement DATA` or
`python -m benchmarks.cascade_curve DATA --ask` stored, on the half `held`, on which nothing was fitted. It prints the
calibration error and the Brier score of each model's probabilities, and the share labelled met in each tenth of the
probabilities, and draws both. *Before* is `raw_probability` of an answer, *after* is `probability`.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.agreement.__main__ import MODELS
from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import Item, load_items, tasks_of
from benchmarks.agreement.verdicts import load_verdicts
from benchmarks.report import publish
from judge_server.errors import EngineStartError
from judge_server.evaluation.html import format_estimate
from judge_server.evaluation.metrics import (
    Estimate,
    ReliabilityBin,
    RowBootstrap,
    VerdictArrays,
    estimate,
    reliability,
)

BEFORE, AFTER = "before", "after"
_STYLES = {BEFORE: ("#D55E00", "s", (0, (4, 2))), AFTER: ("#0072B2", "o", "solid")}
_SETTINGS: dict[Any, Any] = {"font.size": 10, "font.family": "DejaVu Sans"}

Judged = Sequence[tuple[Item, ItemVerdict]]


def probabilities(judged: Judged) -> dict[str, list[float]]:
    """The probabilities of yes before and after calibration."""
    return {
        BEFORE: [verdict.raw_probability for _, verdict in judged],
        AFTER: [verdict.probability for _, verdict in judged],
    }


def error_rows(model: str, judged: Judged) -> list[dict[str, Any]]:
    """The calibration error and the Brier score before and after, with intervals over rows."""
    labels = np.array([item.label for item, _ in judged], dtype=bool)
    rows = [item.row for item, _ in judged]
    weights = RowBootstrap(rows).weights(rows, labels)
    found = []
    for name, values in probabilities(judged).items():
        p = np.array(values, dtype=float)
        sample = VerdictArrays(labels, p >= 0.5, p)
        plain, drawn = sample.figures(), sample.figures(weights)
        row: dict[str, Any] = {"model": model, "calibration": name, "n": len(judged)}
        for figure in ("ece", "brier"):
            row[figure] = format_estimate(estimate(float(plain[figure][0]), drawn[figure]))
        found.append(row)
    return found


def bins_of(judged: Judged) -> dict[str, tuple[ReliabilityBin, ...]]:
    """The reliability before and after, in tenths of the probability."""
    labels = [item.label for item, _ in judged]
    return {name: reliability(values, labels) for name, values in probabilities(judged).items()}


def bin_rows(model: str, bins: Mapping[str, Sequence[ReliabilityBin]]) -> list[dict[str, Any]]:
    """The bins as rows of a table."""
    found = []
    for before, after in zip(bins[BEFORE], bins[AFTER], strict=True):
        row: dict[str, Any] = {"model": model, "probability": f"{after.low:.1f} to {after.high:.1f}"}
        for name, one in ((BEFORE, before), (AFTER, after)):
            share = Estimate(one.share_met, one.share_low, one.share_high)
            row |= {f"n, {name}": one.n, f"labelled met, {name}": format_estimate(share)}
        found.append(row)
    return found


def draw(bins: Mapping[str, Mapping[str, Sequence[ReliabilityBin]]], file: Path) -> None:
    """Plot the bins of each model side by side into `file`, in the format of its extension."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(5.0 * len(bins), 4.6), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(bins), sharey=True))
        for axes, (model, by_name) in zip(panels, bins.items(), strict=True):
            _draw(axes, model, by_name)
        panels[0].set_ylabel("share labelled met")
        panels[0].legend(loc="upper left", frameon=False, handlelength=3)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=160)


def _draw(axes: Axes, model: str, bins: Mapping[str, Sequence[ReliabilityBin]]) -> None:
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="as they should be")
    most = max(one.n for one in bins[AFTER])
    for one in bins[AFTER]:
        axes.bar((one.low + one.high) / 2, 0.15 * one.n / most, width=0.08, color="#0072B2", alpha=0.15)
    for name, series in bins.items():
        colour, marker, dashes = _STYLES[name]
        known = [one for one in series if one.n]
        x, y = [one.mean_probability for one in known], [one.share_met for one in known]
        spread = [[one.share_met - one.share_low for one in known], [one.share_high - one.share_met for one in known]]
        axes.errorbar(
            x, y, yerr=spread, color=colour, marker=marker, markersize=4.5, linestyle=dashes, linewidth=1.8,
            elinewidth=0.8, label=f"{name} calibration",
        )  # fmt: skip
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="probability of yes", title=model)
    axes.set_aspect("equal")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    """Read, measure, publish and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--size", type=int, default=48, help="maximum items per task, half of them met (48)")
    parser.add_argument("--longest", type=int, default=1500, help="maximum characters of an item (1500)")
    parser.add_argument("--folder", type=Path, help="folder of the stored replies (.cache/agreement)")
    parser.add_argument("--plot", type=Path, default=Path("docs/plots/reliability.png"), help="file of the plot")
    given = parser.parse_args()
    tasks = load_items(given.data, "held", tasks_of("held"), given.size, given.longest)
    items = [item for of_task in tasks.values() for item in of_task]
    rows, detail, bins = [], [], {}
    for model in given.models:
        try:
            verdicts = load_verdicts(items, "adjudge", model, given.folder)
        except EngineStartError as error:
            parser.error(str(error))
        judged = [(item, verdicts[item.key]) for item in items if item.key in verdicts]
        if not judged:
            parser.error(f"no reply of {model} is stored for these items; run python -m benchmarks.agreement first")
        bins[model] = bins_of(judged)
        rows += error_rows(model, judged)
        detail += bin_rows(model, bins[model])
    publish("agreement_reliability_errors", "Errors of the probabilities", rows)
    publish("agreement_reliability", "Share labelled met by probability", detail)
    draw(bins, given.plot)


if __name__ == "__main__":
    main()
