"""What each project asked for and was refused, for Prometheus. Projects are made by hand, so their labels are few."""

from collections.abc import Iterable
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import Metric

from trainer_client.wire.tenants import Project

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
