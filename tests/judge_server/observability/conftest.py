"""Spans and log lines that a test may inspect."""

import logging
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from judge_server.observability.logs import JsonFormatter, TextFormatter
from tests.judge_server.observability.captured import CapturedLogs, CapturedSpans


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> CapturedSpans:
    """The spans that end during the test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # the API sets it only once per process
    return CapturedSpans(exporter)


@pytest.fixture
def lines() -> Iterator[CapturedLogs]:
    """The log output of the test, ours from DEBUG up, in both formats."""
    seen, root, ours = CapturedLogs(), logging.getLogger(), logging.getLogger("adjudge")
    handlers = []
    for stream, form in ((seen.json_lines, JsonFormatter()), (seen.text_lines, TextFormatter())):
        handlers.append(logging.StreamHandler(stream))
        handlers[-1].setFormatter(form)
        root.addHandler(handlers[-1])
    before = ours.level
    ours.setLevel(logging.DEBUG)
    yield seen
    ours.setLevel(before)
    for handler in handlers:
        root.removeHandler(handler)
