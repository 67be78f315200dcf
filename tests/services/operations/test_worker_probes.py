"""A worker's probes while its broker hangs, is killed or delivers nothing, and while its service is unreachable."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import httpx2
import pytest

from tests.fixtures.ports import unused_port
from tests.services.operations.cluster import Cluster, score
from tests.services.operations.conftest import MakeCluster
from tests.services.operations.test_killed import end_of

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.faults, pytest.mark.slow]

QUICK = """
from judge_server.operations import queues
queues.BROKER_SOCKET_TIMEOUT_S = queues.BROKER_CONNECT_TIMEOUT_S = 1.0
"""
DEAF = """
import threading
from adjudge_services.worker import Worker
from judge_server.operations.queues import BrokerHealth
BrokerHealth.__init__.__kwdefaults__["stalled_after_s"] = 2.0
Worker.serve = lambda self: threading.Event().wait()
"""


class WorkerProbeClient:
    """A client of a worker's probes."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text; 0 if unreachable."""
        try:
            answer = httpx2.get(f"{self._url}{path}", timeout=10.0)
        except httpx2.HTTPError:
            return 0, ""
        return answer.status_code, answer.text

    def wait_until(self, path: str, is_so: Callable[[int, str], bool]) -> None:
        """Wait until the answer of a probe satisfies the condition."""
        said = 0, ""
        for _ in range(600):
            said = self.get(path)
            if is_so(*said):
                return
            time.sleep(0.1)
        raise AssertionError(said)

    def ready(self) -> None:
        """Wait until the worker is ready."""
        self.wait_until("/readyz", lambda status, _: status == 200)

    def lacks(self, part: str) -> None:
        """Wait until the worker reports only this part as missing."""
        self.wait_until("/readyz", lambda status, text: status == 503 and f'not ready: {part}"' in text)
        assert self.get("/healthz")[0] == 200, "a restart would not restore it"


class TcpProxy:
    """A TCP proxy to a loopback port that can go dead like a cable: connections stay open, but silent."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._dead = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ends: list[socket.socket] = [self._listening]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def go_dead(self) -> None:
        """Stop forwarding on the current connections; new connections work."""
        self._dead.set()
        self._dead = threading.Event()

    def close(self) -> None:
        """Close all connections."""
        self._dead.set()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._ends += [near, far]
            for source, target in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._pass_on, args=(source, target, self._dead)))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket, dead: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if dead.is_set():
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def wires() -> Iterator[Callable[[int], TcpProxy]]:
    """Create proxies."""
    with ExitStack() as closing:

        def make(to: int) -> TcpProxy:
            wire = TcpProxy(to)
            closing.callback(wire.close)
            return wire

        yield make


def probed_worker(cluster: Cluster, first: str = QUICK) -> WorkerProbeClient:
    """Start a worker; return a client for its probes."""
    port = unused_port()
    cluster.start_worker(port=port, first=first)
    return WorkerProbeClient(port)


def test_a_hanging_or_killed_broker_makes_a_worker_unready_until_it_is_back(cluster: MakeCluster) -> None:
    running = cluster(0.0)
    client = running.start_api()
    probes = probed_worker(running)
    probes.ready()
    running.broker.hang()
    probes.lacks("broker")
    running.broker.go_on()
    probes.ready()
    running.broker.kill()
    probes.lacks("broker")
    running.broker.start()
    probes.ready()
    assert end_of(client, client.submit(score(4)).id).state == "done"
    assert 'adjudge_chunk_attempts_total{kind="score",outcome="done"} 1.0' in probes.get("/metrics")[1]


def test_a_worker_recovers_from_a_silently_dead_connection(
    cluster: MakeCluster, wires: Callable[[int], TcpProxy]
) -> None:
    running = cluster(0.0)
    client = running.start_api()
    wire = wires(running.broker.port)
    own = f'import os\nos.environ["ADJUDGE_QUEUE_URL"] = "redis://127.0.0.1:{wire.port}/0"'
    probes = probed_worker(running, own + QUICK)
    probes.ready()
    assert end_of(client, client.submit(score(4)).id).state == "done"
    wire.go_dead()
    assert end_of(client, client.submit(score(4)).id).state == "done"


def test_submitting_while_the_broker_hangs_is_answered_and_the_work_is_done_later(
    cluster: MakeCluster,
) -> None:
    running = cluster(0.0)
    client = running.start_api()
    assert client.submit(score(1)).state == "queued"
    running.broker.hang()
    id_ = client.submit(score(4)).id
    running.broker.go_on()
    running.start_worker()
    assert end_of(client, id_).state == "done"


def test_an_unreachable_service_makes_a_worker_unready_until_it_is_back(cluster: MakeCluster) -> None:
    running = cluster(0.0)
    running.start_api()
    probes = probed_worker(running)
    probes.ready()
    running.kill_api()
    probes.lacks("service")
    running.start_api()
    probes.ready()


def test_a_worker_that_receives_none_of_the_waiting_messages_is_not_alive(cluster: MakeCluster) -> None:
    running = cluster(0.0)
    client = running.start_api()
    probes = probed_worker(running, QUICK + DEAF)
    probes.ready()
    assert probes.get("/healthz")[0] == 200
    client.submit(score(4))
    probes.wait_until("/healthz", lambda status, text: status == 503 and "restart it" in text)
