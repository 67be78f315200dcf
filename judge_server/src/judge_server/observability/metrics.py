"""The metrics of the ledger, operations, pools and access.

What a judge tells of itself, in Prometheus' format. Knows no HTTP: `judge_server.api.probes` shows it.

How the ledger of this process stands, as metrics. Knows no ledger: whoever has one says how it stands.

How operations go, as metrics: what this process did of their chunks, and what the store holds of them.

Knows no store and no runner: the one says what it holds when somebody looks, the other what became of its chunks.

What is known of the members of pools: endpoints behind a judge, judges behind an api.

What each project asked for and was refused, for Prometheus. Projects are made by hand, so their labels are few.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from judge_server.pools import MemberView
from trainer_client.wire import DEFAULT_JUDGE
from trainer_client.wire.ledger import LedgerState
from trainer_client.wire.operations import OperationCounts, OperationKind
from trainer_client.wire.tenants import Project


class LedgerMetrics(Collector):
    """What `GET /v1/ledger` says, read when somebody looks.

    Args:
        state: how the ledger stands at this moment.
    """

    def __init__(self, state: Callable[[], LedgerState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """The ledger's metrics at this moment."""
        state = self._state()
        verdicts = CounterMetricFamily(
            "adjudge_ledger_verdicts", "Verdicts handed to the ledger, written, refused, and lost", labels=["outcome"]
        )
        for outcome in ("recorded", "written", "refused", "lost"):
            verdicts.add_metric([outcome], getattr(state, outcome))
        yield verdicts
        yield GaugeMetricFamily("adjudge_ledger_waiting", "Verdicts on their way into the ledger", value=state.waiting)
        yield GaugeMetricFamily(
            "adjudge_ledger_spool_bytes", "Bytes of the ledger's spool on disk", value=state.spool_bytes
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_memory_bytes",
            "Bytes that wait in memory because the ledger's spool cannot be written",
            value=state.memory_bytes,
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_refused_files",
            "Files of rows that the ledger refused and that are kept aside",
            value=state.refused_files,
        )
        yield CounterMetricFamily(
            "adjudge_ledger_thread_restarts",
            "Threads of the ledger that ended and were started again",
            value=state.restarts,
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_spool_writable", "1 while the ledger's spool can be written, else 0",
            value=state.spool_problem is None,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "adjudge_ledger_lag_seconds", "Age of what has waited longest for the ledger", value=state.lag_s
        )
        yield GaugeMetricFamily(
            "adjudge_ledger_writable", "1 while the ledger's database can be written, else 0",
            value=state.problem is None,
        )  # fmt: skip


ChunkStatus = Literal["done", "failed", "retry", "unavailable", "lost", "stopped"]
"""What became of a chunk that was begun: done; cannot be done; to be tried again; to be tried again when what it needs
is back; taken away, since its lease ran out or somebody cancelled; given back, since its process stops."""

COUNTS_TTL_S = 10.0
"""Seconds for which what the store holds is taken to stand, however often somebody looks."""

COUNTS_TIMEOUT_S = 2.0
"""Seconds that a look may wait for the store; then the page goes without."""

_SECONDS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_WHOLE_STORE_NOTE = "; of the whole store, the same from every process that serves the API"

log = logging.getLogger("adjudge")


class OperationMetrics(Collector):
    """The metrics of operations in one process.

    Call `watch` to have those of the store too, and then `read` before each `collect`.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._store: Callable[[datetime], Awaitable[OperationCounts]] | None = None
        self._counts: OperationCounts | None = None
        self._read_at: datetime | None = None
        self._reading = asyncio.Lock()
        self._registry = registry = CollectorRegistry()
        self._attempts = Counter(
            "adjudge_chunk_attempts",
            "Chunks of operations that this process began and that came to an end, by what became of them",
            ["kind", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "adjudge_chunk_seconds",
            "Seconds that this process worked on a chunk, whatever became of it",
            ["kind"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._in_progress = Gauge("adjudge_chunks_in_work", "Chunks that this process works on", registry=registry)

    def watch(self, counts: Callable[[datetime], Awaitable[OperationCounts]]) -> None:
        """Show what this store holds from now on; `counts` may raise `ConnectionError`."""
        self._store = counts

    def chunk_started(self) -> None:
        """This process works on one more chunk."""
        self._in_progress.inc()

    def chunk_ended(self, kind: OperationKind, outcome: ChunkStatus, seconds: float) -> None:
        """It no longer does, after so many seconds."""
        self._in_progress.dec()
        self._attempts.labels(kind, outcome).inc()
        self._seconds.labels(kind).observe(seconds)

    async def read(self) -> None:
        """Ask the store, unless it was asked a moment ago. One that is away, or slow, leaves its metrics out."""
        if self._store is None:
            return
        async with self._reading:
            now = self._now()
            if self._read_at is not None and (now - self._read_at).total_seconds() < COUNTS_TTL_S:
                return
            self._read_at = now
            self._counts = None
            try:
                async with asyncio.timeout(COUNTS_TIMEOUT_S):
                    self._counts = await self._store(now)
            except (ConnectionError, TimeoutError) as error:
                log.warning("operations cannot be counted now: %s", error or "the store does not answer")

    def collect(self) -> Iterator[Metric]:
        """All of them at this moment."""
        yield from self._registry.collect()
        if self._counts is None or self._read_at is None:
            return
        operations, chunks, oldest_due_at = self._counts
        kept = GaugeMetricFamily(
            "adjudge_operations",
            f"Operations by kind and state, those that are kept after their end included{_WHOLE_STORE_NOTE}",
            labels=["kind", "state"],
        )
        for (kind, state), number in operations.items():
            kept.add_metric([kind, state], number)
        yield kept
        parts = GaugeMetricFamily(
            "adjudge_operation_chunks",
            f"Chunks of operations that have not ended, by kind and state{_WHOLE_STORE_NOTE}",
            labels=["kind", "state"],
        )
        for (of_kind, chunk_state), number in chunks.items():
            parts.add_metric([of_kind, chunk_state], number)
        yield parts
        waited = 0.0 if oldest_due_at is None else (self._read_at - oldest_due_at).total_seconds()
        yield GaugeMetricFamily(
            "adjudge_operation_chunks_oldest_seconds",
            f"Seconds that a chunk has waited which could be begun; 0 where none waits{_WHOLE_STORE_NOTE}",
            value=waited,
        )


class PoolMetrics:
    """The members of each judge's pool at this moment, by the judge's name."""

    def __init__(self, members_of: Mapping[str, list[MemberView]]) -> None:
        self._members_of = members_of

    def collect(self) -> Iterator[Metric]:
        """Whether each is there, and the calls it has."""
        up = GaugeMetricFamily(
            "adjudge_pool_member_up", "Whether calls are given to a member of a pool", labels=["judge", "member"]
        )
        load = GaugeMetricFamily(
            "adjudge_pool_member_calls", "Judge calls that a member of a pool has", labels=["judge", "member"]
        )
        for judge, members in self._members_of.items():
            label = "" if judge == DEFAULT_JUDGE else judge
            for member in members:
                up.add_metric([label, member.name], float(member.state in ("closed", "half_open")))
                load.add_metric([label, member.name], member.load)
        if any(self._members_of.values()):
            yield up
            yield load


MAX_LABELS = 100
OTHER_LABEL = "(other)"

Refusal = Literal["no key", "rate", "budget"]


class AccessMetrics:
    """The metrics of one gate; projects beyond the first hundred count as one."""

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
            "Requests refused at the gate, by project (none where there was no key) and why",
            ["project", "reason"],
            registry=registry,
        )
        self._tokens_left = Gauge(
            "adjudge_project_tokens_left",
            "Prompt tokens left of a project's budget when it was last looked at",
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
        """These are the projects, and their limits."""
        self._limits.clear()
        for project in projects:
            if (label := self._label(project.id)) != OTHER_LABEL:
                for name, value in project.limits:
                    if value is not None:
                        self._limits.labels(label, name).set(value)

    def count_request(self, project_id: str, tokens: int) -> None:
        """A request was judged, and the engine computed so many prompt tokens for it."""
        label = self._label(project_id)
        self._requests.labels(label).inc()
        self._tokens.labels(label).inc(tokens)

    def count_refusal(self, project_id: str, reason: Refusal) -> None:
        """A request was refused; `project_id` is empty where nobody knows whose it was."""
        self._refusals.labels(self._label(project_id) if project_id else "", reason).inc()

    def set_tokens_left(self, project_id: str, budget: Literal["day", "total"], tokens: int) -> None:
        """So much is left of a budget."""
        self._tokens_left.labels(self._label(project_id), budget).set(max(0, tokens))

    def collect(self) -> Iterable[Metric]:
        """All of them at this moment."""
        return self._registry.collect()

    def _label(self, project_id: str) -> str:
        if project_id not in self._seen and len(self._seen) >= MAX_LABELS:
            return OTHER_LABEL
        self._seen.add(project_id)
        return project_id
