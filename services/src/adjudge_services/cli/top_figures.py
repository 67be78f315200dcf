"""What `GET /metrics` says, read: totals, and what has changed between two looks."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Every sample of a page of metrics, by name and labels."""

    samples: dict[str, dict[Labels, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, page: str) -> "MetricsSnapshot":
        """The figures of a page. Raises `ValueError` where it is none."""
        samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return cls(samples)

    def delta_since(self, before: "MetricsSnapshot") -> "MetricsSnapshot":
        """What has been counted since an earlier look; a series that is new, or began anew, counts whole."""
        changed = {}
        for name, series in self.samples.items():
            old = before.samples.get(name, {})
            changed[name] = {
                labels: value - old[labels] if 0 <= old.get(labels, -1.0) <= value else value
                for labels, value in series.items()
            }
        return MetricsSnapshot(changed)

    def sum(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        wanted = labels.items()
        return sum(value for found, value in self.samples.get(name, {}).items() if wanted <= dict(found).items())

    def by(self, name: str, label: str) -> Iterator[tuple[str, float]]:
        """A metric's values by one label."""
        for found, value in self.samples.get(name, {}).items():
            yield dict(found).get(label, ""), value

    def quantile(self, name: str, share: float) -> float | None:
        """A quantile of a histogram over all its labels, by a straight line in its bucket; None where it is empty."""
        buckets: dict[float, float] = {}
        for edge, count in self.by(f"{name}_bucket", "le"):
            buckets[float(edge)] = buckets.get(float(edge), 0.0) + count
        bounds = sorted(buckets)
        if not bounds or not buckets[bounds[-1]]:
            return None
        wanted, below, lowest = share * buckets[bounds[-1]], 0.0, 0.0
        for bound in bounds:
            if buckets[bound] >= wanted:
                if bound == float("inf"):
                    return lowest
                inside = (wanted - below) / (buckets[bound] - below) if buckets[bound] > below else 0.0
                return lowest + inside * (bound - lowest)
            below, lowest = buckets[bound], bound
        return lowest
