"""The page that Prometheus reads: several judges' metrics, and others', as one.

The default judge's series have no label `judge`, the others' have their name in it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import generate_latest
from prometheus_client.core import Metric

from judge_server.metrics.judge import JudgeMetrics
from trainer_client.wire import DEFAULT_JUDGE


class MetricSource(Protocol):
    """Whatever has metrics."""

    def collect(self) -> Iterable[Metric]:
        """Its metrics at this moment."""


def metrics_page(judges: Mapping[str, JudgeMetrics], others: Iterable[MetricSource] = ()) -> bytes:
    """Everything, as Prometheus' text format 0.0.4."""
    return generate_latest(_MergedRegistry(judges, others))


class _MergedRegistry:
    """All of them as one registry, each family once, without the time at which each series began."""

    def __init__(self, judges: Mapping[str, JudgeMetrics], others: Iterable[MetricSource]) -> None:
        self._judges = judges
        self._others = others

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, judge in self._judges.items():
            for metric in judge.families():
                if name != DEFAULT_JUDGE:
                    if metric.name.startswith("process_"):
                        continue
                    metric.samples = [s._replace(labels={**s.labels, "judge": name}) for s in metric.samples]
                families.setdefault(metric.name, _empty(metric)).samples.extend(metric.samples)
        for other in self._others:
            for metric in other.collect():
                families.setdefault(metric.name, _empty(metric)).samples.extend(metric.samples)
        for metric in families.values():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _empty(metric: Metric) -> Metric:
    return Metric(metric.name, metric.documentation, metric.type, metric.unit)
