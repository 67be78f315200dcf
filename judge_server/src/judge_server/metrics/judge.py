"""What a judge counts and times, each judge in a registry of its own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from judge_server.judging.work import Caller, CallOutcome, JudgementResults, failures_by_kind
from judge_server.metrics.runs import RunTable
from judge_server.ports import CallFailure

RUN_LABELS = 20
"""How many runs have a label of their own."""

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_RUN_COUNTS = {
    "judgements": "Verdicts answered, cached ones included",
    "prompt_tokens_computed": "Prompt tokens that the engine computed",
    "prompt_tokens_reused": "Prompt tokens whose computation was reused",
}


class QueueState(Protocol):
    """What is read of the queue when somebody looks."""

    def state(self) -> tuple[int, int, int, Iterable[tuple[str, int]]]:
        """Calls waiting, calls at the engine, batches that may be at the engine, and each run's calls on their way."""


class JudgeMetrics(Collector):
    """The metrics of one judge. `clock` gives seconds.

    `meter` is told the project of each request and the prompt tokens computed for it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        self._queue: QueueState | None = None
        self.meter: Callable[[str, int], None] | None = None
        self._runs = RunTable(RUN_LABELS, clock)
        self._queued = Histogram(
            "adjudge_queue_seconds",
            "Seconds a response's calls waited for the engine",
            ["priority"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._at_engine = Histogram(
            "adjudge_engine_seconds",
            "Seconds a response's calls took at the engine",
            ["priority"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._cache = Histogram(
            "adjudge_cache_seconds",
            "Seconds the verdict cache took, for all verdicts of a request",
            ["operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._judgements = Counter(
            "adjudge_judgements",
            "Verdicts answered: judged, cached, joined, checked by a program, or failed, and of what kind",
            ["outcome", "failure"],
            registry=registry,
        )
        self._calls = Counter(
            "adjudge_judge_calls", "Calls that the engine was given, tries again too", registry=registry
        )
        self._lookups = Counter("adjudge_cache_lookups", "Verdicts looked up", ["result"], registry=registry)
        self._tokens = Counter(
            "adjudge_prompt_tokens", "Prompt tokens of judge calls: computed, or reused", ["source"], registry=registry
        )
        self._written = Counter("adjudge_tokens_written", "Tokens that the judge wrote", registry=registry)
        self._clipped = Counter(
            "adjudge_engine_counts_clipped",
            "Replies whose counts of tokens could not be, and were clipped to what the request makes possible",
            registry=registry,
        )
        self._shed = Counter("adjudge_requests_shed", "Requests refused because the queue was full", registry=registry)
        self._shed_calls = Counter("adjudge_calls_shed", "The judge calls of refused requests", registry=registry)
        ProcessCollector(registry=registry)
        registry.register(self)

    def watch(self, queue: QueueState) -> None:
        """Show the state of this queue from now on."""
        self._queue = queue

    def families(self) -> Iterable[Metric]:
        """Everything, at this moment; the caller may change what it is given."""
        return self._registry.collect()

    def batch(self, caller: Caller, queued_s: float, engine_s: float) -> None:
        """A response's calls have left the queue or the engine."""
        self._queued.labels(caller.priority).observe(queued_s)
        if engine_s:
            self._at_engine.labels(caller.priority).observe(engine_s)

    def cache_seconds(self, operation: str, seconds: float) -> None:
        """The cache was read (`get`) or written (`put`)."""
        self._cache.labels(operation).observe(seconds)

    def count_shed(self, calls: int) -> None:
        """A request with so many calls was refused."""
        self._shed.inc()
        self._shed_calls.inc(calls)

    def count_clipped_reply(self) -> None:
        """A reply's counts of tokens could not be, and were clipped."""
        self._clipped.inc()

    def request(self, caller: Caller, outcomes: JudgementResults, looked_up: int) -> None:
        """A request is answered, or given up: what became of its verdicts, and what they cost."""
        failed = failures_by_kind(outcomes.by_digest.values())
        of = outcomes.by_digest
        joined = len(outcomes.joined) - sum(1 for digest in outcomes.joined if digest in of and _failed(of[digest]))
        cached = len(outcomes.cached)
        answered = len(of) - failed.total()
        checked = min(outcomes.checks, answered - cached)
        judged = max(0, answered - cached - joined - checked)
        for outcome, number in (("judged", judged), ("cached", cached), ("joined", joined), ("checked", checked)):
            if number > 0:
                self._judgements.labels(outcome, "").inc(number)
        for kind, number in failed.items():
            self._judgements.labels("failed", kind).inc(number)
        self._lookups.labels("hit").inc(cached)
        self._lookups.labels("miss").inc(looked_up - cached)
        self._calls.inc(outcomes.calls)
        self._tokens.labels("computed").inc(outcomes.tokens_computed)
        self._tokens.labels("reused").inc(outcomes.tokens_reused)
        self._written.inc(outcomes.tokens_written)
        if self.meter is not None:
            self.meter(caller.project_id, outcomes.tokens_computed)
        self._runs.add(
            caller.run,
            outcomes.tokens_computed + outcomes.tokens_reused,
            judgements=answered,
            prompt_tokens_computed=outcomes.tokens_computed,
            prompt_tokens_reused=outcomes.tokens_reused,
        )

    def observe_rewards(self, caller: Caller, rewards: Sequence[float]) -> None:
        """Rewards were made of a request's verdicts."""
        self._runs.reward(caller.run, rewards)

    def collect(self) -> Iterator[Metric]:
        """What is read of the queue, and by run, at this moment."""
        if self._queue is not None:
            waiting, at_engine, batches, held = self._queue.state()
            yield GaugeMetricFamily("adjudge_calls_waiting", "Judge calls that wait for the engine", value=waiting)
            yield GaugeMetricFamily("adjudge_calls_at_engine", "Judge calls that the engine has", value=at_engine)
            yield GaugeMetricFamily(
                "adjudge_batches_limit", "Responses that the engine may have at a time", value=batches
            )
            in_progress: dict[str, int] = {}
            for run, calls in held:
                label = self._runs.label_of(run)
                in_progress[label] = in_progress.get(label, 0) + calls
            by_run = GaugeMetricFamily("adjudge_run_calls", "Judge calls on their way, by run", labels=["run"])
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


def _failed(outcome: CallOutcome) -> bool:
    return isinstance(outcome, CallFailure)
