"""A real HTTP server on a loopback port that answers what a test scripted and remembers what it was asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DIGEST = "sha256:" + "0" * 64
CRITERION = {"id": "c1", "description": "states 42", "kind": "point", "weight": 2.0, "tags": []}
VERSION = {
    "name": "math/quadratics",
    "version": 3,
    "digest": DIGEST,
    "criteria": [CRITERION],
    "created_at": "2025-01-01T00:00:00Z",
}
REWARDS = {
    "request_id": "req-1",
    "mode": "points",
    "on_failure": "null",
    "judge": {"model": "m", "protocol": "binary", "fingerprint": "f"},
    "rubrics": [{"digest": DIGEST}],
    "usage": {"judge_calls": 2},
    "groups": [
        {
            "id": "q17",
            "rubric": DIGEST,
            "responses": [
                {"reward": 1.0, "status": "scored", "verdicts": [{"criterion": "c1", "status": "ok", "score": 1.0}]},
                {
                    "reward": None,
                    "status": "unscored",
                    "verdicts": [
                        {"criterion": "c1", "status": "failed", "failure": {"kind": "timeout", "detail": "60 s"}}
                    ],
                },
            ],
        }
    ],
}


def summary(name: str) -> dict[str, Any]:
    """A `RubricSummary` as the service sends it."""
    created = "2025-01-01T00:00:00Z"
    return {"name": name, "latest_version": 1, "digest": DIGEST, "criteria_count": 1, "created_at": created}


@dataclass
class Reply:
    """One scripted answer. `body` is sent as JSON unless it is text."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    hang: bool = False
    """Answer only when the service stops."""
    drop: bool = False
    """Close the connection without an answer."""

    @property
    def content(self) -> bytes:
        """The body as bytes."""
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


def problem(kind: str, status: int, *, retryable: bool = False, headers: dict[str, str] | None = None, **more: Any):
    """A scripted RFC 9457 answer."""
    body = {
        "type": f"urn:adjudge:{kind}",
        "title": kind,
        "status": status,
        "detail": f"{kind} happened",
        "request_id": "req-7",
        "retryable": retryable,
    }
    return Reply(status, body | more, {"Content-Type": "application/problem+json"} | (headers or {}))


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    target: str
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


class FakeService:
    """The script (`replies`, taken in order, the last for ever) and the record (`asked`, `connections`)."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[Asked] = []
        self.connections = 0
        self.stopping = threading.Event()
        self.url = ""

    def script(self, *replies: Reply) -> None:
        """Say what to answer from now on."""
        self.replies = list(replies)

    def next_reply(self) -> Reply:
        """Take the next answer of the script."""
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def running_service() -> Iterator[FakeService]:
    """Serve on a free loopback port until the block is left."""
    service = FakeService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            service.connections += 1

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            service.asked.append(Asked(self.command, self.path, self.headers, body))
            reply = service.next_reply()
            if reply.hang:
                service.stopping.wait()
            if reply.hang or reply.drop:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in ({"Content-Length": str(len(reply.content))} | reply.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        service.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()
