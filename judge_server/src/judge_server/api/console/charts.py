"""The console's plots, as SVG made on the server.

A plot is drawn on a canvas of 1000 x 200 units that the page stretches to the width it has; lines keep their width and
dots stay round. Its labels are text of the page around it, so that they stay readable on a narrow screen. Colours come
from the style sheet, by class, so that they follow the reader's choice of light or dark.
"""

from collections.abc import Sequence
from math import floor, log10
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 1000, 200


class Mark(NamedTuple):
    """A place of a plot that links to a page: its tooltip, which is also its name, and the address."""

    title: str
    href: str


class Plot(NamedTuple):
    """A plot, and the labels of its axes: `ticks` of the vertical one from top to bottom. `flags` stand above it."""

    svg: Markup
    ticks: tuple[str, ...] = ()
    labels: Markup = Markup()
    flags: Markup = Markup()


class Label(NamedTuple):
    """A text below a plot, at its place across the canvas."""

    x: float
    text: str


class Point(NamedTuple):
    """A value of a curve: its place across the canvas, the ends of its column, the value and its spread, if any."""

    x: float
    left: float
    right: float
    value: float | None
    spread: float | None = None


class Flag(NamedTuple):
    """A place across the canvas that is marked by a line and a short text above it, which links to a page."""

    x: float
    text: str
    style: str
    mark: Mark


def sparkline(values: Sequence[float | None], name: str) -> Markup:
    """A small curve from its own lowest to its own highest value; empty without values."""
    known = [value for value in values if value is not None]
    if not known:
        return Markup()
    low, high = min(known), max(known)
    points = [
        (_across(i, len(values)), 170 - 140 * (value - low) / (high - low) if high > low else 100.0)
        for i, value in enumerate(values)
        if value is not None
    ]
    return _svg([_line(points, "line"), _dot(*points[-1])], name, "sparkline")


def curve(
    points: Sequence[Point],
    marks: Sequence[Mark],
    labels: Sequence[Label],
    name: str,
    *,
    beside: Sequence[tuple[str, Sequence[Point]]] = (),
    flags: Sequence[Flag] = (),
) -> Plot:
    """A curve with a band of one spread to either side, each value a link, over other curves without band.

    Each of those is a class and its points.
    """
    values = [(p.value, p.spread or 0.0) for p in points if p.value is not None]
    others = [(style, [(p.x, p.value) for p in other if p.value is not None]) for style, other in beside]
    ends = [value + sign * spread for value, spread in values for sign in (-1, 1)]
    ends += [value for _, other in others for _, value in other]
    low, high, ticks = nice_range(min(ends), max(ends))

    def y(value: float) -> float:
        return round(HEIGHT * (high - value) / (high - low), 2)

    inner = [_grid(y(tick)) for tick in ticks]
    known = [(p.x, p.value, p.spread) for p in points if p.value is not None and p.spread is not None]
    if len(known) > 1:
        outline = [(x, y(v + s)) for x, v, s in known] + [(x, y(v - s)) for x, v, s in reversed(known)]
        inner.append(f'<polygon class="band" points="{_points(outline)}"/>')
    inner += [f'<path class="flag {flag.style}" d="M{flag.x:.2f} 0V{HEIGHT}"/>' for flag in flags]
    inner += [_line([(x, y(value)) for x, value in other], f"line {style}") for style, other in others if other]
    shown = [(p.x, y(p.value)) for p in points if p.value is not None]
    inner += [_line(shown, "line"), *(_dot(*point) for point in shown)]
    inner += [
        _link(mark, _rect(p.left, 0, p.right - p.left, HEIGHT, "hit"), 'tabindex="-1"')
        for p, mark in zip(points, marks, strict=True)
    ]
    svg = _svg(inner, name, role="group")
    return Plot(svg, tuple(_short(tick) for tick in reversed(ticks)), _axis(labels), _flags(flags))


def columns(
    layers: Sequence[tuple[str, Sequence[int]]],
    marks: Sequence[Mark],
    labels: Sequence[str],
    name: str,
    *,
    by_keyboard: bool = False,
) -> Plot:
    """Stacked columns, each a link: a layer is a class and its values, the first at the bottom.

    The keyboard has the same links in the table, unless it reaches the columns themselves: then empty ones are none.
    """
    totals = [sum(values) for values in zip(*(values for _, values in layers), strict=True)]
    _, high, ticks = nice_range(0, max([*totals, 1]), whole=True)
    width = WIDTH / len(totals)
    inner = [_grid(round(HEIGHT * (1 - tick / high), 2)) for tick in ticks]
    for i, (total, mark) in enumerate(zip(totals, marks, strict=True)):
        top, drawn = float(HEIGHT), ""
        for style, values in layers:
            height = HEIGHT * values[i] / high
            if by_keyboard and values[i]:
                height = max(height, 1.5)
            top -= height
            drawn += _rect(i * width + width * 0.06, top, width * 0.88, height, style)
        hit = _rect(i * width, 0, width, HEIGHT, "hit")
        if total or not by_keyboard:
            inner.append(_link(mark, drawn + hit, "" if by_keyboard else 'tabindex="-1"'))
    return Plot(_svg(inner, name, role="group"), tuple(_compact(tick) for tick in reversed(ticks)), _even_axis(labels))


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, such as `+0.27`; 0 has none."""
    written = f"{value:+.{digits}f}"
    return written.replace("-", "−") if float(written) else written[1:]


def nice_range(low: float, high: float, *, whole: bool = False) -> tuple[float, float, list[float]]:
    """A range of round numbers that covers both, and three to six ticks from its one end to its other."""
    if high - low <= 1e-6 * max(1.0, abs(low), abs(high)):
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    if whole:
        step = float(max(1, round(step)))
    first, last = floor(low / step + 1e-9), -floor(-high / step + 1e-9)
    ticks = [round(number * step, 10) for number in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def axis_labels(names: Sequence[str], most: int = 5) -> list[str]:
    """At most so many of the names, evenly chosen, with the first and the last."""
    if len(names) <= 2 or most < 2:
        return list(names)
    count = max(n for n in range(2, most + 1) if n == 2 or (len(names) - 1) % (n - 1) == 0)
    return [names[i * (len(names) - 1) // (count - 1)] for i in range(count)]


def round_steps(first: int, last: int, most: int = 6) -> list[int]:
    """At most so many numbers from `first` to `last`: all of them, or the multiples of 2, 5, 10, 20, 50, …"""
    step = next(
        factor * 10**power for power in range(20) for factor in (1, 2, 5) if (last - first) < most * factor * 10**power
    )
    return list(range(-(-first // step) * step, last + 1, step))


def _axis(labels: Sequence[Label]) -> Markup:
    """The labels below a plot, in a drawing that is as wide as the plot but whose letters are not stretched."""
    drawn = []
    for label in labels:
        anchor = "start" if label.x < _EDGE else "end" if label.x > WIDTH - _EDGE else "middle"
        drawn.append(f'<text x="{label.x / WIDTH:.2%}" y="1em" text-anchor="{anchor}">{escape(label.text)}</text>')
    return Markup(f'<svg class="axis" aria-hidden="true">{"".join(drawn)}</svg>')  # noqa: S704 # nosec B704


def _even_axis(names: Sequence[str]) -> Markup:
    """Labels at equal distances from one end of the canvas to the other."""
    return _axis([Label(WIDTH * i / max(len(names) - 1, 1), name) for i, name in enumerate(names)])


_EDGE = 20
"""Labels nearer to an end of the canvas do not reach over it."""


def _flags(flags: Sequence[Flag]) -> Markup:
    """The texts of flags, in a drawing that is as wide as the plot but whose letters are not stretched."""
    if not flags:
        return Markup()
    drawn = [
        _link(
            flag.mark,
            f'<circle class="{flag.style}" cx="{flag.x / WIDTH:.2%}" cy="11" r="9"/>'
            f'<text x="{flag.x / WIDTH:.2%}" y="15" text-anchor="middle">{escape(flag.text)}</text>',
        )
        for flag in flags
    ]
    return Markup(f'<svg class="flags" role="group" aria-label="alarms">{"".join(drawn)}</svg>')  # noqa: S704 # nosec B704


def reliability(
    points: Sequence[tuple[float, float, float, float, str]], raw: Sequence[tuple[float, float]] = ()
) -> Plot:
    """The share met against the probability, both from 0 to 1.

    Args:
        points: by increasing probability: the probability, the share, the ends of its interval and a tooltip.
        raw: the same without intervals, for the probabilities before calibration.
    """

    def place(probability: float, share: float) -> tuple[float, float]:
        return round(WIDTH * probability, 2), round(HEIGHT * (1 - share), 2)

    inner = [_grid(round(HEIGHT * tick, 2)) for tick in (0, 0.25, 0.5, 0.75, 1)]
    inner.append(_line([place(0, 0), place(1, 1)], "diagonal"))
    if raw:
        inner.append(_line([place(*point) for point in raw], "line raw"))
    inner.append(_line([place(probability, share) for probability, share, *_ in points], "line"))
    for probability, share, low, high, title in points:
        x, y = place(probability, share)
        bar = f'<path class="interval" d="M{x} {place(0, low)[1]}V{place(0, high)[1]}"/>'
        inner.append(f"<g><title>{escape(title)}</title>{bar}{_dot(x, y)}</g>")
    ticks = ("0", "0.25", "0.5", "0.75", "1")
    return Plot(_svg(inner, "Share met by probability of yes", "plot square"), ticks[::-1], _even_axis(ticks))


def _across(index: int, count: int) -> float:
    """The middle of the column of a value."""
    return round(WIDTH * (index + 0.5) / count, 2)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y:.2f}" for x, y in points)


def _line(points: Sequence[tuple[float, float]], style: str) -> str:
    return f'<polyline class="{style}" points="{_points(points)}"/>'


def _dot(x: float, y: float) -> str:
    """A dot: a line without length, whose round ends are not stretched."""
    return f'<path class="dot" d="M{x} {y:.2f}h0"/>'


def _grid(y: float) -> str:
    return f'<path class="grid" d="M0 {y}H{WIDTH}"/>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"/>'


def _link(mark: Mark, inner: str, also: str = "") -> str:
    title = escape(mark.title)
    return f'<a href="{escape(mark.href)}" {also} aria-label="{title}"><title>{title}</title>{inner}</a>'


def _svg(inner: Sequence[str], name: str, style: str = "plot", role: str = "img") -> Markup:
    return Markup(  # every text in it is escaped above # noqa: S704 # nosec B704
        f'<svg class="{style}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="{role}" '
        f'aria-label="{escape(name)}">{"".join(inner)}</svg>'
    )


def _short(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _compact(value: float) -> str:
    """A number of tokens such as `250k`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"
