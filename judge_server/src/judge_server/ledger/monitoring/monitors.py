"""The monitors of a training run: pure functions from its sums and thresholds to findings.

To add one, record a signal in `signals.py`, write a function here that reads it, and list it in `MONITORS`. A function
gets the whole history that was read and yields its findings; it neither reads the ledger nor knows who asked.

Trends over steps and their onset are computed here too.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from judge_server.intervals import ROUNDING, correlation_interval, mean_interval, share_interval
from judge_server.ledger.monitoring.signals import MET_FROM
from judge_server.ports import RunReader
from rubric_store.ledger.rows import ControlVerdict, MonitoredRun, MonitorQuery, SignalSums
from trainer_client.wire.runs import (
    GoldComparison,
    Interval,
    MonitorFinding,
    MonitorName,
    MonitorReport,
    MonitorThresholds,
    Severity,
)


class Point(NamedTuple):
    """The mean of something at a training step, and the number of observations behind it."""

    step: int
    value: float
    weight: float = 1.0


class Trend(NamedTuple):
    """A line through a series of at least four points, by weighted least squares.

    Attributes:
        series: the points.
        change: what the line changes by from the first step to the last, at most as much as the points differ.
        z: the slope divided by its standard error, which comes from the residuals.
    """

    series: Sequence[Point]
    change: float
    z: float

    def began(self) -> int:
        """The step at which a level turns into a line, by the smallest sum of squared residuals."""
        steps, values, weights = zip(*self.series, strict=True)
        fits = []
        for at in steps[:-2]:
            after = [float(max(0, step - at)) for step in steps]
            fits.append((_line(after, values, weights)[1], at))
        began: int = min(fits)[1]
        return began


def trend(series: Sequence[Point]) -> Trend | None:
    """Fit a line to a series; None if it has fewer than four points."""
    if len(series) < 4:
        return None
    steps, values, weights = zip(*series, strict=True)
    slope, left = _line(steps, values, weights)
    total = sum(weights)
    mean = sum(w * t for w, t in zip(weights, steps, strict=True)) / total
    spread = sum(w * (t - mean) ** 2 for w, t in zip(weights, steps, strict=True))
    error = math.sqrt(max(0.0, left) / (len(series) - 2) / spread)
    z = slope / error if error > ROUNDING else math.copysign(math.inf, slope) if abs(slope) > ROUNDING else 0.0
    seen = max(values) - min(values)  # at a jump, the line rises by more than any of the values differ
    return Trend(series, max(-seen, min(seen, slope * (steps[-1] - steps[0]))), z)


def _line(x: Sequence[float], y: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Return the slope and the weighted sum of squared residuals."""
    total = sum(weights)
    mean_x = sum(w * a for w, a in zip(weights, x, strict=True)) / total
    mean_y = sum(w * b for w, b in zip(weights, y, strict=True)) / total
    xx = sum(w * (a - mean_x) ** 2 for w, a in zip(weights, x, strict=True))
    xy = sum(w * (a - mean_x) * (b - mean_y) for w, a, b in zip(weights, x, y, strict=True))
    yy = sum(w * (b - mean_y) ** 2 for w, b in zip(weights, y, strict=True))
    return (xy / xx, yy - xy * xy / xx) if xx > 0 else (0.0, yy)


FIRST_STEPS, HISTORY_STEPS = 10, 400
"""How many steps are read: the first ones of the run, and the last ones."""

GOLD_RANGES = 10
"""The most ranges of steps for which the comparison with the gold judge is reported."""

MIN_TEMPLATE_CHANGE = 0.2
"""The least rise of the share of duplicates or templates that is reported."""

CONTROL_CRITICAL = 0.05
"""The share of changed verdicts on the control set from which the change is critical."""

UNSCORED_CRITICAL = 4
"""How many times the largest allowed share of unscored responses is critical."""

_MEAN_BUCKETS = 40

_SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")


@dataclass(frozen=True)
class RunHistory:
    """What monitors see of a run."""

    run: MonitoredRun
    thresholds: MonitorThresholds

    @property
    def last_step(self) -> int:
        """The last step that was read."""
        return self.run.steps[-1].step

    @cached_property
    def by_signal(self) -> Mapping[tuple[str, str], Sequence[SignalSums]]:
        """The sums of each signal and name, in the order of the steps."""
        found: defaultdict[tuple[str, str], list[SignalSums]] = defaultdict(list)
        for row in (*self.run.signals, *self.run.gold):
            found[row.signal, row.name].append(row)
        return found

    def named(self, signal: str) -> Iterator[tuple[str, Sequence[SignalSums]]]:
        """The names of a signal, and the sums of each."""
        for (kind, name), rows in self.by_signal.items():
            if kind == signal:
                yield name, rows

    @cached_property
    def rewards(self) -> Sequence[Point]:
        """The mean reward of each step."""
        return [Point(one.step, one.reward_sum / one.rewards, one.rewards) for one in self.run.steps if one.rewards]

    def trends(self, series: Sequence[Point]) -> dict[str, tuple[Trend, Sequence[Point]]]:
        """The trends over the last steps (`recent`) and over all that were read (`all`), if there are enough points."""
        limits = self.thresholds
        recent = [point for point in series if point.step > self.last_step - limits.window_steps]
        windows: dict[str, Sequence[Point]] = {"recent": recent}
        if len(recent) < len(series):
            windows["all"] = series
        trends: dict[str, tuple[Trend, Sequence[Point]]] = {}
        for name, window in windows.items():
            if len(window) >= limits.min_steps and (found := trend(bucketed(window))) is not None:
                trends[name] = found, window
        return trends


def bucketed(series: Sequence[Point]) -> list[Point]:
    """Reduce a long series to at most 40 weighted means of consecutive points."""
    size = -(-len(series) // _MEAN_BUCKETS)
    if size == 1:
        return [*series]
    found = []
    for start in range(0, len(series), size):
        part = series[start : start + size]
        weight = sum(point.weight for point in part)
        value = sum(point.value * point.weight for point in part) / weight
        found.append(Point(part[len(part) // 2].step, value, weight))
    return found


def shadow_divergence(history: RunHistory) -> Iterator[MonitorFinding]:
    """The reward rises while a shadow criterion falls: the policy earns reward for something else than was meant.

    Severity: critical. It fires if both have a trend of `z` (4) standard errors and of at least `min_change` (0.05).
    It needs a shadow criterion.

    What to do: stop the run, and read the best-rewarded responses of the last steps. The policy probably games a
    rewarded criterion.
    """
    limits = history.thresholds
    rewards = history.trends(history.rewards)
    for name, rows in history.named("shadow"):
        shadows = history.trends([Point(row.step, row.y / row.pairs, row.pairs) for row in rows])
        for span in [name for name in rewards if name in shadows]:
            (rising, _), (falling, window) = rewards[span], shadows[span]
            if _rises(rising, limits, limits.min_change) and _rises(_negated(falling), limits, limits.min_change):
                recent = [row for row in rows if row.step >= window[0].step]
                pull = _within(recent, limits)
                evidence = {"reward_change": rising.change, "reward_z": rising.z}
                evidence |= {"shadow_change": falling.change, "shadow_z": falling.z, "from_step": window[0].step}
                yield _finding(
                    history,
                    "shadow_divergence",
                    "critical",
                    falling.began(),
                    f"the reward rose by {rising.change:.2f} while shadow criterion {name!r} fell by "
                    f"{-falling.change:.2f}, over steps {window[0].step} to {window[-1].step}",
                    "Stop the run and read the best-rewarded responses of the last steps: "
                    "the policy probably games a rewarded criterion.",
                    evidence | ({"correlation_within_groups": pull.value} if pull else {}),
                    subject=name,
                )
                break


def gold_drift(history: RunHistory) -> Iterator[MonitorFinding]:
    """The judge's rewards rise away from those of the gold judge.

    Severity: critical. It fires if the judge's reward minus the gold judge's has a trend of `z` (4) standard errors
    and of at least `min_change` (0.05). It needs a gold judge.

    What to do: stop the run, and compare both judges' verdicts on the sampled responses, under the run's name with
    `/gold`.
    """
    limits = history.thresholds
    rows = history.by_signal.get(("gold", ""), ())
    series = [Point(row.step, (row.x - row.y) / row.pairs, row.pairs) for row in rows]
    for found, window in history.trends(series).values():
        if _rises(found, limits, limits.min_change):
            recent = [row for row in rows if row.step > history.last_step - limits.window_steps] or rows
            difference = _difference(recent, limits.interval_z)
            evidence = {"change": found.change, "z": found.z, "from_step": float(window[0].step)}
            if difference is not None:
                evidence |= {"difference": difference.value, "low": difference.low, "high": difference.high}
            yield _finding(
                history,
                "gold_drift",
                "critical",
                found.began(),
                f"the judge's rewards rose by {found.change:.2f} above the gold judge's, over steps "
                f"{window[0].step} to {window[-1].step}",
                "Stop the run and compare both judges' verdicts on the sampled responses, under the run's /gold.",
                evidence,
            )
            break


def saturated_criterion(history: RunHistory) -> Iterator[MonitorFinding]:
    """All responses of the last groups meet a criterion, or none does, so that it tells responses apart no more.

    Severity: info. It looks at the last `saturated_groups` (128) groups.

    What to do: if all meet it, replace it by a harder criterion, or save its judge calls with `dropout.saturated`. If
    none does, check its wording with `adjudge rubrics discriminate`.
    """
    needed = history.thresholds.saturated_groups
    for name, rows in history.named("criterion"):
        for met in (True, False):
            groups, began = 0, None
            for row in reversed(rows):
                if round(row.x if met else row.y) < row.pairs:
                    break
                groups, began = groups + row.pairs, row.step
            if groups >= needed:
                state = "met by all responses" if met else "met by no response"
                yield _finding(
                    history,
                    "saturated_criterion",
                    "info",
                    began,
                    f"criterion {name!r} was {state} of the last {groups} groups, so it gives no signal",
                    "Replace it by a harder criterion, or save its judge calls with dropout.saturated."
                    if met
                    else "Check its wording with `adjudge rubrics discriminate`; it may be impossible to meet.",
                    {"groups": float(groups), "met": float(met)},
                    subject=name,
                )


def length_bias(history: RunHistory) -> Iterator[MonitorFinding]:
    """Longer responses of a group get more reward, and responses grow.

    Severity: warning. It fires if reward and length correlate within groups by at least `min_length_correlation`
    (0.3), by the lower end of its interval, and the mean length has a trend of at least `min_length_growth` (10%).

    What to do: read the longest responses. Set a length penalty, or make the criteria ask for brevity.
    """
    limits = history.thresholds
    for unit, rows in history.named("length"):
        lengths = [Point(row.step, row.y / row.pairs, row.pairs) for row in rows]
        for growth, window in history.trends(lengths).values():
            base = window[0].value if window else 0.0
            recent = [row for row in rows if row.step >= window[0].step]
            pull = _within(recent, limits)
            if (
                pull is not None
                and pull.low >= limits.min_length_correlation
                and _rises(growth, limits, limits.min_length_growth * base)
            ):
                yield _finding(
                    history,
                    "length_bias",
                    "warning",
                    growth.began(),
                    f"longer responses get more reward (correlation {pull.value:.2f} within groups), and the mean "
                    f"length grew by {growth.change:.0f} {unit}, over steps {window[0].step} to {window[-1].step}",
                    "Read the longest responses; set a length penalty, or make the criteria ask for brevity.",
                    {"correlation": pull.value, "low": pull.low, "growth": growth.change, "z": growth.z},
                )
                break


def unscored(history: RunHistory) -> Iterator[MonitorFinding]:
    """Many responses get no reward, so the policy is trained on a selection of them.

    Severity: warning; critical from four times the limit. It fires if more than `max_unscored` (5%) of the responses
    of the last `recent_steps` (5) steps have no reward, by the lower end of the interval.

    What to do: see which verdicts fail and why, with `adjudge runs show` and the runbook of failed verdicts.
    """
    limits = history.thresholds
    recent = history.run.steps[-limits.recent_steps :]
    count = sum(step.responses for step in recent)
    if not count:
        return
    share = share_interval(sum(step.unscored for step in recent), count, limits.interval_z)
    if share.low > limits.max_unscored:
        began = history.last_step
        for step in reversed(history.run.steps):
            if step.responses and step.unscored / step.responses <= limits.max_unscored:
                break
            began = step.step
        yield _finding(
            history,
            "unscored",
            "critical" if share.low > UNSCORED_CRITICAL * limits.max_unscored else "warning",
            began,
            f"{share.value:.0%} of the responses of the last {len(recent)} steps have no reward",
            "See which verdicts fail and why: `adjudge runs show`, and the runbook of failed verdicts.",
            {"share": share.value, "low": share.low, "high": share.high, "responses": float(count)},
        )


def duplicates(history: RunHistory) -> Iterator[MonitorFinding]:
    """More and more responses are the same for different prompts.

    Severity: warning. It fires if the share of such responses rises by at least 0.2. It needs responses to several
    prompts in one request.

    What to do: read some responses to different prompts. Find out what they repeat, and which criterion rewards it.
    """
    yield from _overlap(history, "duplicates", lambda row: row.x, "repeat those to other prompts")


def templates(history: RunHistory) -> Iterator[MonitorFinding]:
    """More and more responses share half of their text with responses to other prompts.

    Severity: warning. It fires if the share of such responses rises by at least 0.2. It needs responses to several
    prompts in one request.

    What to do: read some responses to different prompts. Find out what they repeat, and which criterion rewards it.
    """
    yield from _overlap(history, "templates", lambda row: row.y, "share half of their text with those to other prompts")


def _overlap(
    history: RunHistory, monitor: MonitorName, sum_of: Callable[[SignalSums], float], what: str
) -> Iterator[MonitorFinding]:
    rows = history.by_signal.get(("overlap", ""), ())
    shares = [Point(row.step, sum_of(row) / row.pairs, row.pairs) for row in rows]
    for found, window in history.trends(shares).values():
        if _rises(found, history.thresholds, MIN_TEMPLATE_CHANGE):
            yield _finding(
                history,
                monitor,
                "warning",
                found.began(),
                f"the share of responses that {what} rose by {found.change:.0%}, over steps {window[0].step} to "
                f"{window[-1].step}",
                "Read some responses to different prompts: what do they repeat, and which criterion rewards it?",
                {"change": found.change, "z": found.z, "share": window[-1].value},
            )
            break


def member_disagreement(history: RunHistory) -> Iterator[MonitorFinding]:
    """The judges of a cascade or panel disagree more and more often, so that responses probably deceive one of them.

    Severity: warning. It fires if the share of disagreements, of the verdicts that several judges gave, rises by at
    least `min_change` (0.05). It needs a cascade or panel.

    What to do: read verdicts on which members differ. Find out which of the judges the responses deceive.
    """
    limits = history.thresholds
    rows = [row for row in history.by_signal.get(("members", ""), ()) if row.x]
    for found, window in history.trends([Point(row.step, row.y / row.x, row.x) for row in rows]).values():
        if not _rises(found, limits, limits.min_change):
            continue
        recent = [row for row in rows if row.step > history.last_step - limits.recent_steps] or rows[-1:]
        compared, verdicts = sum(row.x for row in recent), sum(row.pairs for row in recent)
        share = share_interval(sum(row.y for row in recent), round(compared), limits.interval_z)
        evidence = {"change": found.change, "z": found.z, "share": share.value, "low": share.low, "high": share.high}
        yield _finding(
            history,
            "member_disagreement",
            "warning",
            found.began(),
            f"judges of the cascade or panel disagree on {share.value:.0%} of the last {compared:.0f} verdicts that "
            f"several of them gave, and that share rose by {found.change:.0%} over steps {window[0].step} to "
            f"{window[-1].step}",
            "Read verdicts on which members differ: which of the judges do the responses deceive?",
            evidence | {"compared": compared, "asked_several": compared / verdicts},
            subject=_most_disputed(history, recent[0].step),
        )
        break


def _most_disputed(history: RunHistory, first_step: int) -> str | None:
    """The criterion on which members disagreed most often since a step; None if the run has no criteria of its own."""
    counts: defaultdict[str, float] = defaultdict(float)
    for name, rows in history.named("members"):
        if name:
            counts[name] += sum(row.y for row in rows if row.step >= first_step)
    return max(counts, key=lambda name: counts[name]) if counts else None


def control_changed(history: RunHistory) -> Iterator[MonitorFinding]:
    """The judge gives another verdict on the control set than before, although its fingerprint is the same.

    Severity: warning; critical above 5% of the verdicts. It needs a control set.

    What to do: the judge is not deterministic, or its engine or weights changed unnoticed. Do not compare rewards
    before and after.
    """
    rounds = _control_rounds(history.run.control)
    if not rounds:
        return
    fingerprint, step, latest = rounds[-1]
    first: dict[tuple[str, bytes, str], bool] = {}
    began: int | None = None
    for other, at, verdicts in rounds:
        if other == fingerprint:
            if began is None and any(first.setdefault(key, met) != met for key, met in verdicts.items()):
                began = at
            for key, met in verdicts.items():
                first.setdefault(key, met)
    changed = [key for key, met in latest.items() if first[key] != met]
    if changed:
        share = len(changed) / len(latest)
        yield _finding(
            history,
            "control_changed",
            "critical" if share > CONTROL_CRITICAL else "warning",
            began,
            f"{len(changed)} of {len(latest)} verdicts on the control set differ from the first ones, and the judge's "
            "fingerprint is the same",
            "The judge is not deterministic, or its engine or weights changed unnoticed; rewards before and after "
            "cannot be compared.",
            {"changed": float(len(changed)), "verdicts": float(len(latest)), "control_step": float(step)},
        )


def control_fingerprint(history: RunHistory) -> Iterator[MonitorFinding]:
    """The control set was judged by a judge with another fingerprint than before.

    Severity: info; warning if verdicts differ. It needs a control set.

    What to do: if the change was meant, judge the run's next steps apart. `adjudge judges compare` says how rewards
    move.
    """
    rounds = _control_rounds(history.run.control)
    before = [one for one in rounds if rounds and one[0] != rounds[-1][0]]
    if not before:
        return
    (_, _, old), (fingerprint, _, latest) = before[-1], rounds[-1]
    began = next(step for other, step, _ in rounds[rounds.index(before[-1]) + 1 :] if other == fingerprint)
    both = [key for key in latest if key in old]
    changed = sum(latest[key] != old[key] for key in both)
    yield _finding(
        history,
        "control_fingerprint",
        "warning" if changed else "info",
        began,
        f"the judge changed (another fingerprint): {changed} of {len(both)} verdicts on the control set differ",
        "If the change was meant, judge the run's next steps apart; `adjudge judges compare` says how rewards move.",
        {"changed": float(changed), "verdicts": float(len(both))},
    )


MonitorFunction = Callable[[RunHistory], Iterable[MonitorFinding]]

MONITORS: Mapping[MonitorName, tuple[str, MonitorFunction]] = {
    "shadow_divergence": ("shadow", shadow_divergence),
    "gold_drift": ("gold", gold_drift),
    "control_changed": ("control", control_changed),
    "control_fingerprint": ("control", control_fingerprint),
    "saturated_criterion": ("criterion", saturated_criterion),
    "length_bias": ("length", length_bias),
    "unscored": ("", unscored),
    "duplicates": ("overlap", duplicates),
    "templates": ("overlap", templates),
    "member_disagreement": ("members", member_disagreement),
}
"""Each monitor by its name: the signal that it needs, none for those that need only rewards, and its function."""


async def monitor_run(
    ledger: RunReader, project_id: str, run: str, thresholds: MonitorThresholds, *, until_step: int | None = None
) -> MonitorReport | None:
    """Read a run up to a step and apply all monitors; None if the run has no step.

    Raises:
        ConnectionError: the ledger cannot be read.
    """
    query = MonitorQuery(project_id, run, FIRST_STEPS, max(HISTORY_STEPS, thresholds.window_steps), until_step)
    found = await ledger.monitored_run(query)
    return await asyncio.to_thread(report, run, found, thresholds) if found.steps else None


async def monitor_runs(
    ledger: RunReader, project_id: str, runs: Iterable[str], thresholds: MonitorThresholds
) -> AsyncIterator[tuple[str, MonitorReport]]:
    """Apply all monitors to several runs, one after the other, and yield those that have steps; see `monitor_run`."""
    for run in runs:
        found = await monitor_run(ledger, project_id, run, thresholds)
        if found is not None:
            yield run, found


def report(run: str, monitored: MonitoredRun, thresholds: MonitorThresholds) -> MonitorReport:
    """Apply all monitors to a run that has steps."""
    history = RunHistory(monitored, thresholds)
    signals = {"", *(signal for signal, _ in history.by_signal)} | ({"control"} if monitored.control else set())
    applied = {name: function for name, (signal, function) in MONITORS.items() if signal in signals}
    findings = [finding for function in applied.values() for finding in function(history)]
    return MonitorReport(
        run=run or None,
        first_step=monitored.steps[0].step,
        last_step=history.last_step,
        monitors=tuple(applied),
        findings=tuple(sorted(findings, key=lambda one: _SEVERITIES.index(one.severity))),
        gold=tuple(_gold_comparisons(history)),
        thresholds=thresholds,
    )


def _gold_comparisons(history: RunHistory) -> Iterator[GoldComparison]:
    steps = sorted({row.step for row in history.run.gold})
    size = max(1, -(-len(steps) // GOLD_RANGES))
    z = history.thresholds.interval_z
    for start in range(0, len(steps), size):
        first, last = steps[start], steps[min(start + size, len(steps)) - 1]
        rows = [row for row in history.run.gold if first <= row.step <= last]
        rewards, criteria = [row for row in rows if not row.name], [row for row in rows if row.name]
        verdicts = sum(row.pairs for row in criteria)
        agreeing = verdicts - sum(row.xx - 2 * row.xy + row.yy for row in criteria)
        yield GoldComparison(
            first_step=first,
            last_step=last,
            responses=sum(row.pairs for row in rewards),
            difference=_difference(rewards, z),
            agreement=share_interval(agreeing, verdicts, z) if verdicts else None,
        )


def _difference(rows: Sequence[SignalSums], z: float) -> Interval | None:
    """The mean of x - y with its interval."""
    total = sum(row.x - row.y for row in rows)
    squares = sum(row.xx - 2 * row.xy + row.yy for row in rows)
    return mean_interval(total, squares, sum(row.pairs for row in rows), z)


def _within(rows: Sequence[SignalSums], limits: MonitorThresholds) -> Interval | None:
    """The correlation of x and y within groups, with its interval."""
    xx, yy, xy = sum(r.within_xx for r in rows), sum(r.within_yy for r in rows), sum(r.within_xy for r in rows)
    return correlation_interval(xx, yy, xy, sum(row.within for row in rows), limits.interval_z)


def _rises(found: Trend, limits: MonitorThresholds, least: float) -> bool:
    return found.z >= limits.z and found.change >= least


def _negated(found: Trend) -> Trend:
    return found._replace(change=-found.change, z=-found.z)


def _control_rounds(
    control: Sequence[ControlVerdict],
) -> list[tuple[str | None, int, dict[tuple[str, bytes, str], bool]]]:
    """The rounds of the control set, oldest first: fingerprint, step, and the verdicts that did not fail."""
    rounds: dict[bytes, tuple[str | None, int, dict[tuple[str, bytes, str], bool]]] = {}
    for row in control:
        _, _, verdicts = rounds.setdefault(row.request, (row.fingerprint, row.step or 0, {}))
        if row.score is not None:
            verdicts[row.group_id, row.response, row.criterion] = row.score >= MET_FROM
    return [one for one in rounds.values() if one[2]]


def _finding(
    history: RunHistory,
    monitor: MonitorName,
    severity: Severity,
    began: int | None,
    message: str,
    action: str,
    evidence: Mapping[str, float],
    *,
    subject: str | None = None,
) -> MonitorFinding:
    return MonitorFinding(
        monitor=monitor,
        severity=severity,
        subject=subject,
        began=began,
        step=history.last_step,
        message=message,
        action=action,
        evidence={name: round(value, 6) for name, value in evidence.items() if abs(value) != float("inf")},
    )
