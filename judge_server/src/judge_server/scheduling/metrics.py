"""The Prometheus metrics of a judge and of the runs it serves; each judge has a registry of its own.

Run names come from outside and each label is a series that a monitoring system keeps for weeks, so at most
`RUN_LABELS` runs have a label of their own: the most active ones. All others count as `(other)`. A run that overtakes
the least active labelled run takes its label. Every series only grows: what was counted under `(other)` stays there,
and a run that gets a label starts at 0.
"""

import collections
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from judge_server.judging.results import Caller, Outcomes, failures_by_kind, label_of_run
from judge_server.ports import CallFailure
from judge_server.scheduling.queueing import DecayingRate
from trainer_client.wire.judges import WeightsDrift

OTHER_LABEL = "(other)"
NO_RUN_LABEL = "(none)"
"""The label of requests that name no run."""

_HALF_LIFE_S = 60.0
_REWARDS_HALF_LIFE_S = 300.0
_MIN_REWARDS = 1e-3
_CANDIDATES_PER_LABEL = 8
_TAKEOVER_RATIO = 2.0


RUN_LABELS = 20
"""How many runs have a label of their own."""

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_RUN_COUNTS = {
    "judgements": "Verdicts answered, cached ones included",
    "prompt_tokens_computed": "Prompt tokens that the engine computed",
    "prompt_tokens_reused": "Prompt tokens whose computation was reused",
}


class QueueState(Protocol):
    """The queue state that the metrics report."""

    def state(self) -> tuple[int, int, int, Iterable[tuple[str, int]]]:
        """Return calls waiting, calls at the engine, the limit on batches at the engine, and calls held by each run."""


class JudgeMetrics(Collector):
    """The metrics of one judge. `clock` returns seconds.

    `meter` is called with the project of each request and the prompt tokens computed for it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        self._queue: QueueState | None = None
        self.meter: Callable[[str, int], None] | None = None
        self._runs = RunTable(RUN_LABELS, clock)
        counter = partial(Counter, registry=registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=registry)
        self._queued = seconds(
            "adjudge_queue_seconds", "Seconds a response's calls waited for the engine", ["priority"]
        )
        self._at_engine = seconds(
            "adjudge_engine_seconds", "Seconds a response's calls took at the engine", ["priority"]
        )
        self._cache = seconds(
            "adjudge_cache_seconds",
            "Seconds the verdict cache took for all verdicts of a request, to get or put them",
            ["operation"],
        )
        self._judgements = counter(
            "adjudge_judgements",
            "Verdicts answered: judged, cached, joined (from a call of another request), checked by a program, or "
            "failed, with the kind of the failure",
            ["outcome", "failure"],
        )
        self._uncertain = counter(
            "adjudge_uncertain_verdicts",
            "Verdicts answered as uncertain, of requests or calibrations that set an uncertain band",
        )
        self._calls = counter("adjudge_judge_calls", "Calls sent to the engine, retries included")
        self._lookups = counter(
            "adjudge_cache_lookups", "Verdicts looked up in the cache, by result: hit or miss", ["result"]
        )
        self._tokens = counter("adjudge_prompt_tokens", "Prompt tokens of judge calls: computed, or reused", ["source"])
        self._written = counter("adjudge_tokens_written", "Tokens that the judge generated")
        self._clipped = counter(
            "adjudge_engine_counts_clipped",
            "Replies whose token counts were impossible and were clipped to what the request allows",
        )
        self._weights = counter(
            "adjudge_weights_changes", "Changes of the judge's weights: loaded, refused, or failed", ["outcome"]
        )
        self._step = Gauge("adjudge_weights_step", "Training step of the judge's weights", registry=registry)
        self._drift = Gauge(
            "adjudge_weights_drift",
            "Last drift on a control set: share of verdicts changed, mean change and mean distance of probabilities",
            ["figure"],
            registry=registry,
        )
        self._shed = counter("adjudge_requests_shed", "Requests refused with 429 because the queue was full")
        self._shed_calls = counter("adjudge_calls_shed", "The judge calls of refused requests")
        ProcessCollector(registry=registry)
        registry.register(self)

    def watch(self, queue: QueueState) -> None:
        """Report the state of this queue from now on."""
        self._queue = queue

    def calls_by_run(self) -> dict[str, int]:
        """Return the calls that are queued or at the engine by run key, as in `Caller.run`."""
        return {} if self._queue is None else dict(self._queue.state()[3])

    def families(self) -> Iterable[Metric]:
        """Return a snapshot of all metrics, which the caller may modify."""
        return self._registry.collect()

    def batch(self, caller: Caller, queued_s: float, engine_s: float) -> None:
        """Record the times of a batch that has left the queue or the engine."""
        self._queued.labels(caller.priority).observe(queued_s)
        if engine_s:
            self._at_engine.labels(caller.priority).observe(engine_s)

    def cache_seconds(self, operation: str, seconds: float) -> None:
        """Record how long the cache took for a read (`get`) or a write (`put`)."""
        self._cache.labels(operation).observe(seconds)

    def count_shed(self, calls: int) -> None:
        """Count a refused request, and its calls."""
        self._shed.inc()
        self._shed_calls.inc(calls)

    def count_weights(self, outcome: Literal["loaded", "refused", "failed"], step: int | None = None) -> None:
        """Count a change of weights, and note the training step of those loaded."""
        self._weights.labels(outcome).inc()
        if outcome == "loaded":
            self._step.set(math.nan if step is None else step)

    def set_drift(self, drift: WeightsDrift) -> None:
        """Set the drift of the weights on a control set."""
        figures = {
            "changed": drift.changed,
            "probability_change": drift.probability_change,
            "probability_distance": drift.probability_distance,
        }
        for figure, value in figures.items():
            self._drift.labels(figure).set(math.nan if value is None else value)

    def count_clipped_reply(self) -> None:
        """Count a reply with impossible token counts, which were clipped."""
        self._clipped.inc()

    def request(self, caller: Caller, outcomes: Outcomes, looked_up: int) -> None:
        """Record what became of a request's verdicts and what they cost, whether it was answered or given up."""
        by_digest, made = outcomes.by_digest, outcomes.combined
        if made:
            by_digest = {digest: outcome for digest, outcome in by_digest.items() if digest not in made}
        failed = failures_by_kind(by_digest.values())
        joined_failures = sum(isinstance(by_digest.get(digest), CallFailure) for digest in outcomes.joined)
        joined = len(outcomes.joined) - joined_failures
        cached = len(outcomes.cached)
        answered = len(by_digest) - failed.total()
        checked = min(outcomes.checks, answered - cached)
        judged = max(0, answered - cached - joined - checked)
        for outcome, number in (("judged", judged), ("cached", cached), ("joined", joined), ("checked", checked)):
            if number > 0:
                self._judgements.labels(outcome, "").inc(number)
        for kind, number in failed.items():
            self._judgements.labels("failed", kind).inc(number)
        self._lookups.labels("hit").inc(cached)
        self._lookups.labels("miss").inc(looked_up - cached)
        costs = outcomes.costs
        self._calls.inc(costs.calls)
        self._tokens.labels("computed").inc(costs.tokens_computed)
        self._tokens.labels("reused").inc(costs.tokens_reused)
        self._written.inc(costs.tokens_written)
        if self.meter is not None:
            self.meter(caller.project_id, costs.tokens_computed)
        self._runs.add(
            caller.run,
            costs.tokens_computed + costs.tokens_reused,
            judgements=answered,
            prompt_tokens_computed=costs.tokens_computed,
            prompt_tokens_reused=costs.tokens_reused,
        )

    def count_uncertain(self, verdicts: int) -> None:
        """Count verdicts that were answered as uncertain."""
        self._uncertain.inc(verdicts)

    def observe_rewards(self, caller: Caller, rewards: Sequence[float]) -> None:
        """Record the rewards of a request."""
        self._runs.reward(caller.run, rewards)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the queue and of the runs."""
        if self._queue is not None:
            waiting, at_engine, batches, held = self._queue.state()
            yield GaugeMetricFamily("adjudge_calls_waiting", "Judge calls that wait for the engine", value=waiting)
            yield GaugeMetricFamily("adjudge_calls_at_engine", "Judge calls at the engine", value=at_engine)
            yield GaugeMetricFamily(
                "adjudge_batches_limit", "Batches (one per response) that may be at the engine at a time", value=batches
            )
            in_progress: dict[str, int] = {}
            for run, calls in held:
                label = self._runs.label_of(run)
                in_progress[label] = in_progress.get(label, 0) + calls
            by_run = GaugeMetricFamily(
                "adjudge_run_calls", "Judge calls queued or at the engine, by run", labels=["run"]
            )
            for label, calls in in_progress.items():
                by_run.add_metric([label], calls)
            yield by_run
        share = GaugeMetricFamily(
            "adjudge_run_share", "Share of the prompt tokens of the last minutes, by run", labels=["run"]
        )
        counters = {
            name: CounterMetricFamily(f"adjudge_run_{name}", f"{help_}, by run", labels=["run"])
            for name, help_ in _RUN_COUNTS.items()
        }
        reward = GaugeMetricFamily(
            "adjudge_run_reward_mean", "Mean of the rewards of the last minutes, by run", labels=["run"]
        )
        for label, row, part in self._runs.rows():
            share.add_metric([label], part)
            if row.mean_reward is not None:
                reward.add_metric([label], row.mean_reward)
            for name, family in counters.items():
                family.add_metric([label], row.counts[name])
        yield share
        yield reward
        yield from counters.values()


@dataclass(slots=True)
class RunRow:
    """Counts of one label by name, with its recent prompt tokens and the sum and number of its recent rewards."""

    recent_tokens: DecayingRate
    recent_reward_sum: DecayingRate
    recent_reward_count: DecayingRate
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def mean_reward(self) -> float | None:
        """The mean of the recent rewards; None if there are none."""
        number = self.recent_reward_count.value
        return self.recent_reward_sum.value / number if number > _MIN_REWARDS else None


class RunTable:
    """Counts by run, for a bounded number of labels. `clock` returns seconds."""

    def __init__(self, max_labels: int, clock: Callable[[], float]) -> None:
        self._max_labels = max_labels
        self._clock = clock
        self._other = self._row()
        self._rows: dict[str, RunRow] = {}
        self._candidates: dict[str, DecayingRate] = {}

    def add(self, run: str, tokens: float, **counts: float) -> None:
        """Add counts to a run, and the prompt tokens it took."""
        label = _label(run)
        row = self._rows.get(label)
        if row is None:
            row = self._admit(label, tokens)
        row.recent_tokens.add(tokens)
        row.counts.update(counts)

    def reward(self, run: str, rewards: Sequence[float]) -> None:
        """Record rewards of a run. Rewards of unlabelled runs are left out: a mean over several runs means nothing."""
        row = self._rows.get(_label(run))
        if row is not None and rewards:
            row.recent_reward_sum.add(sum(rewards))
            row.recent_reward_count.add(len(rewards))

    def rows(self) -> Iterator[tuple[str, RunRow, float]]:
        """Yield each label with its counts and its share of the recent prompt tokens, in [0, 1]."""
        rows = self._rows | ({OTHER_LABEL: self._other} if self._other.counts else {})
        total = sum(row.recent_tokens.value for row in rows.values())
        for label, row in rows.items():
            yield label, row, row.recent_tokens.value / total if total else 0.0

    def label_of(self, run: str) -> str:
        """Return the label that a run has now."""
        label = _label(run)
        return label if label in self._rows else OTHER_LABEL

    def _admit(self, label: str, tokens: float) -> RunRow:
        """Return the row for a run that has no label yet."""
        if label == OTHER_LABEL:
            return self._other
        if len(self._rows) < self._max_labels:
            return self._rows.setdefault(label, self._row())
        if label not in self._candidates:
            while len(self._candidates) >= _CANDIDATES_PER_LABEL * self._max_labels:
                del self._candidates[min(self._candidates, key=lambda name: self._candidates[name].value)]
            self._candidates[label] = DecayingRate(_HALF_LIFE_S, self._clock)
        activity = self._candidates[label]
        activity.add(tokens)
        least_active = min(self._rows, key=lambda name: self._rows[name].recent_tokens.value)
        if activity.value <= _TAKEOVER_RATIO * self._rows[least_active].recent_tokens.value:
            return self._other
        del self._rows[least_active], self._candidates[label]
        return self._rows.setdefault(label, self._row())

    def _row(self) -> RunRow:
        half_lives = _HALF_LIFE_S, _REWARDS_HALF_LIFE_S, _REWARDS_HALF_LIFE_S
        tokens, reward, rewards = [DecayingRate(half_life, self._clock) for half_life in half_lives]
        return RunRow(tokens, reward, rewards)


def _label(run: str) -> str:
    return label_of_run(run) + (NO_RUN_LABEL if not run or run.endswith("\0") else "")
