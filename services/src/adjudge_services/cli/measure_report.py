"""The figures of `adjudge measure` as tables, as JSON and as a picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from adjudge_services.cli.output import exit_with_error
from judge_server.evaluation.figure_plot import plot_estimates
from judge_server.evaluation.trajectories import MeasureEstimate, ProblemResponses, measure_values
from judge_server.generation.plots import MatplotlibMissing

_STEPS_SHOWN = 15


def save_figures(
    found: Mapping[str, MeasureEstimate], more: Mapping[str, Any], output: Path | None, plot: Path | None, title: str
) -> None:
    """Write figures and what else is known as JSON, and draw them, where a file is named for it."""
    if output is not None:
        content = {"figures": {name: one._asdict() for name, one in found.items()}, **more}
        output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if plot is not None:
        try:
            plot_estimates(found, plot, title=title)
        except (MatplotlibMissing, ValueError, OSError) as error:
            exit_with_error(str(error))


def figures_table(found: Mapping[str, MeasureEstimate], title: str) -> Table:
    """Each measure with its value, interval and number of problems."""
    table = Table("measure", "value", "95% interval", "problems", title=title)
    for name, one in found.items():
        limits = "–" if one.low is None or one.high is None else f"{one.low:.3f} to {one.high:.3f}"
        table.add_row(name, f"{one.value:.3f}", limits, str(one.problems))
    return table


def steps_table(by_step: Mapping[int | None, Sequence[ProblemResponses]], ks: Sequence[int]) -> Table:
    """The last steps; of measures for each k, those of the largest one that there is."""
    rows = {step: measure_values(problems, ks=ks) for step, problems in list(by_step.items())[-_STEPS_SHOWN:]}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    families = [[one for one in names if one.startswith(start)] for start in ("pass_at_", "best_of_")]
    left_out = {name for family in families for name in family[:-1]}
    shown = [name for name in names if name not in left_out]
    table = Table("step", "problems", *shown, title=f"the last {len(rows)} of {len(by_step)} steps")
    for step, row in rows.items():
        cells = [f"{row[name]:.3f}" if name in row else "–" for name in shown]
        table.add_row("–" if step is None else str(step), str(len(by_step[step])), *cells)
    return table
