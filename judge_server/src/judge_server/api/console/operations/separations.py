"""What pages show of how well rubrics tell good responses from bad ones, as measured by an operation."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from judge_server.api.console.operations.evaluations import judge_of
from judge_server.api.console.tables import Row, Table, address
from trainer_client.wire import parse_reference
from trainer_client.wire.operations import Operation

USEFUL_FROM = 0.1
"""Below this difference a criterion is shown as saying the same of both; a visual aid, not a test."""


class CriterionRow(NamedTuple):
    """A criterion: the mean scores of good and bad responses, and the advantage of the good ones; None without one."""

    rubric: str
    criterion: str
    good: float | None
    bad: float | None
    difference: float | None
    verdicts: int
    failed: int

    @property
    def reading(self) -> str:
        """What the difference says."""
        if self.difference is None:
            return "not judged on both sides"
        if abs(self.difference) < USEFUL_FROM:
            return "says the same of both"
        return "tells them apart" if self.difference > 0 else "points the wrong way"


class SeparationView(NamedTuple):
    """A comparison that is done; `summary` has the figures of `measuring.separation.Separation`."""

    operation: Operation
    summary: Mapping[str, Any]
    criteria: tuple[CriterionRow, ...]

    @property
    def rubric(self) -> str:
        """The reference of the rubric; empty if prompts have their own, or it was sent with the request."""
        return reference_of(self.operation)

    @property
    def judge(self) -> str:
        """The name of the judge."""
        return judge_of(self.operation)

    @property
    def href(self) -> str:
        """Its page."""
        return address("operation", id=self.operation.id)

    @property
    def rubrics(self) -> str:
        """How many rubrics do how well; empty for a single one."""
        counts: Mapping[str, int] = self.summary["rubrics"]
        if sum(counts.values()) < 2:
            return ""
        return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())

    @property
    def table(self) -> Table:
        """The numbers."""
        headings = ("rubric", "criterion", "good", "bad", "difference", "verdicts", "failed")
        return Table(headings, tuple([Row(tuple(one)) for one in self.criteria]))


def reference_of(operation: Operation) -> str:
    """The reference of the rubric that a request names; empty without one."""
    rubric = operation.request.get("rubric")
    return rubric if isinstance(rubric, str) else ""


def is_of_rubric(operation: Operation, name: str) -> bool:
    """Whether an operation measures a version of a rubric."""
    reference = reference_of(operation)
    return operation.kind == "discriminate_rubrics" and bool(reference) and parse_reference(reference).name == name


def separation_of(operation: Operation) -> SeparationView | None:
    """What an operation measured; None if it is of another kind or is not done."""
    summary = operation.summary
    if operation.kind != "discriminate_rubrics" or not summary:
        return None
    found: Any = summary["criteria"]
    return SeparationView(operation, summary, tuple([CriterionRow(**one) for one in found]))
