"""What `adjudge rubrics discriminate` prints: one line for the rubric, one row for each criterion."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from adjudge_services.cli.output import out
from judge_server.evaluation import CriterionSeparation, Separation

_ROWS = 25
_USEFUL = 0.1
"""A criterion that differs by less than this tells nearly nothing; it is an aid for the eye, not a test."""


def print_report(found: Separation, by_rubric: Sequence[Separation], title: str) -> None:
    """Print a report; `by_rubric` has the same figures for each rubric by itself."""
    out.print(f"[bold]{title}[/]", highlight=False, soft_wrap=True)
    out.print(_criteria(found.criteria, several=len(by_rubric) > 1))
    if len(found.criteria) > _ROWS:
        out.print(f"the {_ROWS} least useful of {len(found.criteria)} criteria", style="dim", highlight=False)
    for line in _summary(found, by_rubric):
        out.print(line, highlight=False, soft_wrap=True)


def _criteria(criteria: Sequence[CriterionSeparation], *, several: bool) -> Table:
    table = Table(header_style="bold")
    for name in ("rubric", "criterion") if several else ("criterion",):
        table.add_column(name)
    for name in ("good", "bad", "difference", "verdicts", "failed"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in criteria[:_ROWS]:
        names = (one.rubric, one.criterion) if several else (one.criterion,)
        figures = (_number(one.good), _number(one.bad), _number(one.difference, signed=True))
        table.add_row(*names, *figures, str(one.verdicts), str(one.failed or "–"), _reading(one))
    return table


def _reading(one: CriterionSeparation) -> Text:
    if one.difference is None:
        return Text("not judged on both sides", style="dim")
    if one.difference >= _USEFUL:
        return Text("tells them apart", style="green")
    if one.difference <= -_USEFUL:
        return Text("points the wrong way", style="bold red")
    return Text("says the same of both", style="yellow")


def _summary(found: Separation, by_rubric: Sequence[Separation]) -> list[str]:
    if found.ordered is None or found.tied is None:
        return []
    between = f" (95% interval {found.interval[0]:.2f} to {found.interval[1]:.2f})" if found.interval else ""
    lines = [
        f"mean reward of good {_number(found.mean_good)}, of bad {_number(found.mean_bad)}: "
        f"{found.good} good and {found.bad} bad responses to {found.prompts} prompts, {found.unscored} unscored",
        f"[bold]good ranks above bad {found.ordered:.2f} of the time[/]{between}; 0.5 is chance; "
        f"{found.tied:.0%} of the pairs are tied",
    ]
    if len(by_rubric) > 1:
        kinds = Counter(_better(one) for one in by_rubric)
        counts = ", ".join(f"{kinds[kind]} {kind}" for kind in ("above chance", "at chance", "below", "not judged"))
        lines.append(f"of {len(by_rubric)} rubrics: {counts}")
    return lines


def _better(one: Separation) -> str:
    if one.ordered is None:
        return "not judged"
    return "at chance" if one.ordered == 0.5 else "above chance" if one.ordered > 0.5 else "below"


def _number(value: float | None, *, signed: bool = False) -> str:
    return "–" if value is None else f"{value:+.2f}" if signed else f"{value:.2f}"
