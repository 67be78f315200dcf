"""The charts and tables of a run, and what changed between its steps.

The reward is drawn by step number, so that another run can be drawn over it and alarms stand at their step. The other
charts have a column for each bucket of steps. The numbers of each chart are also served as CSV.
"""

from collections.abc import Iterable, Sequence
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
    columns,
    curve,
    round_steps,
    sparkline,
)
from judge_server.api.console.rendering import Row, Table, Value, address
from rubric_store.ledger.rows import (
    CriterionBucket,
    RewardBin,
    RunCharts,
    StepBucket,
)
from trainer_client.wire.ledger import CriterionFigures
from trainer_client.wire.monitors import MonitorFinding
from trainer_client.wire.rewards import FAILURE_MEANINGS

_FAILURES: dict[str, str] = {kind: " ".join(meaning) for kind, meaning in FAILURE_MEANINGS.items()}

HEAT_LEVELS = 10

CHANGE_STEPS = 10
"""The steps before and after a step that are compared."""

_FLAG_DISTANCE = 0.04
"""The share of the axis within which alarms have one number."""

MEASURE_MEANINGS: dict[str, str] = {
    "rubric/left_out": "share of responses that the loss leaves out",
    "groups/unscored": "share of groups without any reward",
    "groups/uninformative": "share of groups that give no advantage",
    "scaffold/prompts": "share of responses whose prompt showed criteria (RuscaRL)",
    "scaffold/too_long": "share of prompts that showed none because they were too long",
    "scaffold/progress": "how far the scaffold has been taken away",
    "policy/self_internalization_gap": "log-probability per token without minus with the rubric in the prompt, in nats",
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


class Rate(NamedTuple):
    """A pass rate, and the number of verdicts that it is taken of; None without verdicts."""

    value: float | None
    verdicts: int

    @classmethod
    def of(cls, counted: Iterable[CriterionBucket]) -> "Rate":
        """The pass rate of a criterion in some buckets."""
        own = list(counted)
        given = sum(one.given for one in own)
        return cls(sum(one.passed for one in own) / given if given else None, given)


def mean_reward(steps: Sequence[StepBucket]) -> float | None:
    """The mean reward over steps, each with the weight of its rewards; None without rewards."""
    rewarded = [(one.mean_reward, one.responses - one.unscored) for one in steps if one.mean_reward is not None]
    count = sum(number for _, number in rewarded)
    return sum(mean * number for mean, number in rewarded) / count if count else None


def steps_name(first: int, last: int) -> str:
    """A range of steps, such as `12` or `12–15`."""
    return str(first) if first == last else f"{first}–{last}"


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
    href: str
    cells: tuple[HeatCell, ...]


class CurveRow(NamedTuple):
    """A figure of its own curve: what it means, its value, the lowest and highest bucket, and the curve."""

    name: str
    meaning: str
    value: float
    low: float
    high: float
    curve: str


class Alarm(NamedTuple):
    """What a monitor found, the page of what changed when it began, and its number on the curve; None if off it."""

    finding: MonitorFinding
    href: str
    number: int | None


class OtherRun(NamedTuple):
    """Another run to compare with: its name and its figures in the same steps."""

    run: str
    charts: RunCharts

    @property
    def mean_reward(self) -> float | None:
        """Its mean reward over the steps."""
        return mean_reward(self.charts.steps)


class StepAxis:
    """The places of training steps across the canvas, from the first one to the end of the last one."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def x(self, step: float) -> float:
        """The left end of a step's column."""
        return WIDTH * (step - self.first) / (self.last + 1 - self.first)

    def points(self, steps: Sequence[StepBucket], *, declared: bool = False) -> list[Point]:
        """The mean rewards, or declared rewards, of buckets; a bucket's column reaches up to the next bucket."""
        ends = [*(bucket.first for bucket in steps[1:]), steps[-1].last + 1] if steps else []
        return [
            Point(
                self.x((bucket.first + bucket.last + 1) / 2),
                self.x(bucket.first),
                self.x(end),
                bucket.mean_declared_reward if declared else bucket.mean_reward,
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
        self._names = [steps_name(bucket.first, bucket.last) for bucket in self.steps]
        self._responses = sum(one.responses for one in charts.bins)

    # -- reward

    @property
    def reward_plot(self) -> Plot | None:
        """The mean reward over steps, with the spread within groups as a band and alarms; None without rewards.

        Rewards under the rubric's own weights are a second curve, where others were used.
        """
        if not any(bucket.mean_reward is not None for bucket in self.steps):
            return None
        axis = self._axis
        marks = [
            Mark(f"step {name}: mean reward {_shown(bucket.mean_reward)}", self._responses_of(bucket))
            for name, bucket in zip(self._names, self.steps, strict=True)
        ]
        label = f"mean reward over steps {axis.first} to {axis.last}; the numbers follow in a table"
        beside = [("declared", axis.points(self.steps, declared=True))] if self.has_declared else []
        beside += [("other", axis.points(self.other.charts.steps))] if self.other else []
        return curve(axis.points(self.steps), marks, axis.labels, label, beside=beside, flags=self._flags(axis))

    @property
    def has_declared(self) -> bool:
        """Whether some responses have a reward under the rubric's own weights beside theirs."""
        return any(bucket.mean_declared_reward is not None for bucket in self.steps)

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
            "groups without spread", *(["mean declared reward"] if self.has_declared else []),
        )  # fmt: skip
        rows = []
        for name, bucket in zip(self._names, self.steps, strict=True):
            spread = bucket.spread
            counts = (bucket.requests, bucket.responses, bucket.partial, bucket.unscored)
            of_groups = (spread.deviation, spread.groups, spread.flat) if spread else (None, 0, 0)
            declared = [bucket.mean_declared_reward] if self.has_declared else []
            rows.append(Row((name, *counts, bucket.mean_reward, *of_groups, *declared), self._responses_of(bucket)))
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
        counts = [one.responses for one in bins]
        return columns([("bar", counts)], marks, labels, "responses by reward", by_keyboard=True)

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
        rows = []
        for name in [figures.criterion for figures in self._criteria]:
            own = {one.bucket: one for one in self.charts.criteria if one.criterion == name}
            cells = tuple([self._heat_cell(name, place, own.get(place)) for place in range(len(self.steps))])
            href = address("responses", run=self.run, first=self.first, last=self.last, criterion=name)
            others = self.other.charts.criteria if self.other else ()
            other = Rate.of(one for one in others if one.criterion == name)
            rows.append(HeatRow(name, Rate.of(own.values()).value, other.value, href, cells))
        return tuple(rows)

    def _heat_cell(self, criterion: str, place: int, counts: CriterionBucket | None) -> HeatCell:
        rate = Rate.of([counts] if counts else [])
        told = "no verdict" if rate.value is None else f"{rate.value:.0%} of {rate.verdicts:,} passed"
        told += f", {counts.failed:,} failed" if counts and counts.failed else ""
        told += f", {counts.uncertain:,} uncertain" if counts and counts.uncertain else ""
        title = f"{criterion}, step {self._names[place]}: {told}"
        level = None if rate.value is None else round(rate.value * HEAT_LEVELS)
        return HeatCell(level, title, self._responses_of(self.steps[place], criterion=criterion))

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
    def failures(self) -> tuple[CurveRow, ...]:
        """The failed verdicts by kind, the most frequent kind first."""
        found = []
        for kind in self._kinds:
            counts = [float(bucket.failures.get(kind, 0)) for bucket in self.steps]
            found.append(_curve_row(kind, _FAILURES, counts, sum(counts)))
        return tuple(sorted(found, key=lambda row: -row.value))

    @property
    def verdicts(self) -> int:
        """The number of verdicts in the steps."""
        return sum(bucket.verdicts for bucket in self.steps)

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
    def measures(self) -> tuple[CurveRow, ...]:
        """The measures that the trainer reported, by name, each with its mean over the steps."""
        rows = []
        for name, found in groupby(self.charts.measures, key=lambda one: one.name):
            own = list(found)
            mean = sum(one.mean * one.steps for one in own) / sum(one.steps for one in own)
            rows.append(_curve_row(name, MEASURE_MEANINGS, [one.mean for one in own], mean))
        return tuple(rows)

    @property
    def measures_table(self) -> Table:
        """The numbers of the measures."""
        rows = [Row((one.name, steps_name(one.first, one.last), one.steps, one.mean)) for one in self.charts.measures]
        return Table(("measure", "steps", "reports", "mean"), tuple(rows))

    # -- cost

    @property
    def cost_plot(self) -> Plot | None:
        """The judge's tokens over steps: computed, reused, written; None if there were none."""
        if not any(self.tokens):
            return None
        marks = [
            Mark(
                f"step {name}: {computed:,} prompt tokens computed, {reused:,} reused, {written:,} tokens written",
                self._responses_of(bucket),
            )
            for name, bucket, (computed, reused, written) in zip(self._names, self.steps, self._tokens, strict=True)
        ]
        layers = list(zip(("computed", "reused", "written"), zip(*self._tokens, strict=True), strict=True))
        return columns(layers, marks, axis_labels(self._names), "tokens of the judge over steps")

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt tokens computed and reused, and tokens written; empty without steps."""
        return tuple(map(sum, zip(*self._tokens, strict=True)))

    @property
    def _tokens(self) -> list[tuple[int, int, int]]:
        return [(one.tokens_computed, one.tokens_reused, one.tokens_written) for one in self.steps]

    @property
    def cost_table(self) -> Table:
        """The numbers of the cost."""
        headings = ("steps", "judge calls", "prompt tokens computed", "prompt tokens reused", "tokens written")
        rows = [
            Row((name, bucket.judge_calls, *tokens), self._responses_of(bucket))
            for name, bucket, tokens in zip(self._names, self.steps, self._tokens, strict=True)
        ]
        return Table(headings, tuple(rows))

    def csv_href(self, chart: str) -> str:
        """The address of a chart's numbers."""
        return address(f"run/{chart}.csv", run=self.run, first=self.first, last=self.last)

    def _responses_of(self, bucket: StepBucket, **also: Value) -> str:
        return address("responses", run=self.run, first=bucket.first, last=bucket.last, **also)

    def _bin_href(self, one: RewardBin) -> str:
        last = one is self.charts.bins[-1]
        ends: dict[str, Value] = {"low": one.low, "high": one.high, "includes_high": 1 if last else None}
        return address("responses", run=self.run, first=self.first, last=self.last, **ends)


def _curve_row(name: str, meanings: dict[str, str], values: Sequence[float], value: float) -> CurveRow:
    drawn = sparkline(values, f"{name} over steps") if len(values) > 1 else ""
    return CurveRow(name, meanings.get(name, ""), value, min(values), max(values), drawn)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _of_bin(one: RewardBin) -> str:
    return f"from {one.low:.4g} to {one.high:.4g}".replace("-", "−")


class CriterionChange(NamedTuple):
    """A criterion before and after a step, and the page of the responses that show it."""

    criterion: str
    before: Rate
    after: Rate
    href: str

    @property
    def change(self) -> float | None:
        """By how much the pass rate rose; None if it is not known on both sides."""
        if self.before.value is None or self.after.value is None:
            return None
        return self.after.value - self.before.value


class Changes(NamedTuple):
    """What changed at a step. The ranges of steps are written as `31–40`; a mean reward is None without rewards."""

    step: int
    before: str
    after: str
    rewards: tuple[float | None, float | None]
    criteria: tuple[CriterionChange, ...]


def read_changes(run: str, step: int, charts: RunCharts) -> Changes | None:
    """What changed at a step, the criterion that moved most first.

    Args:
        run: the run's name.
        step: the first step of those after.
        charts: the run's figures in the steps around it, one step a bucket.

    Returns:
        None if nothing was judged before the step, or nothing from there on.
    """
    before = [index for index, bucket in enumerate(charts.steps) if bucket.first < step]
    after = [index for index, bucket in enumerate(charts.steps) if bucket.first >= step]
    if not before or not after:
        return None
    last = charts.steps[after[-1]].last
    changed = []
    for criterion in dict.fromkeys(one.criterion for one in charts.criteria):
        own = [one for one in charts.criteria if one.criterion == criterion]
        old, new = [Rate.of(one for one in own if one.bucket in side) for side in (before, after)]
        outcome = "not passed" if (new.value or 0.0) < (old.value or 0.0) else "passed"
        href = address("responses", run=run, first=last, last=last, criterion=criterion, outcome=outcome)
        changed.append(CriterionChange(criterion, old, new, href))
    changed.sort(key=lambda one: -abs(one.change or 0.0))
    left, right = ([charts.steps[index] for index in side] for side in (before, after))
    return Changes(
        step,
        steps_name(left[0].first, left[-1].last),
        steps_name(right[0].first, right[-1].last),
        (mean_reward(left), mean_reward(right)),
        tuple(changed),
    )
