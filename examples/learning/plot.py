"""Draw learning curves: the mean over the seeds, and a band from the lowest to the highest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for color-blind readers; dashes repeat the distinction.
_STYLES = (
    ("#000000", "solid"),
    ("#E69F00", (0, (5, 2))),
    ("#0072B2", "solid"),
    ("#D55E00", (0, (1.5, 1.5))),
    ("#009E73", (0, (5, 2))),
    ("#CC79A7", (0, (3, 1, 1, 1))),
    ("#56B4E9", (0, (1.5, 1.5))),
    ("#8C6D31", (0, (7, 1.5))),
    ("#999999", (0, (3, 1, 1, 1))),
)
_INK = "#333333"
_WINDOW = 9
_SETTINGS: dict[Any, Any] = {"font.size": 10, "svg.hashsalt": "adjudge", "font.family": "DejaVu Sans"}

Curves = Mapping[str, Sequence[Sequence[float]]]
"""Curves by label, one per seed."""


def draw(panels: Mapping[str, Curves], files: Sequence[Path]) -> None:
    """Draw panels with a title and curves side by side, and save them; the file extension sets the format."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(10.5, 4.4), layout="constrained")
        for axes, (title, curves) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            _draw(axes, title, curves)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9, columnspacing=1.4
        )
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=160, metadata={"Date": None} if file.suffix == ".svg" else {})


def smoothed(curve: Sequence[float], window: int = _WINDOW) -> np.ndarray:
    """Return the moving average, over fewer values at the ends."""
    kernel = np.ones(min(window, len(curve)))
    counts = np.convolve(np.ones(len(curve)), kernel, mode="same")
    averaged: np.ndarray = np.convolve(np.asarray(curve, dtype=float), kernel, mode="same") / counts
    return averaged


def _draw(axes: Axes, title: str, curves: Curves) -> None:
    for (label, seeds), (colour, dashes) in zip(curves.items(), _STYLES, strict=False):
        smooth = np.stack([smoothed(curve) for curve in seeds])
        x = np.arange(1, smooth.shape[1] + 1)
        axes.fill_between(x, smooth.min(axis=0), smooth.max(axis=0), color=colour, alpha=0.12, linewidth=0)
        axes.plot(x, smooth.mean(axis=0), color=colour, linestyle=dashes, linewidth=1.8, label=label)
    axes.set_title(title, fontsize=10, color=_INK, loc="left")
    axes.set_xlabel("training step", color=_INK)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(xmax=1, decimals=None))
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#AAAAAA")
    axes.tick_params(colors=_INK, length=3, labelsize=8.5)
