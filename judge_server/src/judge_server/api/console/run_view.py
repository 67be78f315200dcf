"""What the page of a run shows: its charts, and their numbers as tables that are also served as CSV.

The reward is drawn by step number, so that another run can be drawn over it and alarms stand at their step. The other
charts have a column for each bucket of steps.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from judge_server.api.console.charts import (
    WIDTH,
    Flag,
    Label,
    Mark,
    Plot,
    Point,
    axis_labels,
    bars,
    curve,
    round_steps,
    sparkline,
    stacked,
)
from judge_server.api.console.rendering import Row, Table, Value, address
from rubric_store.ledger.rows import RewardBin, RunCharts, StepBucket
from trainer_client.wire.ledger import CriterionFigures
from trainer_client.wire.monitors import MonitorFinding
from trainer_client.wire.rewards import FailureKind

FAILURE_MEANINGS: dict[FailureKind, str] = {
    "parse": "the judge's output could not be read as an answer",
    "timeout": "the verdict was not ready by the request's deadline",
    "engine": "the engine, or the program that verifies, failed",
    "overloaded": "the endpoint refused the call because it had too much to do",
    "truncated_input": "the texts are longer than the judge can read",
    "decoy": "the judge said that the response meets a decoy criterion, and the request has such responses fail",
}

HEAT_LEVELS = 10

_FLAG_DISTANCE = 0.04
"""The share of the axis within which alarms have one number."""


class HeatCell(NamedTuple):
    """A pass rate: its level from 0 to 10, a tooltip and the page of its responses; no level without verdicts."""

    level: int | None
    title: str
    href: str


class HeatRow(NamedTuple):
    """The pass rates of a criterion: in all, in the other run (None without one), and by bucket of steps."""

    criterion: str
    rate: float | None
    other_rate: float | None
    failed: int
    href: str
    cells: tuple[HeatCell, ...]


MEASURE_MEANINGS: dict[str, str] = {
    "rubric/left_out": "share of responses that the loss leaves out",
    "groups/unscored": "share of groups without any reward",
    "groups/uninformative": "share of groups that give no advantage",
    "scaffold/prompts": "share of responses whose prompt showed criteria (RuscaRL)",
    "scaffold/too_long": "share of prompts that showed none because they were too long",
    "scaffold/progress": "how far the scaffold has been taken away",
    "rgr/refined": "share of responses written as a refinement (RGR-GRPO)",
    "rgr/satisfied": "share of groups whose best response needed no refinement",
    "rgr/refine": "share of groups with something to refine",
    "rgr/undecided": "share of groups that failed verdicts leave open",
    "rgr/unrewarded": "share of groups without a reward to begin from",
    "rgr/too_long": "refinements per group left out because the prompt was too long",
    "dro/accepted": "share of groups that pass all gates (DRO)",
    "dro/coverage": "share of groups that the gate of coverage rejects",
    "dro/consistency": "share of groups that the gate of consistency rejects",
    "dro/variance": "share of groups that the variance filter rejects",
    "dro/undecided": "share of groups whose gate failed verdicts leave open",
    "dro/unscored": "share of groups without a reward",
    "dro/reward": "mean certainty reward R3",
    "dro/threshold": "threshold of the variance filter",
    "dro/no_answer": "share of responses without an answer",
}
"""What the measures mean that `RubricGRPOTrainer` reports; any other is shown by its name."""


class MeasureRow(NamedTuple):
    """What the trainer reported under a name: the mean over the steps, the lowest and highest bucket, and a curve."""

    name: str
    meaning: str
    mean: float
    low: float
    high: float
    curve: str


class FailureRow(NamedTuple):
    """The failed verdicts of a kind, and their share of all verdicts."""

    kind: str
    meaning: str
    verdicts: int
    share: float
    curve: str


def step_name(bucket: StepBucket) -> str:
    """The steps of a bucket, such as `12` or `12–15`."""
    return str(bucket.first) if bucket.first == bucket.last else f"{bucket.first}–{bucket.last}"


class Alarm(NamedTuple):
    """What a monitor found, the page of what changed when it began, and its number on the curve; None if off it."""

    finding: MonitorFinding
    href: str
    number: int | None


class OtherRun(NamedTuple):
    """Another run to compare with: its name and its figures in the same steps."""

    run: str
    charts: RunCharts

    def rate(self, criterion: str) -> float | None:
        """Its pass rate of a criterion; None without verdicts."""
        own = [one for one in self.charts.criteria if one.criterion == criterion]
        given = sum(one.given for one in own)
        return sum(one.passed for one in own) / given if given else None

    @property
    def mean_reward(self) -> float | None:
        """Its mean reward over the steps, each with the weight of its rewards; None without rewards."""
        rewarded = [(s.mean_reward, s.responses - s.unscored) for s in self.charts.steps if s.mean_reward is not None]
        count = sum(number for _, number in rewarded)
        return sum(mean * number for mean, number in rewarded) / count if count else None


class StepAxis:
    """The places of training steps across the canvas, from the first one to the end of the last one."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def x(self, step: float) -> float:
        """The left end of a step's column."""
        return WIDTH * (step - self.first) / (self.last + 1 - self.first)

    def points(self, steps: Sequence[StepBucket]) -> list[Point]:
        """The mean rewards of buckets; a bucket's column reaches up to the next bucket."""
        ends = [*(bucket.first for bucket in steps[1:]), steps[-1].last + 1] if steps else []
        return [
            Point(
                self.x((bucket.first + bucket.last + 1) / 2),
                self.x(bucket.first),
                self.x(end),
                bucket.mean_reward,
                bucket.spread.deviation if bucket.spread else None,
            )
            for bucket, end in zip(steps, ends, strict=True)
        ]

    @property
    def labels(self) -> list[Label]:
        """Round step numbers, each below the middle of its column."""
        return [Label(self.x(step + 0.5), f"{step}") for step in round_steps(self.first, self.last)]


class RunView:
    """The charts and tables of a run.

    Args:
        run: the run's name; empty for requests without one.
        charts: its figures.
        criteria: its criteria that have the most verdicts.
        first, last: the steps that the page is about; None for all.
        findings: what its monitors find.
        other: a run to draw over it.
    """

    def __init__(
        self,
        run: str,
        charts: RunCharts,
        criteria: Sequence[CriterionFigures],
        first: int | None,
        last: int | None,
        *,
        findings: Sequence[MonitorFinding] = (),
        other: OtherRun | None = None,
    ) -> None:
        self.run, self.charts, self.first, self.last = run, charts, first, last
        self.other = other
        self._criteria, self._findings = criteria, findings
        self.steps = charts.steps
        self._names = [step_name(bucket) for bucket in self.steps]
        self._responses = sum(one.responses for one in charts.bins)

    # -- reward

    @property
    def reward_plot(self) -> Plot | None:
        """The mean reward over steps, with the spread within groups as a band and alarms; None without rewards."""
        if not any(bucket.mean_reward is not None for bucket in self.steps):
            return None
        axis = self._axis
        marks = [
            Mark(f"step {name}: mean reward {_f(bucket.mean_reward)}", self._responses_of(bucket))
            for name, bucket in zip(self._names, self.steps, strict=True)
        ]
        label = f"mean reward over steps {axis.first} to {axis.last}; the numbers follow in a table"
        return curve(
            axis.points(self.steps),
            marks,
            axis.labels,
            label,
            other=axis.points(self.other.charts.steps) if self.other else (),
            flags=self._flags(axis),
        )

    @property
    def _axis(self) -> StepAxis:
        drawn = [*self.steps, *(self.other.charts.steps if self.other else ())]
        return StepAxis(min(bucket.first for bucket in drawn), max(bucket.last for bucket in drawn))

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What the monitors find. Those that say when it began are numbered by step, unless they are `info`.

        Those that began at almost the same step have one number, so that the numbers on the curve do not overlap.
        """
        numbers: dict[int, int] = {}
        started = 0
        for step in sorted({one.began for one in self._findings if one.began is not None and one.severity != "info"}):
            if not numbers or step - started > _FLAG_DISTANCE * (self._axis.last + 1 - self._axis.first):
                started = step
                numbers[step] = len(set(numbers.values())) + 1
            else:
                numbers[step] = numbers[started]
        return tuple(
            Alarm(
                one,
                "" if one.began is None else f"{address('run', run=self.run, around=one.began)}#around",
                None if one.began is None or one.severity == "info" else numbers[one.began],
            )
            for one in self._findings
        )

    def _flags(self, axis: StepAxis) -> list[Flag]:
        flags = []
        for number in sorted({alarm.number for alarm in self.alarms if alarm.number is not None}):
            own = [alarm for alarm in self.alarms if alarm.number == number]  # the most severe one first
            began = own[0].finding.began
            if began is not None and axis.first <= began <= axis.last:
                names = ", ".join(dict.fromkeys(alarm.finding.monitor for alarm in own))
                mark = Mark(f"{names}, from step {began}: what changed there", own[0].href)
                flags.append(Flag(axis.x(began), f"{number}", own[0].finding.severity, mark))
        return flags

    @property
    def reward_table(self) -> Table:
        """The numbers of the curve."""
        headings = (
            "steps", "requests", "responses", "partial", "unscored", "mean reward", "spread within groups", "groups",
            "groups without spread",
        )  # fmt: skip
        rows = []
        for name, bucket in zip(self._names, self.steps, strict=True):
            spread = bucket.spread
            counts = (bucket.requests, bucket.responses, bucket.partial, bucket.unscored)
            of_groups = (spread.deviation, spread.groups, spread.flat) if spread else (None, 0, 0)
            rows.append(Row((name, *counts, bucket.mean_reward, *of_groups), self._responses_of(bucket)))
        return Table(headings, tuple(rows))

    @property
    def groups(self) -> int:
        """The number of groups with at least two rewards."""
        return sum(bucket.spread.groups for bucket in self.steps if bucket.spread)

    @property
    def flat_groups(self) -> int:
        """The number of those whose rewards are all equal."""
        return sum(bucket.spread.flat for bucket in self.steps if bucket.spread)

    # -- histogram

    @property
    def histogram(self) -> Plot | None:
        """The number of responses by reward, each bar a link to them; None without rewards."""
        bins = self.charts.bins
        if not bins:
            return None
        marks = [Mark(f"{one.responses:,} responses with a reward {_of_bin(one)}", self._bin_href(one)) for one in bins]
        labels = [f"{edge:.4g}".replace("-", "−") for edge in (bins[0].low, bins[len(bins) // 2].low, bins[-1].high)]
        return bars([one.responses for one in bins], marks, labels, "responses by reward")

    @property
    def histogram_table(self) -> Table:
        """The numbers of the histogram."""
        rows = [
            Row(
                (_of_bin(one), one.low, one.high, one.responses, one.responses / max(self._responses, 1)),
                self._bin_href(one),
            )
            for one in self.charts.bins
        ]
        return Table(("reward", "from", "to", "responses", "share"), tuple(rows))

    # -- criteria

    @property
    def heat_map(self) -> tuple[HeatRow, ...]:
        """The pass rate of each criterion by bucket of steps."""
        cells = {(one.criterion, one.bucket): one for one in self.charts.criteria}
        rows = []
        for figures in self._criteria:
            own = [cells.get((figures.criterion, i)) for i in range(len(self.steps))]
            given = sum(one.given for one in own if one)
            passed, failed = sum(one.passed for one in own if one), sum(one.failed for one in own if one)
            shown = []
            for name, bucket, one in zip(self._names, self.steps, own, strict=True):
                count = one.given if one else 0
                rate = one.passed / count if one and count else None
                told = "no verdict" if rate is None else f"{rate:.0%} of {count:,} passed"
                told += f", {one.failed:,} failed" if one and one.failed else ""
                told += f", {one.uncertain:,} uncertain" if one and one.uncertain else ""
                shown.append(
                    HeatCell(
                        None if rate is None else round(rate * HEAT_LEVELS),
                        f"{figures.criterion}, step {name}: {told}",
                        self._responses_of(bucket, criterion=figures.criterion),
                    )
                )
            href = address("responses", run=self.run, first=self.first, last=self.last, criterion=figures.criterion)
            other = self.other.rate(figures.criterion) if self.other else None
            rate = passed / given if given else None
            rows.append(HeatRow(figures.criterion, rate, other, failed, href, tuple(shown)))
        return tuple(rows)

    @property
    def heat_labels(self) -> list[str]:
        """The steps below the heat map."""
        return axis_labels(self._names)

    @property
    def criteria_table(self) -> Table:
        """The numbers of the heat map."""
        rows = []
        for one in self.charts.criteria:
            bucket = self.steps[one.bucket]
            values = (one.criterion, self._names[one.bucket], one.verdicts, one.failed, one.uncertain, one.passed)
            rate = one.passed / one.given if one.given else None
            rows.append(Row((*values, rate), self._responses_of(bucket, criterion=one.criterion)))
        return Table(("criterion", "steps", "verdicts", "failed", "uncertain", "passed", "pass rate"), tuple(rows))

    # -- failures

    @property
    def failures(self) -> tuple[FailureRow, ...]:
        """The failed verdicts by kind, the most frequent kind first."""
        verdicts = max(sum(bucket.verdicts for bucket in self.steps), 1)
        found = []
        for kind in self._kinds:
            counts = [bucket.failures.get(kind, 0) for bucket in self.steps]
            drawn = sparkline([float(count) for count in counts], f"{kind} over steps") if len(counts) > 1 else ""
            meaning = FAILURE_MEANINGS.get(kind, "")  # type: ignore[call-overload]
            found.append(FailureRow(kind, meaning, sum(counts), sum(counts) / verdicts, drawn))
        return tuple(sorted(found, key=lambda row: -row.verdicts))

    @property
    def failures_table(self) -> Table:
        """The failed verdicts by step."""
        rows = [
            Row((name, bucket.verdicts, bucket.failed, *(bucket.failures.get(kind, 0) for kind in self._kinds)),
                self._responses_of(bucket))
            for name, bucket in zip(self._names, self.steps, strict=True)
        ]  # fmt: skip
        return Table(("steps", "verdicts", "failed", *self._kinds), tuple(rows))

    @property
    def _kinds(self) -> list[str]:
        return sorted({kind for bucket in self.steps for kind in bucket.failures})

    # -- what the trainer reports

    @property
    def measures(self) -> tuple[MeasureRow, ...]:
        """The measures that the trainer reported, by name."""
        rows = []
        for name, found in groupby(self.charts.measures, key=lambda one: one.name):
            own = list(found)
            means = [one.mean for one in own]
            mean = sum(one.mean * one.steps for one in own) / sum(one.steps for one in own)
            drawn = sparkline(means, f"{name} over steps") if len(means) > 1 else ""
            rows.append(MeasureRow(name, MEASURE_MEANINGS.get(name, ""), mean, min(means), max(means), drawn))
        return tuple(rows)

    @property
    def measures_table(self) -> Table:
        """The numbers of the measures."""
        rows = [
            Row((one.name, str(one.first) if one.first == one.last else f"{one.first}–{one.last}", one.steps, one.mean))
            for one in self.charts.measures
        ]
        return Table(("measure", "steps", "reports", "mean"), tuple(rows))

    # -- cost

    @property
    def cost_plot(self) -> Plot | None:
        """The judge's tokens over steps: computed, reused, written; None if there were none."""
        if not self.steps or not any(self.tokens):
            return None
        marks = [
            Mark(
                f"step {name}: {bucket.tokens_computed:,} prompt tokens computed, {bucket.tokens_reused:,} reused, "
                f"{bucket.tokens_written:,} tokens written",
                self._responses_of(bucket),
            )
            for name, bucket in zip(self._names, self.steps, strict=True)
        ]
        layers = [
            ("computed", [bucket.tokens_computed for bucket in self.steps]),
            ("reused", [bucket.tokens_reused for bucket in self.steps]),
            ("written", [bucket.tokens_written for bucket in self.steps]),
        ]
        return stacked(layers, marks, axis_labels(self._names), "tokens of the judge over steps")

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Prompt tokens computed and reused, and tokens written."""
        return (
            sum(bucket.tokens_computed for bucket in self.steps),
            sum(bucket.tokens_reused for bucket in self.steps),
            sum(bucket.tokens_written for bucket in self.steps),
        )

    @property
    def cost_table(self) -> Table:
        """The numbers of the cost."""
        headings = ("steps", "judge calls", "prompt tokens computed", "prompt tokens reused", "tokens written")
        rows = [
            Row((name, bucket.judge_calls, bucket.tokens_computed, bucket.tokens_reused, bucket.tokens_written),
                self._responses_of(bucket))
            for name, bucket in zip(self._names, self.steps, strict=True)
        ]  # fmt: skip
        return Table(headings, tuple(rows))

    def csv_href(self, chart: str) -> str:
        """The address of a chart's numbers."""
        return address(f"run/{chart}.csv", run=self.run, first=self.first, last=self.last)

    def table(self, chart: str) -> Table:
        """The numbers of a chart; raises `KeyError` for an unknown one."""
        return {
            "reward": lambda: self.reward_table,
            "histogram": lambda: self.histogram_table,
            "criteria": lambda: self.criteria_table,
            "failures": lambda: self.failures_table,
            "measures": lambda: self.measures_table,
            "cost": lambda: self.cost_table,
        }[chart]()

    def _responses_of(self, bucket: StepBucket, **also: Value) -> str:
        return address("responses", run=self.run, first=bucket.first, last=bucket.last, **also)

    def _bin_href(self, one: RewardBin) -> str:
        last = one is self.charts.bins[-1]
        ends: dict[str, Value] = {"low": one.low, "high": one.high, "includes_high": 1 if last else None}
        return address("responses", run=self.run, first=self.first, last=self.last, **ends)


def _of_bin(one: RewardBin) -> str:
    return f"from {one.low:.4g} to {one.high:.4g}".replace("-", "−")


def _f(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
