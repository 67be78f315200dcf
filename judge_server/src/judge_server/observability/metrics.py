"""The Prometheus metrics of the ledger, operations, pools and access.

The collectors get their figures from callables and method calls, so this module does not depend on the ledger, the
store or the runner. `judge_server.api.probes` serves them; `judge_server.scheduling.metrics` has those of a judge.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from judge_server.ports import MemberView
from judge_server.ports.stores import LedgerState
from rubric_store.operations.rows import OperationCounts
from trainer_client.wire import DEFAULT_JUDGE
from trainer_client.wire.judges import SleepState
from trainer_client.wire.operations import OperationKind
from trainer_client.wire.tenants import Project

log = logging.getLogger("adjudge")

ChunkStatus = Literal["done", "failed", "retry", "unavailable", "lost", "stopped"]
"""The outcome of an attempt at a chunk.

- `done`: it succeeded.
- `failed`: it cannot be done.
- `retry`: it will be tried again.
- `unavailable`: it will be tried again when the service it needs is back.
- `lost`: its lease expired or it was cancelled.
- `stopped`: it was given back because the process stops.
"""

COUNTS_TTL_S = 10.0
"""Interval between counts of the store's operations, however many clients read the metrics."""

COUNTS_TIMEOUT_S = 2.0
"""The seconds to wait for the store; after that the page omits its counts. If it is longer than Prometheus waits (10),
all metrics are missing while the database hangs."""

MAX_LABELS = 100
OTHER_LABEL = "(other)"

Refusal = Literal["no key", "rate", "budget"]

_SECONDS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_WHOLE_STORE_NOTE = "; of the whole store, the same from every process that serves the API"


_LEDGER_GAUGES: Mapping[str, tuple[str, Callable[[LedgerState], float]]] = {
    "adjudge_ledger_waiting": ("Verdicts that are not yet written to the ledger", lambda state: state.waiting),
    "adjudge_ledger_spool_bytes": ("Bytes of the ledger's spool on disk", lambda state: state.spool_bytes),
    "adjudge_ledger_memory_bytes": (
        "Bytes that wait in memory because the ledger's spool cannot be written",
        lambda state: state.memory_bytes,
    ),
    "adjudge_ledger_refused_files": ("Files of refused rows in quarantine", lambda state: state.refused_files),
    "adjudge_ledger_spool_writable": (
        "1 while the ledger's spool can be written, else 0",
        lambda state: state.spool_problem is None,
    ),
    "adjudge_ledger_lag_seconds": (
        "Age in seconds of the oldest verdict that is not yet written; 0 if none waits",
        lambda state: state.lag_s,
    ),
    "adjudge_ledger_writable": (
        "1 while the ledger's database can be written, else 0",
        lambda state: state.problem is None,
    ),
}


class LedgerMetrics(Collector):
    """The figures of `GET /v1/ledger`, read at each scrape.

    Args:
        state: returns the current state of the ledger.
    """

    def __init__(self, state: Callable[[], LedgerState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """The current metrics of the ledger."""
        state = self._state()
        verdicts = CounterMetricFamily(
            "adjudge_ledger_verdicts",
            "Verdicts by outcome: recorded (handed to the ledger), written, refused (kept aside), or lost",
            labels=["outcome"],
        )
        for outcome in ("recorded", "written", "refused", "lost"):
            verdicts.add_metric([outcome], getattr(state, outcome))
        yield verdicts
        yield CounterMetricFamily(
            "adjudge_ledger_thread_restarts",
            "Threads of the ledger that ended and were started again",
            value=state.restarts,
        )
        for name, (documentation, value_of) in _LEDGER_GAUGES.items():
            yield GaugeMetricFamily(name, documentation, value=value_of(state))


class OperationMetrics(Collector):
    """The metrics of operations: attempts at chunks in this process, and counts from the store.

    To include the counts, call `watch` once and `read` before each `collect`, which waits for the store for
    `counts_timeout_s` at most.
    """

    def __init__(
        self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, counts_timeout_s: float = COUNTS_TIMEOUT_S
    ) -> None:
        self._now = now
        self._counts_timeout_s = counts_timeout_s
        self._store: Callable[[datetime], Awaitable[OperationCounts]] | None = None
        self._counts: OperationCounts | None = None
        self._read_at: datetime | None = None
        self._reading = asyncio.Lock()
        self._registry = registry = CollectorRegistry()
        self._attempts = Counter(
            "adjudge_chunk_attempts",
            "Attempts of this process at chunks of operations, by outcome: done, failed, retry, unavailable, lost or "
            "stopped",
            ["kind", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "adjudge_chunk_seconds",
            "Seconds that this process worked on a chunk, whatever the outcome",
            ["kind"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._in_progress = Gauge("adjudge_chunks_in_work", "Chunks that this process works on", registry=registry)

    def watch(self, counts: Callable[[datetime], Awaitable[OperationCounts]]) -> None:
        """Include the counts of a store from now on; `counts` may raise `ConnectionError`."""
        self._store = counts

    def chunk_started(self) -> None:
        """Count the start of an attempt at a chunk."""
        self._in_progress.inc()

    def chunk_ended(self, kind: OperationKind, outcome: ChunkStatus, seconds: float) -> None:
        """Count the end of an attempt at a chunk."""
        self._in_progress.dec()
        self._attempts.labels(kind, outcome).inc()
        self._seconds.labels(kind).observe(seconds)

    async def read(self) -> None:
        """Read the counts of the store unless they are cached; on an error or timeout they are omitted."""
        if self._store is None:
            return
        async with self._reading:
            now = self._now()
            if self._read_at is not None and (now - self._read_at).total_seconds() < COUNTS_TTL_S:
                return
            self._read_at = now
            self._counts = None
            try:
                async with asyncio.timeout(self._counts_timeout_s):
                    self._counts = await self._store(now)
            except (ConnectionError, TimeoutError) as error:
                log.warning("operations cannot be counted now: %s", error or "the store does not answer")

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        yield from self._registry.collect()
        if self._counts is None or self._read_at is None:
            return
        operations, chunks, oldest_due_at = self._counts
        operation_gauge = GaugeMetricFamily(
            "adjudge_operations",
            f"Operations by kind and state, including ended ones that are kept{_WHOLE_STORE_NOTE}",
            labels=["kind", "state"],
        )
        for (kind, state), number in operations.items():
            operation_gauge.add_metric([kind, state], number)
        yield operation_gauge
        chunk_gauge = GaugeMetricFamily(
            "adjudge_operation_chunks",
            f"Chunks of operations that have not ended, by kind and state{_WHOLE_STORE_NOTE}",
            labels=["kind", "state"],
        )
        for (chunk_kind, chunk_state), number in chunks.items():
            chunk_gauge.add_metric([chunk_kind, chunk_state], number)
        yield chunk_gauge
        waited = 0.0 if oldest_due_at is None else (self._read_at - oldest_due_at).total_seconds()
        yield GaugeMetricFamily(
            "adjudge_operation_chunks_oldest_seconds",
            f"Seconds that the oldest chunk ready to run has waited; 0 if none waits{_WHOLE_STORE_NOTE}",
            value=waited,
        )


class PoolMetrics:
    """The metrics of the members of each judge's pool, by the judge's name."""

    def __init__(self, members_of: Mapping[str, list[MemberView]]) -> None:
        self._members_of = members_of

    def collect(self) -> Iterator[Metric]:
        """Whether each member is up, and its calls in progress."""
        up = GaugeMetricFamily(
            "adjudge_pool_member_up",
            "1 if a member of a pool receives calls, else 0: a judge behind an api, or an endpoint behind a judge",
            labels=["judge", "member"],
        )
        load = GaugeMetricFamily(
            "adjudge_pool_member_calls", "Judge calls in progress at a member of a pool", labels=["judge", "member"]
        )
        for judge, members in self._members_of.items():
            label = "" if judge == DEFAULT_JUDGE else judge
            for member in members:
                up.add_metric([label, member.name], float(member.state in ("closed", "half_open")))
                load.add_metric([label, member.name], member.load)
        if any(self._members_of.values()):
            yield up
            yield load


class SleepMetrics:
    """Which judges are asleep, by the judge's name."""

    def __init__(self, states: Mapping[str, SleepState]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """1 for a judge that is asleep, falls asleep or wakes, and 0 for one that is awake."""
        asleep = GaugeMetricFamily(
            "adjudge_judge_asleep", "1 while a judge sleeps or changes, 0 while it is awake", labels=["judge"]
        )
        for judge, state in self._states.items():
            asleep.add_metric(["" if judge == DEFAULT_JUDGE else judge], float(state != "awake"))
        yield asleep


class AccessMetrics:
    """The metrics of an authenticator: requests, tokens, refusals and limits of projects.

    Projects beyond the first hundred share one label.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._seen: set[str] = set()
        self._requests = Counter(
            "adjudge_project_requests", "Requests that asked for verdicts, by project", ["project"], registry=registry
        )
        self._tokens = Counter(
            "adjudge_project_prompt_tokens_computed",
            "Prompt tokens that the engine computed, by project",
            ["project"],
            registry=registry,
        )
        self._refusals = Counter(
            "adjudge_requests_refused",
            "Requests refused by the authenticator, by project (empty without a valid key) and reason: no key, rate or "
            "budget",
            ["project", "reason"],
            registry=registry,
        )
        self._tokens_left = Gauge(
            "adjudge_project_tokens_left",
            "Prompt tokens left of a project's budget, of the day or in total, when it was last checked",
            ["project", "budget"],
            registry=registry,
        )
        self._limits = Gauge(
            "adjudge_project_limit",
            "What a project may use: weight, requests_per_minute, tokens_per_day, tokens_total; absent for no limit",
            ["project", "limit"],
            registry=registry,
        )

    def set_limits(self, projects: Iterable[Project]) -> None:
        """Replace the limits of projects."""
        self._limits.clear()
        for project in projects:
            if (label := self._label(project.id)) != OTHER_LABEL:
                for name, value in project.limits:
                    if value is not None:
                        self._limits.labels(label, name).set(value)

    def count_request(self, project_id: str, tokens: int) -> None:
        """Count a judged request and the prompt tokens that the engine computed for it."""
        label = self._label(project_id)
        self._requests.labels(label).inc()
        self._tokens.labels(label).inc(tokens)

    def count_refusal(self, project_id: str, reason: Refusal) -> None:
        """Count a refused request; `project_id` is empty if the project is unknown."""
        self._refusals.labels(self._label(project_id) if project_id else "", reason).inc()

    def set_tokens_left(self, project_id: str, budget: Literal["day", "total"], tokens: int) -> None:
        """Set the tokens left of a budget."""
        self._tokens_left.labels(self._label(project_id), budget).set(max(0, tokens))

    def collect(self) -> Iterable[Metric]:
        """The current metrics."""
        return self._registry.collect()

    def _label(self, project_id: str) -> str:
        if project_id not in self._seen and len(self._seen) >= MAX_LABELS:
            return OTHER_LABEL
        self._seen.add(project_id)
        return project_id
