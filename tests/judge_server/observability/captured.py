"""Spans and log lines as tests read them."""

import io
import json
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class CapturedSpans:
    """Ended spans."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        """All spans, in the order in which they ended."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans with this name."""
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span with this name."""
        (span,) = self.named(name)
        return span

    def path(self, span: ReadableSpan) -> list[str]:
        """The names of a span and its ancestors within the trace, outermost first."""
        by_id = {one.context.span_id: one for one in self.all if one.context is not None}
        names = [span.name]
        while span.parent is not None:
            span = by_id[span.parent.span_id]
            names.append(span.name)
        return names[::-1]

    @property
    def text(self) -> str:
        """Everything that an exporter would send."""
        return "".join(span.to_json() for span in self.all)


def attributes(of: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(of.attributes or {})


class CapturedLogs:
    """Log lines in both formats."""

    def __init__(self) -> None:
        self.json_lines, self.text_lines = io.StringIO(), io.StringIO()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON lines, parsed."""
        return [json.loads(line) for line in self.json_lines.getvalue().splitlines()]

    @property
    def text(self) -> str:
        """The text lines."""
        return self.text_lines.getvalue()

    @property
    def whole(self) -> str:
        """All log output."""
        return self.text + self.json_lines.getvalue()

    def of(self, logger: str) -> list[dict[str, Any]]:
        """The JSON lines of a logger."""
        return [line for line in self.objects if line["logger"] == logger]
