"""Corpus statistics as a picture: criteria per rubric, weights, lengths, kinds, and why inputs gave no rubric.

Needs matplotlib, which is an extra: without it the numbers are there all the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from judge_server.generation.statistics import CorpusStatistics

NO_MATPLOTLIB = "plots need matplotlib: pip install 'adjudge[plots]'"

_COLOUR = "#3b6ea5"
_SIZE_INCHES = (11.0, 6.5)
_MAX_LABELS = 6


class MatplotlibMissing(Exception):
    """matplotlib is not installed; the message says what to run."""


def plot_statistics(statistics: CorpusStatistics, file: Path, *, title: str) -> None:
    """Draw the statistics into a file, SVG or PNG by its ending.

    Raises:
        PlotsMissing: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MatplotlibMissing(NO_MATPLOTLIB) from error
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots(2, 3)
    _columns(axes[0, 0], "criteria per rubric", statistics.criteria_counts)
    _columns(axes[0, 1], "weights of criteria", statistics.weight_counts)
    _columns(axes[0, 2], "characters of a description", statistics.length_counts)
    _bars(axes[1, 0], "kinds of criteria", statistics.kinds)
    _bars(axes[1, 1], "rubrics by split", statistics.splits)
    _bars(axes[1, 2], "inputs without a rubric", statistics.discarded)
    figure.suptitle(title, parse_math=False)
    figure.savefig(file)


def _columns(at: Any, name: str, counts: Mapping[str, int]) -> None:
    """One column a number, side by side in order; only some are labelled where there are many."""
    if not _set_title(at, name, counts):
        return
    at.bar(range(len(counts)), list(counts.values()), color=_COLOUR)
    step = -(-len(counts) // _MAX_LABELS)
    at.set_xticks(range(0, len(counts), step), list(counts)[::step])
    at.yaxis.get_major_locator().set_params(integer=True)


def _bars(at: Any, name: str, counts: Mapping[str, int]) -> None:
    """One bar a word, the first on top."""
    if not _set_title(at, name, counts):
        return
    at.barh(list(counts)[::-1], list(counts.values())[::-1], color=_COLOUR)
    at.tick_params(axis="y", labelsize=8)
    at.xaxis.get_major_locator().set_params(integer=True)


def _set_title(at: Any, name: str, counts: Mapping[str, int]) -> bool:
    """Whether there is anything to draw."""
    at.set_title(name, fontsize=10)
    at.spines[["top", "right"]].set_visible(False)
    if not counts:
        at.text(0.5, 0.5, "none", ha="center", va="center", color="grey")
        at.set_axis_off()
    return bool(counts)
