"""Format the measurement of one model as table rows, and as numbers for the JSON file."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.agreement.items import TASKS
from benchmarks.agreement.metrics import FIGURES, Agreement, Measurement, Tokens
from judge_server.evaluation.metrics import BINS, LEVEL, RESAMPLES, Estimate, Figure

HEADINGS: dict[Figure, str] = {
    "auroc": "AUROC",
    "ece": "ECE",
    "brier": "Brier",
    "yes_rate": "yes",
}


def table_rows(agreement: Agreement, contenders: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per task, one for their mean, and one for all items.

    Balanced accuracy has a column per contender; the other cells list all contenders' figures in order. The difference
    in AUROC, of each task, is what a prompt must not lose.
    """
    return [
        *[_row(task, TASKS[task].labelled_by, measured, contenders) for task, measured in agreement.tasks.items()],
        _row(f"mean of {len(agreement.averaged)} tasks", "", agreement.mean, contenders),
        _row("all items at once", "", agreement.pooled, contenders),
    ]


def _row(task: str, labelled_by: str, measured: Measurement, contenders: Sequence[str]) -> dict[str, Any]:
    def both(cell: Callable[[str], str]) -> str:
        return " / ".join(cell(contender) for contender in contenders)

    def figure(name: Figure) -> str:
        return both(lambda contender: f"{measured.values[contender][name]:.2f}")

    baseline, *others = contenders
    row: dict[str, Any] = {"task": task, "labels by": labelled_by, "n": measured.n}
    row |= {contender: f"{measured.values[contender]['balanced_accuracy']:.2f}" for contender in contenders}
    for other in others:
        row[difference_heading(other, baseline)] = _signed(measured.difference(other, baseline, "balanced_accuracy"))
    row |= {heading: figure(name) for name, heading in HEADINGS.items()}
    for other in others:
        row[f"AUROC, {difference_heading(other, baseline)}"] = _signed(measured.difference(other, baseline, "auroc"))
    row["tokens computed"] = both(lambda contender: f"{measured.tokens[contender].computed:.0f}")
    row["tokens"] = both(lambda contender: f"{measured.tokens[contender].all:.0f}")
    row["failed"] = both(lambda contender: str(measured.failed[contender]))
    return row


def difference_heading(contender: str, baseline: str) -> str:
    """Return the heading of the difference in balanced accuracy."""
    return f"{contender} - {baseline}"


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"


def detail(agreement: Agreement, contenders: Sequence[str]) -> dict[str, Any]:
    """Return every figure and difference with its interval, for each row of the table; undefined ones are None."""
    return {
        "tasks": {task: _detail(one, contenders) for task, one in agreement.tasks.items()},
        "mean": _detail(agreement.mean, contenders),
        "pooled": _detail(agreement.pooled, contenders),
        "averaged": list(agreement.averaged),
    }


def _detail(measured: Measurement, contenders: Sequence[str]) -> dict[str, Any]:
    baseline, *others = contenders
    return {
        "n": measured.n,
        "contenders": {
            contender: {
                **{figure: _numbers(measured.estimate(contender, figure)) for figure in FIGURES},
                "tokens": _numbers(measured.tokens[contender]),
                "failed": measured.failed[contender],
            }
            for contender in contenders
        },
        "differences": {
            difference_heading(other, baseline): {
                figure: _numbers(measured.difference(other, baseline, figure)) for figure in FIGURES
            }
            for other in others
        },
    }


def _numbers(figures: Estimate | Tokens) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in figures._asdict().items()}


def notes(contenders: Sequence[str]) -> list[str]:
    """Explain the columns of the table."""
    return [
        f"columns {', '.join(contenders)}: balanced accuracy; the cells after them: {' / '.join(contenders)};",
        "yes: share of verdicts that say yes, half of the labels do;",
        f"intervals: {LEVEL:.0%}, {RESAMPLES:,} bootstrap resamples of rows, paired by item; ECE: {BINS} bins of equal "
        "width;",
        "tokens: prompt tokens per judgement, computed ones and all; n: items on which no contender failed",
    ]
