"""Spans are exported to the collector that OTEL_… variables name, down to the last one, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace

from adjudge_services.process import start_tracing
from tests.services.collector import Collector, collecting
from tests.services.preforked import Process, start
from tests.services.processes import listening
from trainer_client import Client

pytestmark = pytest.mark.usefixtures("migrated")

SECRET = "s3cret-that-nobody-sends"
RUBRIC = {"criteria": [{"id": "a", "description": f"{SECRET} criterion"}]}
GROUPS = [{"id": f"q{n}", "prompt": f"{SECRET} {n}", "responses": [f"{SECRET} response"]} for n in range(3)]
ENGINE = ("--engine", "scripted://hash")


@contextmanager
def worker(**settings: str) -> Iterator[Process]:
    """Run a worker, and kill it at the end if it still runs."""
    process = start(["worker"], os.environ | settings, stderr=None)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A running collector."""
    with collecting() as running:
        yield running


@pytest.mark.processes
def test_a_request_is_one_trace_over_api_and_judge_and_is_sent_completely_before_they_exit(
    collector: Collector,
) -> None:
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    with (
        listening("judge", "--port", "0", *ENGINE, **settings) as judge,
        listening("api", "--port", "0", "--judge", judge.url, **settings, OTEL_SERVICE_NAME="front") as api,
        Client(api.url, run="r-1") as client,
    ):
        api.wait_until_ready(client)
        client.rewards(groups=GROUPS, rubric=RUBRIC)
        assert collector.spans == []
        api.stop()
        judge.stop()
    (rewards,) = collector.named("POST /v1/rewards")
    assert rewards.attributes["adjudge.run"] == "r-1"
    assert {span.trace_id for span in collector.named("engine")} == {rewards.trace_id}
    assert collector.path(collector.named("engine")[0]) == [
        ("front", "POST /v1/rewards"),
        ("front", "judging"),
        ("front", "judge_request"),
        ("adjudge-judge", "POST /internal/v1/outcomes"),
        ("adjudge-judge", "judging"),
        ("adjudge-judge", "engine"),
    ]
    assert len(collector.named("engine")) == len(GROUPS)
    assert SECRET.encode() not in collector.received


@pytest.mark.processes
@pytest.mark.redis
def test_a_chunk_is_a_trace_from_its_worker_to_the_engine_linked_to_its_enqueue_span(
    collector: Collector, redis_url: str
) -> None:
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "ADJUDGE_QUEUE_URL": redis_url,
    }
    with (
        listening("serve", "--port", "0", *ENGINE, **settings) as service,
        Client(service.url) as client,
        worker(ADJUDGE_URL=service.url, **settings) as process,
    ):
        service.wait_until_ready(client)
        operation = client.submit({"kind": "score", "run": "bulk", "rubric": RUBRIC, "groups": GROUPS})
        *_, ended = client.follow(operation.id)
        assert ended.state == "done"
        process.terminate()
        process.wait(30)
        service.stop()
    (chunk,) = collector.named("chunk")
    assert chunk.attributes.items() >= {"adjudge.operation_id": operation.id, "adjudge.ended": "done"}.items()
    assert chunk.links == tuple(span.span_id for span in collector.named("enqueue"))
    (rewards,) = collector.named("POST /v1/rewards")
    assert rewards.attributes["adjudge.operation_id"] == operation.id
    assert collector.path(collector.named("engine")[0])[:3] == [
        ("adjudge-worker", "chunk"),
        ("adjudge-worker", "POST"),
        ("adjudge", "POST /v1/rewards"),
    ]
    assert SECRET.encode() not in collector.received


def test_without_variables_nothing_is_exported() -> None:
    before = trace.get_tracer_provider()
    assert start_tracing("adjudge", {})() is None  # type: ignore[func-returns-value]
    off = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    start_tracing("adjudge", off | {"OTEL_SDK_DISABLED": "true"})()
    start_tracing("adjudge", off | {"OTEL_TRACES_EXPORTER": "none"})()
    assert trace.get_tracer_provider() is before


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "set it to otlp"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf only"),
    ],
)
def test_unsupported_exporters_are_refused(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        start_tracing("adjudge", variables)


@pytest.mark.processes
def test_without_the_extra_a_process_that_should_export_does_not_start() -> None:
    missing = "import sys; sys.modules['opentelemetry.exporter.otlp.proto.http.trace_exporter'] = None"
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    process = start(["serve", "--port", "0", *ENGINE], os.environ | settings, missing)
    assert process.stderr is not None
    assert "install adjudge[otel]" in process.stderr.read()
    assert process.wait(30) == 1
