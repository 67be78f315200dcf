"""What pages show of the evaluation of a judge by an operation: its figures, and how reliable probabilities are."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from judge_server.api.console.charts import Plot, reliability
from judge_server.api.console.tables import Row, Table, address
from trainer_client.wire import DEFAULT_JUDGE
from trainer_client.wire.operations import Operation

FIGURES: Mapping[str, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "kappa": "kappa",
    "auroc": "AUROC",
    "ece": "ECE",
    "brier": "Brier",
}
"""The figures that a page shows, and their headings."""


class Part(NamedTuple):
    """The figures of all verdicts or of a part of them; a figure that is undefined is None."""

    name: str
    n: int
    rows: int
    failed: int
    figures: tuple[Mapping[str, float | None], ...]


class EvaluationView(NamedTuple):
    """An evaluation that is done.

    `plot` is None if the judge gave no probabilities, and `table` has the numbers of the plot.
    """

    operation: Operation
    parts: tuple[Part, ...]
    plot: Plot | None
    table: Table

    @property
    def judge(self) -> str:
        """The name of the judge."""
        return judge_of(self.operation)

    @property
    def href(self) -> str:
        """Its page."""
        return address("operation", id=self.operation.id)

    @property
    def csv_href(self) -> str:
        """The numbers of the plot as CSV."""
        return address("operation/reliability.csv", id=self.operation.id)


def judge_of(operation: Operation) -> str:
    """The judge that a request names, or the default one."""
    return str(operation.request.get("judge", DEFAULT_JUDGE))


def evaluation_of(operation: Operation) -> EvaluationView | None:
    """The evaluation of an operation; None if it is of another kind or has no report."""
    report: Any = (operation.summary or {}).get("report")
    if operation.kind != "evaluate_judge" or not isinstance(report, Mapping):
        return None
    parts = tuple(
        [
            Part(
                "all" if one["by"] == "all" else f"{one['by']} {one['name']}", one["n"], one["rows"], one["failed"],
                tuple([one["figures"][name] for name in FIGURES]),
            )
            for one in report["agreement"]
        ]
    )  # fmt: skip
    bins = [one for one in report.get("reliability", ()) if one["n"]]
    raw = [one for one in report.get("raw_reliability", ()) if one["n"]]
    return EvaluationView(operation, parts, _plot(bins, raw), _table(bins))


def _plot(bins: Sequence[Mapping[str, Any]], raw: Sequence[Mapping[str, Any]]) -> Plot | None:
    if not bins:
        return None
    points = [
        (
            one["mean_probability"], one["share_met"], one["share_low"], one["share_high"],
            f"probability {one['mean_probability']:.2f}, met {one['share_met']:.2f}, {one['n']} verdicts",
        )
        for one in bins
    ]  # fmt: skip
    return reliability(points, [(one["mean_probability"], one["share_met"]) for one in raw])


def _table(bins: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        Row((
            f"{one['low']:.1f} to {one['high']:.1f}", one["n"], one["mean_probability"], one["share_met"],
            one["share_low"], one["share_high"],
        ))
        for one in bins
    ]  # fmt: skip
    return Table(("probability", "verdicts", "mean probability", "share met", "from", "to"), tuple(rows))
