"""Connections to a service break when its host is gone; to a proxy they are the proxy's business."""

import socket
import ssl
import sys
from collections.abc import Iterator

import httpx2
import pytest

from tests.trainer_client.fake_service import Reply
from trainer_client import AsyncClient, Client
from trainer_client.client.calls import bypasses_proxy
from trainer_client.client.connection import DEAD_PEER_TIMEOUT_S, keepalive_options, transport_options

PROXY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def connected() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        yield one


def test_the_system_takes_every_option(connected):
    for level, option, value in keepalive_options():
        connected.setsockopt(level, option, value)
        assert connected.getsockopt(level, option) == value


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere some options have other names")
def test_a_host_is_gone_after_so_many_seconds_whether_it_is_asked_or_told_something():
    given = {option: value for _, option, value in keepalive_options()}
    asked_s = given[socket.TCP_KEEPIDLE] + given[socket.TCP_KEEPCNT] * given[socket.TCP_KEEPINTVL]
    assert asked_s == given[socket.TCP_USER_TIMEOUT] / 1000 == DEAD_PEER_TIMEOUT_S


def is_watched(answer: httpx2.Response) -> bool:
    """Whether the system asks whether the host is there that gave this answer."""
    connection = answer.extensions["network_stream"].get_extra_info("socket")
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


async def test_both_clients_have_the_system_ask_whether_their_service_is_there(service):
    service.script(Reply(body={}), Reply(body={}))
    with Client(service.url) as client, client._http.stream("GET", "/") as answer:
        assert is_watched(answer)
    async with AsyncClient(service.url) as client, client._http.stream("GET", "/") as answer:
        assert is_watched(answer)


def test_certificates_are_checked_where_there_is_tls_and_none_are_read_elsewhere():
    assert transport_options(httpx2.URL("https://judge"))["verify"] is True
    plain = transport_options(httpx2.URL("http://judge:8000"))["verify"]
    assert plain.get_ca_certs() == []
    assert plain.verify_mode is ssl.CERT_REQUIRED  # whatever is encrypted by mistake is refused


@pytest.mark.parametrize(
    ("environment", "url", "direct"),
    [
        ({}, "http://judge:8000", True),
        ({"HTTP_PROXY": PROXY}, "http://judge:8000", False),
        ({"http_proxy": PROXY}, "http://judge:8000", False),
        ({"ALL_PROXY": PROXY}, "http://judge:8000", False),
        ({"HTTP_PROXY": PROXY}, "https://judge:8000", True),
        ({"HTTPS_PROXY": PROXY}, "https://judge", False),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "judge,other"}, "http://judge:8000", True),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": ".svc"}, "http://judge.ns.svc:8000", True),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "*"}, "http://judge:8000", True),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "other"}, "http://judge:8000", False),
    ],
)
def test_a_proxy_that_the_environment_names_is_still_used(environment, url, direct, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert bypasses_proxy(httpx2.URL(url)) is direct


def test_a_request_goes_through_the_proxy_of_the_environment(service, monkeypatch):
    service.script(Reply(body={"version": "through the proxy"}))
    monkeypatch.setenv("HTTP_PROXY", service.url)
    with Client("http://judge.invalid:8000", retries=0) as client:
        assert client._http.get("/v1").json() == {"version": "through the proxy"}
