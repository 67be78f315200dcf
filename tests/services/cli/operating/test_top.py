"""`adjudge top`: reading a page of metrics, and displaying a service."""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from rich.console import Console

from adjudge_services.cli.operating import top
from adjudge_services.cli.operating.top import MetricsSnapshot, view
from tests.fixtures.ports import unused_port
from tests.hypothesis_examples import examples
from tests.services.command import adjudge
from tests.services.processes import Service
from trainer_client import Client

BUCKETS = (0.1, 1.0, 10.0)


def figures(*seconds: float, counted: int = 0) -> MetricsSnapshot:
    """Return figures of a page with a histogram of these seconds and one counter."""
    registry = CollectorRegistry()
    histogram = Histogram("wait_seconds", "How long", ["who"], buckets=BUCKETS, registry=registry)
    for number, value in enumerate(seconds):
        histogram.labels("ab"[number % 2]).observe(value)
    counter = Counter("done", "How many", ["who", "how"], registry=registry)
    counter.labels("a", "x").inc(counted)
    counter.labels("b", "x").inc(1)
    return MetricsSnapshot.read(generate_latest(registry).decode())


@given(st.lists(st.floats(0.001, 9.9), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=examples(40))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(seconds: list[float], share: float) -> None:
    read = figures(*seconds).quantile("wait_seconds", share)
    true = sorted(seconds)[max(0, -int(-share * len(seconds) // 1) - 1)]
    low, high = next((low, high) for low, high in zip((0.0, *BUCKETS), BUCKETS, strict=False) if true <= high)
    assert read is not None
    assert low <= read <= high


def test_an_empty_histogram_has_no_quantile() -> None:
    assert figures().quantile("wait_seconds", 0.5) is None
    assert figures().quantile("other", 0.5) is None


def test_changes_are_counted_and_a_series_that_restarted_counts_whole() -> None:
    later, earlier = figures(counted=10), figures(counted=4)
    assert later.delta_since(earlier).sum("done_total", who="a") == 6
    assert later.delta_since(earlier).sum("done_total") == 6
    assert earlier.delta_since(later).sum("done_total", who="a") == 4
    assert later.delta_since(MetricsSnapshot()).sum("done_total", how="x") == 11


def test_rates_refer_to_the_time_between_two_samples() -> None:
    page = 'adjudge_judgements_total{{failure="",outcome="judged"}} {}\n'
    before, now = (MetricsSnapshot.read(page.format(number)) for number in (100, 700))
    console = Console(width=120)
    with console.capture() as shown:
        console.print(view(now, now.delta_since(before), 2.0))
    assert "300/s" in shown.get()


@pytest.mark.parametrize("address", ["http://127.0.0.1:{}", "not an address"])
def test_an_unreachable_service_is_an_error_with_its_address(address: str) -> None:
    url = address.format(unused_port())
    result = adjudge("top", url, "--once", exit_code=1)
    assert url in result.output


@pytest.mark.processes
def test_a_running_service_is_shown_with_its_runs(service: Service) -> None:
    with Client(service.url) as client:
        service.wait_until_ready(client)
        rubric = {"criteria": [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is polite."}]}
        for run in ("alpha", "beta [x]"):
            group = {"id": "g", "prompt": "Is 7 prime?", "responses": [f"Yes, says {run}.", "No."]}
            with Client(service.url, run=run) as trainer:
                trainer.rewards([group], rubric)
        result = adjudge("top", service.url, "--once", env={"COLUMNS": "140"}, exit_code=0)
    assert "judged 6" in result.output
    assert "cached 2" in result.output
    assert "alpha" in result.output
    assert "beta [x]" in result.output


@pytest.mark.processes
def test_it_follows_a_service_until_it_is_interrupted(shared_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([None, None])

    def pause(seconds: float) -> None:
        if next(looks, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    result = adjudge("top", shared_service.url, env={"COLUMNS": "140"}, exit_code=0)
    assert "judged 0.0/s" in result.output
