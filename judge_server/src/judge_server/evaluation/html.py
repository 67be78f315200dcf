"""The evaluation of a judge as one self-contained HTML page: tables and plots, in light and in dark.

The page fetches nothing: its style is inline and its plots are SVG. Plots take their colours from the style, so that
they follow the reader's choice of light or dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import isnan
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from judge_server.evaluation.metrics import Estimate, ReliabilityBin
from judge_server.evaluation.report import FEW_ROWS, Evaluation, Slice

HEADINGS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "kappa": "kappa",
    "f1": "balanced F1",
    "auroc": "AUROC",
    "ece": "ECE",
    "brier": "Brier",
    "yes_rate": "yes",
    "label_rate": "met",
}
"""The names of the figures as tables show them."""

CHANGES: Mapping[str, str] = {
    "order": "criteria in reverse order",
    "paraphrase": "criteria in other words",
    "length": "a paragraph without content added to the response",
}

_MOST_PARTS = 40


def format_estimate(one: Estimate, digits: int = 2) -> str:
    """Format a figure with its interval, such as `0.71 [0.62, 0.79]`; a dash if it is undefined."""
    if isnan(one.value):
        return "–"
    interval = "" if isnan(one.low) else f" [{one.low:.{digits}f}, {one.high:.{digits}f}]"
    return f"{one.value:.{digits}f}{interval}"


def html_report(evaluation: Evaluation, heading: Mapping[str, Any]) -> str:
    """Render the page.

    Args:
        evaluation: the report.
        heading: what was measured, shown at the top: names and texts.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["estimate"] = format_estimate
    template = environment.from_string(
        (files("judge_server.evaluation") / "report.html.jinja").read_text(encoding="utf-8")
    )
    parts = [one for one in evaluation.slices if one.by != "all"]
    return template.render(
        evaluation=evaluation,
        heading=heading,
        headings=HEADINGS,
        changes=CHANGES,
        few_rows=FEW_ROWS,
        rows=evaluation.overall.rows,
        reliability_plot=reliability_plot(evaluation.bins, evaluation.raw_bins) if evaluation.bins else "",
        roc_plot=roc_plot(evaluation.curve) if evaluation.curve else "",
        parts_plot=interval_plot(parts) if parts else "",
    )


_SIDE, _LEFT, _BOTTOM, _TOP = 280, 46, 40, 12


def _x(value: float) -> float:
    return round(_LEFT + value * _SIDE, 1)


def _y(value: float) -> float:
    return round(_TOP + (1 - value) * _SIDE, 1)


def _frame(x_title: str, y_title: str, inner: Iterable[str], label: str) -> Markup:
    """Return a square plot with both axes from 0 to 1."""
    grid = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        grid.append(f'<line class="grid" x1="{_x(tick)}" y1="{_y(0)}" x2="{_x(tick)}" y2="{_y(1)}"/>')
        grid.append(f'<line class="grid" x1="{_x(0)}" y1="{_y(tick)}" x2="{_x(1)}" y2="{_y(tick)}"/>')
        grid.append(f'<text class="tick" x="{_x(tick)}" y="{_y(0) + 15}" text-anchor="middle">{tick:g}</text>')
        grid.append(f'<text class="tick" x="{_x(0) - 6}" y="{_y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    grid.append(f'<line class="chance" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>')
    titles = (
        f'<text class="axis" x="{_x(0.5)}" y="{_y(0) + 33}" text-anchor="middle">{escape(x_title)}</text>'
        f'<text class="axis" transform="translate(12 {_y(0.5)}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>"
    )
    width, height = _LEFT + _SIDE + 14, _TOP + _SIDE + _BOTTOM
    return Markup(  # no text but escaped names # noqa: S704 # nosec B704
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(label)}">'
        f"{''.join(grid)}{''.join(inner)}{titles}</svg>"
    )


def reliability_plot(bins: Sequence[ReliabilityBin], raw: Sequence[ReliabilityBin] = ()) -> Markup:
    """Plot the share labelled met against the probability of yes, with the number of judgements per bin below."""
    most = max(one.n for one in bins)
    marks = [
        f'<rect class="count" x="{_x(one.low) + 2}" y="{_y(0.2 * one.n / most)}" width="{_SIDE / len(bins) - 4}" '
        f'height="{round(0.2 * _SIDE * one.n / most, 1)}"><title>{one.n} judgements</title></rect>'
        for one in bins
        if one.n
    ]
    for name, series in (("raw", raw), ("main", bins)):
        known = [one for one in series if one.n]
        path = " ".join(f"{_x(one.mean_probability)},{_y(one.share_met)}" for one in known)
        marks.append(f'<polyline class="line {name}" points="{path}"/>')
        for one in known:
            x = _x(one.mean_probability)
            if name == "main":
                marks.append(
                    f'<line class="bar" x1="{x}" y1="{_y(one.share_low)}" x2="{x}" y2="{_y(one.share_high)}"/>'
                )
            marks.append(
                f'<circle class="dot {name}" cx="{x}" cy="{_y(one.share_met)}" r="{4 if name == "main" else 3}">'
                f"<title>probability {one.mean_probability:.2f}, met {one.share_met:.2f} "
                f"[{one.share_low:.2f}, {one.share_high:.2f}], n = {one.n}</title></circle>"
            )
    return _frame("probability of yes", "share labelled met", marks, "Reliability of the probability of yes")


def roc_plot(curve: Sequence[tuple[float, float]]) -> Markup:
    """Plot the share of met items found against the share of unmet items accepted."""
    path = " ".join(f"{_x(false)},{_y(true)}" for false, true in curve)
    return _frame("unmet judged met", "met judged met", [f'<polyline class="line main" points="{path}"/>'], "ROC curve")


def interval_plot(parts: Sequence[Slice]) -> Markup:
    """Plot the balanced accuracy of each part with its interval, or its accuracy where only one label occurs."""
    shown, line, left, side = list(parts)[:_MOST_PARTS], 24, 230, 420
    marks, y = [], 18
    bottom = 18 + line * len(shown)
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = left + tick * side
        style = "chance" if tick == 0.5 else "grid"
        marks.append(f'<line class="{style}" x1="{x}" y1="8" x2="{x}" y2="{bottom}"/>')
        marks.append(f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for one in shown:
        figure, kind = one.figures["balanced_accuracy"], "main"
        if isnan(figure.value):
            figure, kind = one.figures["accuracy"], "raw"
        name = one.name or "(none)"
        name = name if len(name) <= 22 else name[:21] + "…"
        marks.append(
            f'<text class="name" x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(name)} '
            f'<tspan class="tick">n={one.n}</tspan></text>'
        )
        if not isnan(figure.value):
            ends = [left + min(max(v, 0.0), 1.0) * side for v in (figure.low, figure.high) if not isnan(v)]
            if ends:
                marks.append(f'<line class="bar" x1="{ends[0]:.1f}" y1="{y}" x2="{ends[1]:.1f}" y2="{y}"/>')
            marks.append(
                f'<circle class="dot {kind}" cx="{left + figure.value * side:.1f}" cy="{y}" r="4">'
                f"<title>{format_estimate(figure)}</title></circle>"
            )
        y += line
    return Markup(  # no text but escaped names # noqa: S704 # nosec B704
        f'<svg viewBox="0 0 {left + side + 20} {bottom + 24}" width="{left + side + 20}" role="img" '
        f'aria-label="Balanced accuracy by part">{"".join(marks)}</svg>'
    )
