"""Plot DRO's Figure 3 from measured points."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.papers.simulation import REWARDS, Point

# Okabe and Ito's palette, which is safe for colour-blind readers; markers and dashes repeat the distinction.
_STYLES = (("#D55E00", "s", (0, (1.5, 1.5))), ("#E69F00", "^", (0, (5, 2))), ("#0072B2", "o", "solid"))
_INK = "#333333"
_BAND = "middle half of the groups"
_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "svg.hashsalt": "adjudge",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
}


class Panel(NamedTuple):
    """A panel of the plot: points by x, on a logarithmic axis."""

    title: str
    axis: str
    points: Mapping[float, Point]
    percent: bool = False


def draw_panels(panels: Sequence[Panel], file: Path) -> None:
    """Plot the panels side by side into `file`, in the format of its extension."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(10.5, 3.9), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
            _draw(axes, panel)
        figure.axes[0].set_ylabel("correlation with the reflective tokens", color=_INK)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        handles, labels = [*handles[::-1], Patch(color=_INK, alpha=0.13, linewidth=0)], [*labels[::-1], _BAND]
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, handlelength=3.2)
        file.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=160, metadata=metadata)


def _draw(axes: Axes, panel: Panel) -> None:
    x = list(panel.points)
    for index, (name, (colour, marker, dashes)) in enumerate(zip(REWARDS, _STYLES, strict=True)):
        lower, upper = zip(*(point.quartiles[:, index] for point in panel.points.values()), strict=True)
        axes.fill_between(x, lower, upper, color=colour, alpha=0.13, linewidth=0)
        means = [point.means[index] for point in panel.points.values()]
        axes.plot(x, means, color=colour, marker=marker, markersize=4.5, linestyle=dashes, linewidth=1.8, label=name)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(x))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" + "%" * panel.percent))
    axes.set_ylim(-0.3, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color("#AAAAAA")
    axes.tick_params(colors=_INK, length=3, labelsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.set_title(panel.title, fontsize=10, color=_INK, loc="left")
    axes.set_xlabel(panel.axis, color=_INK)
