"""A trace collector for tests: receives OTLP over HTTP on loopback."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as received."""

    process: str
    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    links: tuple[bytes, ...]
    attributes: dict[str, str]


@dataclass
class Collector:
    """The spans received, and the bytes of their requests."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    received: bytes = b""

    def take(self, body: bytes) -> None:
        """Parse and store one request."""
        self.received += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {
                        one.key: one.value.string_value or str(one.value.int_value) for one in span.attributes
                    }
                    links = tuple(link.span_id for link in span.links)
                    self.spans.append(
                        ReceivedSpan(
                            named["service.name"],
                            span.name,
                            span.trace_id,
                            span.span_id,
                            span.parent_span_id,
                            links,
                            attributes,
                        )
                    )

    def path(self, span: ReceivedSpan) -> list[tuple[str, str]]:
        """Return (process, name) of a span and its ancestors, the outermost first."""
        by_id = {one.span_id: one for one in self.spans}
        path = [(span.process, span.name)]
        while span.parent_id:
            span = by_id[span.parent_id]
            path.append((span.process, span.name))
        return path[::-1]

    def named(self, name: str) -> list[ReceivedSpan]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""
    collector, lock = Collector(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                collector.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
