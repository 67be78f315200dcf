"""A real HTTP server on a loopback port that sends scripted answers and records its requests."""

import json
import select
import socket
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


def rewarded(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request for rewards by a rubric with one criterion: 1.0 for every response."""
    [scored, _] = REWARDS["groups"][0]["responses"]
    groups = [
        {"id": group["id"], "rubric": DIGEST, "responses": [scored] * len(group["responses"])}
        for group in asked["groups"]
    ]
    return REWARDS | {"groups": groups}


GROUP_LINE = {"group": REWARDS["groups"][0]}
SUMMARY_LINE = {"summary": {field: value for field, value in REWARDS.items() if field != "groups"}}
VERDICTS = {
    "request_id": "req-2",
    "judge": {"model": "m", "protocol": "binary", "fingerprint": "f"},
    "rubrics": [{"digest": DIGEST}],
    "usage": {"judge_calls": 1},
    "groups": [
        {
            "id": "q17",
            "rubric": DIGEST,
            "responses": [
                {"verdicts": [{"criterion": "c1", "status": "ok", "score": 1.0, "rationale": "It says 42."}]}
            ],
        }
    ],
}
COMPARISONS = {
    "request_id": "req-3",
    "judge": {"model": "m", "protocol": "comparison", "fingerprint": "f"},
    "rubrics": [],
    "usage": {"judge_calls": 2},
    "win_rate": 0.5,
    "pairs": [
        {
            "id": "q17",
            "status": "ok",
            "score": 0.5,
            "preferred": "tie",
            "consistent": False,
            "orders": [
                {"first": "a", "status": "ok", "preferred": "a", "probability": 0.9},
                {"first": "b", "status": "ok", "preferred": "b", "probability": 0.2},
            ],
        }
    ],
}


def summary(name: str) -> dict[str, Any]:
    """A `RubricSummary` as the service sends it."""
    created = "2025-01-01T00:00:00Z"
    return {"name": name, "latest_version": 1, "digest": DIGEST, "criteria_count": 1, "created_at": created}


@dataclass
class ScriptedReply:
    """A scripted answer. `body` is sent as JSON unless it is text; a function makes it from the request."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    pieces: tuple[bytes, ...] | None = None
    """Sent one by one in place of the body, chunked, without a known length."""
    hang: bool = False
    """Send nothing, or nothing more after the pieces, until the client hangs up or the service stops."""
    drop: bool = False
    """Close the connection without an answer, or in the middle of one after the pieces."""

    def content(self, asked: "ReceivedRequest") -> bytes:
        """The body as bytes."""
        body = self.body(asked.json) if callable(self.body) else self.body
        return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def problem(kind: str, status: int, *, retryable: bool = False, headers: dict[str, str] | None = None, **more: Any):
    """A scripted problem (RFC 9457)."""
    body = {
        "type": f"urn:adjudge:{kind}",
        "title": kind,
        "status": status,
        "detail": f"{kind} happened",
        "request_id": "req-7",
        "retryable": retryable,
    }
    return ScriptedReply(status, body | more, {"Content-Type": "application/problem+json"} | (headers or {}))


def stream(*lines: Any, hang: bool = False, drop: bool = False, piece: int | None = None) -> ScriptedReply:
    """A scripted NDJSON answer (bytes are sent as they are), sent line by line or in pieces of a fixed size."""
    given = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    if piece is not None:
        joined = b"".join(given)
        given = [joined[at : at + piece] for at in range(0, len(joined), piece)]
    headers = {"Content-Type": "application/x-ndjson", "X-Request-Id": "req-8"}
    return ScriptedReply(headers=headers, pieces=tuple(given), hang=hang, drop=drop)


@dataclass
class ReceivedRequest:
    """A received request."""

    method: str
    target: str
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)


class FakeService:
    """The script (`replies`, in order, the last one repeated) and the record (`asked`, `connections`)."""

    def __init__(self) -> None:
        self.replies: list[ScriptedReply] = []
        self.asked: list[ReceivedRequest] = []
        self.connections = 0
        self.stopping = threading.Event()
        self.hung_up = threading.Event()
        """Set when a caller closes a connection on which an answer hangs."""
        self.url = ""

    def script(self, *replies: ScriptedReply) -> None:
        """Set the answers from now on."""
        self.replies = list(replies)

    def next_reply(self) -> ScriptedReply:
        """Take the next scripted answer."""
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


class _Handler(BaseHTTPRequestHandler):
    service: FakeService
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.service.connections += 1

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = ReceivedRequest(self.command, self.path, self.headers, body)
        self.service.asked.append(asked)
        reply = self.service.next_reply()
        if reply.pieces is not None:
            self.send_pieces(reply)
        elif not (reply.hang or reply.drop):
            content = reply.content(asked)
            self.begin(reply, {"Content-Length": str(len(content))})
            self.wfile.write(content)
        if reply.hang:
            self.wait_for_the_caller_to_leave()
        if reply.hang or reply.drop:
            self.close_connection = True

    def begin(self, reply: ScriptedReply, headers: dict[str, str]) -> None:
        self.send_response(reply.status)
        for name, value in (headers | reply.headers).items():
            self.send_header(name, value)
        self.end_headers()

    def send_pieces(self, reply: ScriptedReply) -> None:
        self.begin(reply, {"Transfer-Encoding": "chunked"})
        for piece in reply.pieces or ():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if not (reply.hang or reply.drop):
            self.wfile.write(b"0\r\n\r\n")

    def wait_for_the_caller_to_leave(self) -> None:
        while not self.service.stopping.is_set():
            if select.select([self.connection], [], [], 0.01)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                self.service.hung_up.set()
                return

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server calls them so

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 64


@contextmanager
def running_service() -> Iterator[FakeService]:
    """Serve on a free loopback port until the block is left."""
    service = FakeService()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"service": service}))
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
