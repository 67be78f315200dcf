"""`python -m benchmarks.papers.certainty`: reproduce DRO's Figure 3 by the simulation of its appendix D.

The figure shows how well three rewards follow the tokens that reflect the reasoning, as their share falls and as
references grow. Numbers that are missing from the paper's text are options, which `docs/papers.md` lists with reasons;
the second table varies them one at a time.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.papers.plot import Panel, draw_panels
from benchmarks.papers.simulation import REWARDS, Point, Setup, measure, share
from benchmarks.report import publish

SHARES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
LENGTHS = (100, 200, 400, 800, 1600)
TOKENS = 3
FIXED = 1.0

VARIATIONS: Mapping[str, Mapping[str, Any]] = {
    "beta 0: clipping alone": {"beta": 0.0},
    "no clipping": {"p_min": 0.0, "p_max": 1.0},
    "beta 5": {"beta": 5.0},
    "beta 20": {"beta": 20.0},
    "beta 50": {"beta": 50.0},
    "reflective deviation 0.10": {"reflective_deviation": 0.10},
    "reflective deviation 0.25": {"reflective_deviation": 0.25},
    "reflective correlation 0": {"reflective_correlation": 0.0},
    "reflective correlation 0.9": {"reflective_correlation": 0.9},
    "tokens between vary by 0.10": {"middling_deviation": 0.10},
    "tokens between vary by 0.15": {"middling_deviation": 0.15},
    "half of the tokens between": {"middling_share": 0.5, "sure_share": 0.35},
    "no tokens near 0": {"stray_share": 0.0},
    "lowest certainty 1e-4": {"floor": 1e-4},
    "noise correlated by 0.05": {"noise_correlation": 0.05},
    "noise correlated by 0.2": {"noise_correlation": 0.2},
    "groups of 8": {"group_size": 8},
    "correlation with each token": {"against": "each"},
}
"""Changes to `Setup`, made one at a time, by name."""


class Series(NamedTuple):
    """The points along one axis."""

    name: str
    points: dict[float, Point]


def run(setup: Setup, trials: int, seed: int) -> list[Series]:
    """Compute the panels: by share with random lengths, and by length with three tokens or one in a hundred."""

    def by_length(reflective: Callable[[int], int], first: int) -> dict[float, Point]:
        return {
            length: measure(setup, reflective, trials=trials, seed=seed + first + length, length=length)
            for length in LENGTHS
        }

    by_share = {x: measure(setup, share(x / 100), trials=trials, seed=seed + round(10 * x)) for x in SHARES}
    return [
        Series("share of reflective tokens, %", by_share),
        Series(f"tokens, {TOKENS} of them reflective", by_length(lambda _: TOKENS, 10_000)),
        Series(f"tokens, {FIXED:g}% of them reflective", by_length(share(FIXED / 100), 20_000)),
    ]


def rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a row of mean correlations for each point."""
    return [
        {"along": name, "at": f"{x:g}"} | dict(zip(REWARDS, map(float, point.means), strict=True))
        for name, points in series
        for x, point in points.items()
    ]


def verdicts(series: Sequence[Series]) -> list[str]:
    """Describe how far the points agree with what the paper says about its figure."""
    points = [point.means for _, along in series for point in along.values()]
    ordered = sum(bool(logp < prob < r3) for logp, prob, r3 in points)
    findings = [f"R3 above average probability above average log-probability: at {ordered} of {len(points)} points"]
    for name, along in series:
        xs = sorted(along)
        ends = (
            f"{reward} {along[xs[0]].means[i]:.2f} to {along[xs[-1]].means[i]:.2f}"
            for i, reward in reversed(list(enumerate(REWARDS)))
        )
        findings.append(f"{name}, from {xs[0]:g} to {xs[-1]:g}: {', '.join(ends)}")
    return findings


def vary(setup: Setup, trials: int, seed: int) -> list[dict[str, Any]]:
    """Return mean correlations at the fixed share and random lengths, with one choice changed at a time."""

    def row(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        point = measure(replace(setup, **changes), share(FIXED / 100), trials=trials, seed=seed)
        return {"changed": name} | dict(zip(REWARDS, map(float, point.means), strict=True))

    return [row("nothing", {})] + [row(name, changes) for name, changes in VARIATIONS.items()]


def panels(setup: Setup, series: Sequence[Series]) -> list[Panel]:
    """Arrange the points in panels for the plot."""
    by_share, three, hundredth = (along for _, along in series)
    drawn = f"References of {setup.shortest:,} to {setup.longest:,} tokens"
    return [
        Panel(drawn, "share of reflective tokens", by_share, percent=True),
        Panel(f"{TOKENS} reflective tokens", "tokens of the reference answer", three),
        Panel(f"{FIXED:g}% of the tokens reflective", "tokens of the reference answer", hundredth),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulation from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="number of groups per point")
    parser.add_argument("--seed", type=int, default=0, help="seed of the whole run")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="folder for the plot")
    for field in fields(Setup):
        assert field.default is not MISSING
        among = ("mean", "each") if field.name == "against" else None
        name, kind = f"--{field.name.replace('_', '-')}", type(field.default)
        parser.add_argument(name, type=kind, default=field.default, choices=among, help="see docs/papers.md")
    given = parser.parse_args(arguments)
    setup = Setup(**{field.name: getattr(given, field.name) for field in fields(Setup)})
    series = run(setup, given.trials, given.seed)
    notes = [
        f"{given.trials} groups per point; seed {given.seed}; {setup.group_size} rollouts per group, "
        f"{setup.shortest} to {setup.longest} tokens if the length is random",
        *verdicts(series),
    ]
    publish("certainty", "Correlation of rewards with the tokens that reflect the reasoning", rows(series), notes)
    title = f"One choice changed, {FIXED:g}% of the tokens reflective, lengths drawn"
    publish("certainty_variations", title, vary(setup, given.trials, given.seed))
    for ending in ("png", "svg"):
        draw_panels(panels(setup, series), given.plots / f"dro-figure-3.{ending}")
    print(f"plot: {given.plots}/dro-figure-3.png and .svg")


if __name__ == "__main__":
    main()
