"""Measures with their intervals as a picture; needs matplotlib, which is an extra."""

from collections.abc import Mapping
from pathlib import Path

from judge_server.evaluation.trajectories import MeasureEstimate
from judge_server.generation.plots import NO_MATPLOTLIB, MatplotlibMissing

_COLOUR = "#3b6ea5"
_WIDTH_INCHES, _INCHES_A_ROW = 8.0, 0.35


def plot_estimates(found: Mapping[str, MeasureEstimate], file: Path, *, title: str) -> None:
    """Draw each measure as a point with its 95% interval, where it has one, into a file, SVG or PNG by its ending.

    Raises:
        PlotsMissing: matplotlib is not installed.
        ValueError: matplotlib does not know the file's ending.
    """
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MatplotlibMissing(NO_MATPLOTLIB) from error
    canvas = Canvas(figsize=(_WIDTH_INCHES, 1.5 + _INCHES_A_ROW * len(found)), layout="constrained")
    axes = canvas.subplots()
    rows = list(found.items())[::-1]
    values = [one.value for _, one in rows]
    below = [max(0.0, one.value - (one.value if one.low is None else one.low)) for _, one in rows]
    above = [max(0.0, (one.value if one.high is None else one.high) - one.value) for _, one in rows]
    axes.errorbar(values, range(len(rows)), xerr=[below, above], fmt="o", color=_COLOUR, capsize=3)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(title)
    canvas.savefig(file)
