"""Evaluations and bake-offs of judges as self-contained HTML pages: tables and plots, in light and in dark.

A page fetches nothing: its style is inline and its plots are SVG. Plots take their colours from the style, so that
they follow the reader's choice of light or dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import floor, isnan, log10
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from judge_server.evaluation.bakeoff import PAIRS_RIGHT, VERDICT_FIGURES, BakeOff, Cost
from judge_server.evaluation.metrics import UNDEFINED, CascadePoint, Estimate, ReliabilityBin
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

QUALITY_HEADINGS: Mapping[str, str] = {**HEADINGS, PAIRS_RIGHT: "pairs judged right"}

COST_DIGITS: Mapping[Cost, int] = {"seconds": 2, "tokens_computed": 0, "tokens_written": 1, "calls": 2}
"""Digits after the point with which tables show a cost of a judgement."""

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
    parts = [one for one in evaluation.slices if one.by != "all"]
    return (
        page_environment()
        .get_template("report.html.jinja")
        .render(
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
    )


def bakeoff_html(found: BakeOff, heading: Mapping[str, Any]) -> str:
    """Render the page of a bake-off. `heading` says what was measured: names and texts."""
    with_figures = [one for one in found.results if not one.problem]
    return (
        page_environment()
        .get_template("bakeoff.html.jinja")
        .render(
            found=found,
            heading=heading,
            headings=QUALITY_HEADINGS,
            quality=names_of(found),
            digits=COST_DIGITS,
            undefined=UNDEFINED,
            few_rows=FEW_ROWS,
            few=any(one.rows < FEW_ROWS for one in with_figures),
            first=with_figures[0].contender.name if len(with_figures) > 1 else "",
            plot=front_plot(found),
        )
    )


def names_of(found: BakeOff) -> list[str]:
    """Return the quality figures that some contender has, in the order in which tables show them."""
    return [n for n in (*VERDICT_FIGURES, PAIRS_RIGHT) if any(n in one.quality for one in found.results)]


def page_environment() -> Environment:
    """Return the environment of the pages' templates, which lie beside this module."""
    folder = files("judge_server.evaluation")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.filters["estimate"] = format_estimate
    return environment


_SIDE, _LEFT, _BOTTOM, _TOP = 280, 46, 40, 12


def _x(value: float) -> float:
    return round(_LEFT + value * _SIDE, 1)


def _y(value: float) -> float:
    return round(_TOP + (1 - value) * _SIDE, 1)


def _frame(x_title: str, y_title: str, inner: Iterable[str], label: str, *, diagonal: bool = True) -> Markup:
    """Return a square plot with both axes from 0 to 1."""
    grid = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        grid.append(f'<line class="grid" x1="{_x(tick)}" y1="{_y(0)}" x2="{_x(tick)}" y2="{_y(1)}"/>')
        grid.append(f'<line class="grid" x1="{_x(0)}" y1="{_y(tick)}" x2="{_x(1)}" y2="{_y(tick)}"/>')
        grid.append(f'<text class="tick" x="{_x(tick)}" y="{_y(0) + 15}" text-anchor="middle">{tick:g}</text>')
        grid.append(f'<text class="tick" x="{_x(0) - 6}" y="{_y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    if diagonal:
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


def cascade_html(points: Sequence[CascadePoint], chosen: CascadePoint | None, heading: Mapping[str, Any]) -> str:
    """Render the page of a cascade's curve; `chosen` is the point of the fitted band, if there is one."""
    template = page_environment().get_template("cascade.html.jinja")
    return template.render(points=points, chosen=chosen, heading=heading, plot=cascade_plot(points, chosen))


def cascade_plot(points: Sequence[CascadePoint], chosen: CascadePoint | None) -> Markup:
    """Plot agreement with the large judge, and balanced accuracy, against the share escalated to it."""
    marks = []
    for name in ("balanced_accuracy", "agreement"):
        kind = "main" if name == "agreement" else "raw"
        known = [(one.escalated.value, getattr(one, name)) for one in points]
        known = [(share, figure) for share, figure in known if not isnan(figure.value)]
        path = " ".join(f"{_x(share)},{_y(figure.value)}" for share, figure in known)
        marks.append(f'<polyline class="line {kind}" points="{path}"/>')
        at = [(chosen.escalated.value, getattr(chosen, name), 6)] if chosen is not None else []
        for share, figure, size in [*((*one, 3) for one in known), *at]:
            x = _x(share)
            if not isnan(figure.low):
                marks.append(f'<line class="bar" x1="{x}" y1="{_y(figure.low)}" x2="{x}" y2="{_y(figure.high)}"/>')
            if not isnan(figure.value):
                shown = f"{name.replace('_', ' ')} {format_estimate(figure)} at {share:.2f} escalated"
                marks.append(
                    f'<circle class="dot {kind}" cx="{x}" cy="{_y(figure.value)}" r="{size}">'
                    f"<title>{shown}</title></circle>"
                )
    title = "Agreement and balanced accuracy of a cascade against the share escalated"
    return _frame("share escalated to the large judge", "", marks, title, diagonal=False)


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


def front_plot(found: BakeOff) -> Markup:
    """Plot the quality of each contender against its cost, with intervals; those on the front are joined by a line."""
    points = [
        (number, one, one.quality[found.quality], one.cost[found.cost])
        for number, one in enumerate(found.results, 1)
        if found.quality in one.quality and found.cost in one.cost and not isnan(one.quality[found.quality].value)
    ]
    if not points:
        return Markup()
    largest = max(max(cost.value, 0.0 if isnan(cost.high) else cost.high) for *_, cost in points) or 1.0
    width, left = 520, _LEFT

    def x(cost: float) -> float:
        return round(left + width * cost / (largest * 1.05), 1)

    marks = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        style = "chance" if tick == 0.5 else "grid"
        marks.append(f'<line class="{style}" x1="{left}" y1="{_y(tick)}" x2="{left + width}" y2="{_y(tick)}"/>')
        marks.append(f'<text class="tick" x="{left - 6}" y="{_y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    for tick in _round_ticks(largest):
        marks.append(f'<line class="grid" x1="{x(tick)}" y1="{_y(0)}" x2="{x(tick)}" y2="{_y(1)}"/>')
        marks.append(f'<text class="tick" x="{x(tick)}" y="{_y(0) + 15}" text-anchor="middle">{tick:g}</text>')
    front = sorted((cost.value, quality.value) for _, one, quality, cost in points if one.on_front)
    path = " ".join(f"{x(cost)},{_y(quality)}" for cost, quality in front)
    marks.append(f'<polyline class="line main" points="{path}"/>')
    for number, one, quality, cost in points:
        across, up = x(cost.value), _y(quality.value)
        if not isnan(quality.low):
            marks.append(
                f'<line class="bar" x1="{across}" y1="{_y(quality.low)}" x2="{across}" y2="{_y(quality.high)}"/>'
            )
        if not isnan(cost.low):
            marks.append(f'<line class="bar" x1="{x(cost.low)}" y1="{up}" x2="{x(cost.high)}" y2="{up}"/>')
        paid = format_estimate(cost, COST_DIGITS[found.cost])
        marks.append(
            f'<circle class="dot {"main" if one.on_front else "raw"}" cx="{across}" cy="{up}" r="5">'
            f"<title>{escape(one.contender.name)}: {format_estimate(quality)} for {paid}</title>"
            f'</circle><text class="name" x="{across + 8}" y="{up - 7}">{number}</text>'
        )
    titles = (
        f'<text class="axis" x="{left + width / 2}" y="{_y(0) + 33}" text-anchor="middle">'
        f"{escape(found.cost.replace('_', ' '))} a judgement</text>"
        f'<text class="axis" transform="translate(12 {_y(0.5)}) rotate(-90)" text-anchor="middle">'
        f"{escape(QUALITY_HEADINGS[found.quality])}</text>"
    )
    size = (left + width + 24, _TOP + _SIDE + _BOTTOM)
    return Markup(  # no text but escaped names # noqa: S704 # nosec B704
        f'<svg viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" role="img" aria-label="Quality against cost">'
        f"{''.join(marks)}{titles}</svg>"
    )


def _round_ticks(largest: float) -> list[float]:
    """Return three to seven round numbers from 0 to at most `largest`, which is above 0, in equal steps."""
    power = 10.0 ** floor(log10(largest / 3))
    step = next(factor * power for factor in (5, 2, 1) if 3 * factor * power <= largest * (1 + 1e-9) or factor == 1)
    return [float(f"{number * step:.6g}") for number in range(int(largest / step + 1e-9) + 1)]
