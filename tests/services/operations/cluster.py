"""A service, a broker, a database and workers as separate processes, which a test can kill and start.

A proxy between the workers and the service records the requested groups, and can hold requests.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import loads
from math import inf
from typing import Any

import httpx2

from judge_server.ports.operations import WILL_RETRY_HEADER
from tests.fixtures.redis_process import RedisProcess
from tests.services.preforked import Process, start
from tests.services.processes import Service, serving
from trainer_client import Client

CRITERIA = [{"id": "right", "description": "Is right."}, {"id": "polite", "description": "Is polite."}]

AT_ONCE = 2
"""The default number of chunks that a worker processes concurrently."""

PASSED_ON = ("Content-Type", "Authorization", "Idempotency-Key", WILL_RETRY_HEADER)


def groups(count: int) -> list[dict[str, Any]]:
    """Return groups of eight responses each, all different."""
    return [
        {"id": f"q{n}", "prompt": f"Is {n} prime?", "responses": [f"Answer {n}.{r}" for r in range(8)]}
        for n in range(count)
    ]


def score(count: int) -> dict[str, Any]:
    """Return a request to score this many groups."""
    return {"kind": "score", "run": "bulk", "rubric": {"criteria": CRITERIA}, "groups": groups(count)}


@dataclass
class Proxy:
    """An HTTP proxy that records the groups of every request for rewards; `port` is the service's."""

    port: int
    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _shut_after: float = inf
    _unshut: threading.Event = field(default_factory=threading.Event)
    _held: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def shut_after(self, groups: int) -> None:
        """Once this many groups have been requested, hold further requests until `release`."""
        self._shut_after = groups

    def wait_until_holding(self, requests: int) -> None:
        """Wait until this many requests are held."""
        for _ in range(requests):
            assert self._held.acquire(timeout=60), f"{requests} requests were not held in a minute"

    def release(self) -> None:
        """Forward the held requests and all later ones."""
        self._unshut.set()

    def _note(self, groups: list[str]) -> None:
        with self.lock:
            held = len(self.asked) >= self._shut_after
            self.asked += groups
        if held:
            self._held.release()
            self._unshut.wait()

    @contextmanager
    def open(self) -> Iterator[str]:
        """Run the proxy; yield its address."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                proxy._note([group["id"] for group in loads(body)["groups"]])
                headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
                try:
                    url = f"http://127.0.0.1:{proxy.port}{self.path}"
                    answer = httpx2.post(url, content=body, headers=headers, timeout=60.0)
                except httpx2.HTTPError:
                    self.close_connection = True  # as if the service had died
                    return
                with suppress(OSError):
                    self.send_response(answer.status_code)
                    self.send_header("Content-Type", answer.headers["Content-Type"])
                    self.send_header("Content-Length", str(len(answer.content)))
                    self.end_headers()
                    self.wfile.write(answer.content)

            def do_GET(self) -> None:
                try:
                    answer = httpx2.get(f"http://127.0.0.1:{proxy.port}{self.path}", timeout=5.0)
                except httpx2.HTTPError:
                    self.close_connection = True
                    return
                with suppress(OSError):
                    self.send_response(answer.status_code)
                    self.send_header("Content-Length", str(len(answer.content)))
                    self.end_headers()
                    self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            self.release()
            server.shutdown()
            serving.join()
            server.server_close()

    def times_asked(self) -> Counter[str]:
        """Return how often each group was requested."""
        with self.lock:
            return Counter(self.asked)


class Cluster:
    """The processes of one test. `delay_s` is the duration of a judge call."""

    def __init__(self, broker: RedisProcess, proxy: Proxy, proxy_url: str, delay_s: float) -> None:
        self.broker = broker
        self.proxy = proxy
        self._proxy_url = proxy_url
        self._engine = f"scripted://hash?delay_s={delay_s}&concurrency=8"
        self._api: Any = None
        self.service: Service | None = None
        self.workers: list[Process] = []

    def start_api(self) -> Client:
        """Start the service, on the same port each time; return a client for it."""
        self._api = serving(self._engine, "--port", str(self.proxy.port))
        self.service = self._api.__enter__()
        client = Client(self.service.url, retries=20, retry_budget_s=60.0)
        self.service.wait_until_ready(client)
        return client

    def kill_api(self) -> None:
        """Kill the service."""
        assert self.service is not None
        self.service.process.kill()
        self._api.__exit__(None, None, None)
        self.service = None

    def start_worker(self, concurrency: int = AT_ONCE, *, port: int | None = None, first: str = "") -> Process:
        """Start another worker, with its probes at `port`; it runs the code `first` before the command."""
        command = ["worker", "--concurrency", str(concurrency)]
        command += [] if port is None else ["--port", str(port)]
        environment = os.environ | {"ADJUDGE_URL": self._proxy_url}
        self.workers.append(start(command, environment, first, stderr=None))
        return self.workers[-1]

    def close(self) -> None:
        """Kill the remaining processes."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
            worker.wait()
        if self.service is not None:
            self.kill_api()
        self.broker.kill()
