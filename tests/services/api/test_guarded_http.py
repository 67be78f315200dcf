"""Clients that send slowly, too much or nothing, and clients that do not read: they cost little and are disconnected.

Raw sockets against a real `adjudge serve` with short timeouts.
"""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adjudge_services.http_server import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES, uvicorn_options
from tests.fixtures.served_app import served
from tests.services.processes import Service, get, listening
from trainer_client import Client

pytestmark = pytest.mark.processes

CLIENT_TIMEOUT_S = 1.0
HEAD = b"POST /v1/rewards HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def short_timeout_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a client timeout of one second."""
    folder: Path = tmp_path_factory.mktemp("data")
    with listening(
        "serve",
        "--port",
        "0",
        "--engine",
        "scripted://hash",
        ADJUDGE_DATA_DIR=str(folder),
        ADJUDGE_CLIENT_TIMEOUT_S=str(CLIENT_TIMEOUT_S),
    ) as running:
        yield running


def connected(service: Service, **options: int) -> socket.socket:
    """Connect to the service."""
    host, port = service.url.removeprefix("http://").split(":")
    made = socket.socket()
    for name, value in options.items():
        made.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    made.settimeout(30)
    made.connect((host, int(port)))
    return made


def answer_of(connection: socket.socket) -> bytes:
    """Read until the service closes the connection."""
    read = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            read += piece
    return read


def healthy(connection: socket.socket) -> bytes:
    """Send a request on a keep-alive connection; return the answer."""
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    read = b""
    while not read.endswith(b"}"):
        piece = connection.recv(65536)
        assert piece, "the connection was closed"
        read += piece
    assert read.startswith(b"HTTP/1.1 200 ")
    return read


def problem_of(answer: bytes, status: int) -> dict[str, Any]:
    """Parse the problem in a raw answer; check that it has this status, is complete and ends the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    headers = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:])
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert headers["x-content-type-options"] == "nosniff"
    assert int(headers["content-length"]) == len(body)
    problem: dict[str, Any] = json.loads(body)
    assert problem["status"] == status
    assert problem["request_id"] == headers["x-request-id"]
    assert problem["detail"]
    return problem


def test_a_head_that_never_ends_times_out_with_a_problem(short_timeout_service: Service) -> None:
    with connected(short_timeout_service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        problem = problem_of(answer_of(connection), 408)
    assert problem["type"] == "urn:adjudge:too-slow"
    assert problem["retryable"] is True


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"\r\n\r\n"])
def test_a_connection_on_which_no_request_begins_is_closed(short_timeout_service: Service, sent: bytes) -> None:
    with connected(short_timeout_service) as connection:
        connection.sendall(sent)
        assert answer_of(connection) == b""


def drip(connection: socket.socket, piece: bytes) -> bytes:
    """Send a piece ten times a second until the service closes the connection; return the answer."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(200):
            connection.sendall(piece)
            time.sleep(CLIENT_TIMEOUT_S / 10)
            connection.settimeout(0.01)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                if said := connection.recv(65536):
                    connection.settimeout(30)
                    return said + answer_of(connection)
                return b""
            connection.settimeout(30)
    return b""


def test_a_head_that_arrives_byte_by_byte_times_out_too(short_timeout_service: Service) -> None:
    with connected(short_timeout_service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        problem_of(drip(connection, b"a"), 408)


def test_line_ends_do_not_keep_a_connection_open(short_timeout_service: Service) -> None:
    with connected(short_timeout_service) as connection:
        healthy(connection)
        assert drip(connection, b"\r\n") == b""
        assert answer_of(connection) == b""


@pytest.mark.parametrize("framing", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n"])
@pytest.mark.parametrize("piece", [b"", b" "])
def test_a_body_that_arrives_too_slowly_times_out_with_a_problem(
    short_timeout_service: Service, framing: bytes, piece: bytes
) -> None:
    with connected(short_timeout_service) as connection:
        connection.sendall(HEAD + framing + b"{")
        problem = problem_of(drip(connection, piece) if piece else answer_of(connection), 408)
    assert problem["type"] == "urn:adjudge:too-slow"


def test_fifty_slow_clients_block_no_other_and_are_all_disconnected(
    short_timeout_service: Service,
) -> None:
    with contextlib.ExitStack() as closing:
        slow = [closing.enter_context(connected(short_timeout_service)) for _ in range(50)]
        for connection in slow:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        with httpx2.Client() as client:
            for _ in range(5):
                assert client.get(short_timeout_service.url + "/healthz", timeout=30).status_code == 200
        for connection in slow:
            problem_of(answer_of(connection), 408)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * MAX_TARGET_BYTES), 414),
        (b"GET /?%s" % (b"a" * MAX_TARGET_BYTES * 2), 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: %s\r\n\r\n" % (b"a" * MAX_HEAD_BYTES), 431),
        (b"GET / HTTP/1.1\r\nA: %s" % (b"a" * MAX_HEAD_BYTES * 20), 431),
        (b"GET / HTTP/1.1\r\n%s" % (b"a" * MAX_HEAD_BYTES * 20), 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA B: c\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    ],
    ids=["path", "query", "headers", "header", "endless header", "endless name", "nonsense", "space", "both", "two"],
)
def test_an_oversized_or_invalid_head_is_refused_with_a_problem(
    short_timeout_service: Service, head: bytes, status: int
) -> None:
    with connected(short_timeout_service) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(head)
        said = answer_of(connection)
    if len(head) < 2 * MAX_HEAD_BYTES or said:  # data still in flight may reset the connection
        problem_of(said, status)


CHUNKED = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n"


def test_a_trailer_is_not_used_as_a_header(short_timeout_service: Service) -> None:
    trailer = b"1\r\n{\r\n1\r\n}\r\n0\r\n%s\r\n" % (JSON + b"X-Request-Id: from-the-trailer\r\n")
    with connected(short_timeout_service) as connection:
        connection.sendall(CHUNKED % b"/v1/rewards" + b"Trailer: Content-Type\r\n\r\n" + trailer)
        said = answer_of(connection)
    assert b"from-the-trailer" not in said
    head, _, body = said.partition(b"\r\n\r\n")
    without = httpx2.post(short_timeout_service.url + "/v1/rewards", content=b"{}")
    assert head.startswith(b"HTTP/1.1 %d " % without.status_code)
    assert json.loads(body)["detail"] == without.json()["detail"]


@pytest.mark.parametrize("lines", [MAX_HEADERS + 1, 10 * MAX_HEADERS])
def test_an_endless_trailer_is_refused(short_timeout_service: Service, lines: int) -> None:
    with connected(short_timeout_service) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(CHUNKED % b"/v1/rewards" + JSON + b"\r\n1\r\n{\r\n0\r\n" + b"A: b\r\n" * lines)
        problem_of(answer_of(connection), 431)


def test_a_head_and_a_query_within_the_limits_are_served(short_timeout_service: Service) -> None:
    with httpx2.Client() as client:
        headers = {f"X-{number}": "a" * 500 for number in range(MAX_HEADERS - 10)}
        answer = client.get(short_timeout_service.url + "/healthz?" + "a" * (MAX_TARGET_BYTES - 100), headers=headers)
    assert answer.status_code == 200


def test_a_client_that_does_not_read_is_disconnected(short_timeout_service: Service) -> None:
    request = b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(short_timeout_service, SO_RCVBUF=4096) as connection:
        connection.sendall(request * 20)
        time.sleep(CLIENT_TIMEOUT_S * 3)
        read = answer_of(connection)
    whole = len(httpx2.get(short_timeout_service.url + "/static-offline-docs/swagger-ui-bundle.js").content)
    assert 0 < len(read) < 20 * whole


@contextlib.contextmanager
def answering(body: bytes) -> Iterator[int]:
    """Run a server that always answers with this body, with the same short timeouts; yield its port."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})

    with served(app, lifespan="off", **uvicorn_options(CLIENT_TIMEOUT_S, 1.0, 1024)) as port:
        yield port


def test_a_client_that_reads_a_long_answer_steadily_gets_all_of_it() -> None:
    body, read = b"a" * 25_000_000, 0
    with answering(body) as port, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while piece := connection.recv(65536):
            read += len(piece)
            time.sleep(CLIENT_TIMEOUT_S * 3 * len(piece) / len(body))
    assert read > len(body)


def test_a_client_that_keeps_sending_after_its_answer_is_disconnected(short_timeout_service: Service) -> None:
    with connected(short_timeout_service) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        said = drip(connection, b"a")
        assert said.startswith(b"HTTP/1.1 404 ")
        assert answer_of(connection) == b""


def test_a_later_head_on_a_keep_alive_connection_times_out_like_the_first(short_timeout_service: Service) -> None:
    with connected(short_timeout_service) as connection:
        healthy(connection)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        problem_of(answer_of(connection), 408)


def test_a_connection_is_kept_alive_between_requests_and_names_no_server(short_timeout_service: Service) -> None:
    with connected(short_timeout_service) as connection:
        for _ in range(3):
            read = healthy(connection)
            assert not re.search(rb"(?im)^server:", read)
            time.sleep(CLIENT_TIMEOUT_S * 1.5)


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
def test_no_connection_is_upgraded(short_timeout_service: Service, upgrade: bytes) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: %s\r\n\r\n" % upgrade
    with connected(short_timeout_service) as connection:
        connection.sendall(head)
        assert not answer_of(connection).startswith(b"HTTP/1.1 101 ")
    assert httpx2.get(short_timeout_service.url + "/healthz").status_code == 200


def limited(folder: Path, descriptors: int) -> contextlib.AbstractContextManager[Service]:
    """Run a service with this limit of file descriptors."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))"
    return listening("serve", "--port", "0", "--engine", "scripted://hash", first=limit, ADJUDGE_DATA_DIR=str(folder))


@pytest.mark.slow
def test_400_idle_connections_under_256_descriptors_lose_no_answer_and_no_ledger_row(tmp_path: Path) -> None:
    rubric = {"criteria": [{"id": "right", "description": "Is right."}]}
    with limited(tmp_path, 256) as service, Client(service.url) as client, contextlib.ExitStack() as idle:
        service.wait_until_ready(client)
        kept = idle.enter_context(connected(service))
        healthy(kept)
        for _ in range(400):
            idle.enter_context(connected(service))
        for number in range(40):
            group = {"id": "g", "prompt": "?", "responses": [f"{number}"]}
            assert client.rewards([group], rubric, "points").groups[0].responses[0].reward is not None
        healthy(kept)  # it was idle longest, and is kept since it had sent a request
        written_by = time.monotonic() + 60
        while (state := get(service, "/v1/ledger").json())["waiting"] and time.monotonic() < written_by:
            time.sleep(0.05)
        assert (state["written"], state["lost"], state["spool_problem"]) == (40, 0, None)
        assert "Too many open files" not in "".join(service.said)


def test_at_the_limit_a_connection_that_was_used_is_closed_only_if_all_others_were_used_since(tmp_path: Path) -> None:
    with limited(tmp_path, 64) as service, contextlib.ExitStack() as idle:  # connections get a quarter of these
        used = [idle.enter_context(connected(service)) for _ in range(16)]
        for one in used:
            healthy(one)
        for _ in range(20):
            idle.enter_context(connected(service))  # the first takes the place of the one that was idle longest
        assert answer_of(used[0]) == b""
        for one in used[1:]:
            healthy(one)


def test_if_all_connections_are_busy_a_new_one_is_refused_until_one_is_free(tmp_path: Path) -> None:
    with limited(tmp_path, 64) as service, contextlib.ExitStack() as busy:  # connections get a quarter of these
        unanswered = [busy.enter_context(connected(service)) for _ in range(16)]
        for one in unanswered:
            one.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
            time.sleep(0.02)
        with connected(service) as one_more:
            assert problem_of(answer_of(one_more), 503)["type"] == "urn:adjudge:overloaded"
        unanswered[0].close()
        for _ in range(500):
            with connected(service) as one_more, contextlib.suppress(AssertionError, ConnectionResetError):
                healthy(one_more)
                break
            time.sleep(0.01)
        else:
            raise AssertionError("no new connection is accepted")


def test_pipelined_requests_of_a_disconnected_client_are_not_processed() -> None:
    asked: list[str] = []
    begun, left = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await receive()  # the request body, which is empty
        begun.set()
        if (await receive())["type"] == "http.disconnect":
            left.set()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    with served(app, lifespan="off", **uvicorn_options(CLIENT_TIMEOUT_S, 1.0, 1024)) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"".join(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n for n in range(3)))
            assert begun.wait(30)
        assert left.wait(30)
    assert asked == ["/0"]
