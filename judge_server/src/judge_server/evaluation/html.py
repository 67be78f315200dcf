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
from judge_server.evaluation.fitting.cascades import CascadePoint
from judge_server.evaluation.metrics import UNDEFINED, Estimate, ReliabilityBin
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


def render_page(name: str, heading: Mapping[str, Any], **shown: Any) -> str:
    """Render a template that lies beside this module. `heading` says what was measured: names and texts."""
    folder = files("judge_server.evaluation")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda file: (folder / file).read_text(encoding="utf-8")),
    )
    environment.filters["estimate"] = format_estimate
    return environment.get_template(f"{name}.html.jinja").render(heading=heading, few_rows=FEW_ROWS, **shown)


def html_report(evaluation: Evaluation, heading: Mapping[str, Any]) -> str:
    """Render the page of an evaluation."""
    parts = [one for one in evaluation.agreement if one.by != "all"]
    return render_page(
        "report",
        heading,
        evaluation=evaluation,
        headings=HEADINGS,
        changes=CHANGES,
        rows=evaluation.overall.rows,
        reliability_plot=reliability_plot(evaluation.reliability, evaluation.raw_reliability)
        if evaluation.reliability
        else "",
        roc_plot=roc_plot(evaluation.roc) if evaluation.roc else "",
        parts_plot=interval_plot(parts) if parts else "",
    )


def bakeoff_html(found: BakeOff, heading: Mapping[str, Any]) -> str:
    """Render the page of a bake-off."""
    with_figures = [one for one in found.results if not one.problem]
    return render_page(
        "bakeoff",
        heading,
        found=found,
        headings=QUALITY_HEADINGS,
        quality=names_of(found),
        digits=COST_DIGITS,
        undefined=UNDEFINED,
        few=any(one.rows < FEW_ROWS for one in with_figures),
        first=with_figures[0].contender.name if len(with_figures) > 1 else "",
        plot=front_plot(found),
    )


def names_of(found: BakeOff) -> list[str]:
    """Return the quality figures that some contender has, in the order in which tables show them."""
    return [n for n in (*VERDICT_FIGURES, PAIRS_RIGHT) if any(n in one.quality for one in found.results)]


def cascade_html(points: Sequence[CascadePoint], chosen: CascadePoint | None, heading: Mapping[str, Any]) -> str:
    """Render the page of a cascade's curve; `chosen` is the point of the fitted band, if there is one."""
    return render_page("cascade", heading, points=points, chosen=chosen, plot=cascade_plot(points, chosen))


_SIDE, _LEFT, _BOTTOM, _TOP = 280, 46, 40, 12
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def _x(value: float) -> float:
    return round(_LEFT + value * _SIDE, 1)


def _y(value: float) -> float:
    return round(_TOP + (1 - value) * _SIDE, 1)


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(style: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _dot(style: str, x: float, y: float, size: int, title: str) -> str:
    return f'<circle class="dot {style}" cx="{x}" cy="{y}" r="{size}"><title>{escape(title)}</title></circle>'


def _path(style: str, points: Iterable[tuple[float, float]]) -> str:
    return f'<polyline class="line {style}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>'


def _svg(width: float, height: float, label: str, marks: Iterable[str]) -> Markup:
    return Markup(  # no text but escaped names # noqa: S704 # nosec B704
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(label)}">'
        f"{''.join(marks)}</svg>"
    )


def _titles(x_title: str, y_title: str, middle: float) -> list[str]:
    return [
        _text("axis", middle, _y(0) + 33, x_title),
        f'<text class="axis" transform="translate(12 {_y(0.5)}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>",
    ]


def _frame(x_title: str, y_title: str, inner: Iterable[str], label: str, *, diagonal: bool = True) -> Markup:
    """Return a square plot with both axes from 0 to 1."""
    marks = []
    for tick in _TICKS:
        marks.append(_line("grid", _x(tick), _y(0), _x(tick), _y(1)))
        marks.append(_line("grid", _x(0), _y(tick), _x(1), _y(tick)))
        marks.append(_text("tick", _x(tick), _y(0) + 15, f"{tick:g}"))
        marks.append(_text("tick", _x(0) - 6, _y(tick) + 4, f"{tick:g}", "end"))
    if diagonal:
        marks.append(_line("chance", _x(0), _y(0), _x(1), _y(1)))
    marks += [*inner, *_titles(x_title, y_title, _x(0.5))]
    return _svg(_LEFT + _SIDE + 14, _TOP + _SIDE + _BOTTOM, label, marks)


def reliability_plot(bins: Sequence[ReliabilityBin], raw: Sequence[ReliabilityBin] = ()) -> Markup:
    """Plot the share labelled met against the probability of yes, with the number of judgements per bin below."""
    most = max(one.n for one in bins)
    marks = [
        f'<rect class="count" x="{_x(one.low) + 2}" y="{_y(0.2 * one.n / most)}" width="{_SIDE / len(bins) - 4}" '
        f'height="{round(0.2 * _SIDE * one.n / most, 1)}"><title>{one.n} judgements</title></rect>'
        for one in bins
        if one.n
    ]
    for style, series in (("raw", raw), ("main", bins)):
        known = [one for one in series if one.n]
        marks.append(_path(style, [(_x(one.mean_probability), _y(one.share_met)) for one in known]))
        for one in known:
            x = _x(one.mean_probability)
            if style == "main":
                marks.append(_line("bar", x, _y(one.share_low), x, _y(one.share_high)))
            shares = f"{one.share_met:.2f} [{one.share_low:.2f}, {one.share_high:.2f}]"
            said = f"probability {one.mean_probability:.2f}, met {shares}, n = {one.n}"
            marks.append(_dot(style, x, _y(one.share_met), 4 if style == "main" else 3, said))
    return _frame("probability of yes", "share labelled met", marks, "Reliability of the probability of yes")


def roc_plot(curve: Sequence[tuple[float, float]]) -> Markup:
    """Plot the share of met items found against the share of unmet items accepted."""
    line = _path("main", [(_x(false), _y(true)) for false, true in curve])
    return _frame("unmet judged met", "met judged met", [line], "ROC curve")


def cascade_plot(points: Sequence[CascadePoint], chosen: CascadePoint | None) -> Markup:
    """Plot agreement with the large judge, and balanced accuracy, against the share escalated to it."""
    marks = []
    for name, style in (("balanced_accuracy", "raw"), ("agreement", "main")):
        shown = [(one.escalated.value, getattr(one, name), 3) for one in points]
        if chosen is not None:
            shown.append((chosen.escalated.value, getattr(chosen, name), 6))
        known = [(_x(share), share, figure, size) for share, figure, size in shown if not isnan(figure.value)]
        marks.append(_path(style, [(x, _y(figure.value)) for x, _, figure, size in known if size == 3]))
        for x, share, figure, size in known:
            if not isnan(figure.low):
                marks.append(_line("bar", x, _y(figure.low), x, _y(figure.high)))
            said = f"{name.replace('_', ' ')} {format_estimate(figure)} at {share:.2f} escalated"
            marks.append(_dot(style, x, _y(figure.value), size, said))
    title = "Agreement and balanced accuracy of a cascade against the share escalated"
    return _frame("share escalated to the large judge", "", marks, title, diagonal=False)


def interval_plot(parts: Sequence[Slice]) -> Markup:
    """Plot the balanced accuracy of each part with its interval, or its accuracy where only one label occurs."""
    shown, row, left, side = list(parts)[:_MOST_PARTS], 24, 230, 420
    bottom = 18 + row * len(shown)
    marks = []
    for tick in _TICKS:
        x = left + tick * side
        marks.append(_line("chance" if tick == 0.5 else "grid", x, 8, x, bottom))
        marks.append(_text("tick", x, bottom + 16, f"{tick:g}"))
    for y, one in zip(range(18, bottom, row), shown, strict=True):
        figure, style = one.figures["balanced_accuracy"], "main"
        if isnan(figure.value):
            figure, style = one.figures["accuracy"], "raw"
        name = one.name or "(none)"
        name = name if len(name) <= 22 else name[:21] + "…"
        marks.append(
            f'<text class="name" x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(name)} '
            f'<tspan class="tick">n={one.n}</tspan></text>'
        )
        if isnan(figure.value):
            continue
        if not isnan(figure.low):
            low, high = (round(left + min(max(end, 0.0), 1.0) * side, 1) for end in (figure.low, figure.high))
            marks.append(_line("bar", low, y, high, y))
        marks.append(_dot(style, round(left + figure.value * side, 1), y, 4, format_estimate(figure)))
    return _svg(left + side + 20, bottom + 24, "Balanced accuracy by part", marks)


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
    width, right = 520, _LEFT + 520

    def x(cost: float) -> float:
        return round(_LEFT + width * cost / (largest * 1.05), 1)

    marks = []
    for tick in _TICKS:
        marks.append(_line("chance" if tick == 0.5 else "grid", _LEFT, _y(tick), right, _y(tick)))
        marks.append(_text("tick", _LEFT - 6, _y(tick) + 4, f"{tick:g}", "end"))
    for tick in _round_ticks(largest):
        marks.append(_line("grid", x(tick), _y(0), x(tick), _y(1)))
        marks.append(_text("tick", x(tick), _y(0) + 15, f"{tick:g}"))
    front = sorted((cost.value, quality.value) for _, one, quality, cost in points if one.on_front)
    marks.append(_path("main", [(x(cost), _y(quality)) for cost, quality in front]))
    for number, one, quality, cost in points:
        across, up = x(cost.value), _y(quality.value)
        if not isnan(quality.low):
            marks.append(_line("bar", across, _y(quality.low), across, _y(quality.high)))
        if not isnan(cost.low):
            marks.append(_line("bar", x(cost.low), up, x(cost.high), up))
        paid = format_estimate(cost, COST_DIGITS[found.cost])
        said = f"{one.contender.name}: {format_estimate(quality)} for {paid}"
        marks.append(_dot("main" if one.on_front else "raw", across, up, 5, said))
        marks.append(_text("name", across + 8, up - 7, str(number), "start"))
    marks += _titles(f"{found.cost.replace('_', ' ')} a judgement", QUALITY_HEADINGS[found.quality], _LEFT + width / 2)
    return _svg(right + 24, _TOP + _SIDE + _BOTTOM, "Quality against cost", marks)


def _round_ticks(largest: float) -> list[float]:
    """Return three to seven round numbers from 0 to at most `largest`, which is above 0, in equal steps."""
    power = 10.0 ** floor(log10(largest / 3))
    step = next(factor * power for factor in (5, 2, 1) if 3 * factor * power <= largest * (1 + 1e-9) or factor == 1)
    return [float(f"{number * step:.6g}") for number in range(int(largest / step + 1e-9) + 1)]
