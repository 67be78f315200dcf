"""Connections to a service break when its host is gone; connections to a proxy are left to the proxy."""

import socket
import ssl
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import httpx2
import pytest

from tests.trainer_client.fake_service import VERSION, ScriptedReply
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


def test_the_system_accepts_every_option(connected):
    for level, option, value in keepalive_options():
        connected.setsockopt(level, option, value)
        assert connected.getsockopt(level, option) == value


@pytest.mark.skipif(sys.platform != "linux", reason="some options have other names on other systems")
def test_a_dead_host_is_detected_after_the_same_time_idle_or_sending():
    given = {option: value for _, option, value in keepalive_options()}
    asked_s = given[socket.TCP_KEEPIDLE] + given[socket.TCP_KEEPCNT] * given[socket.TCP_KEEPINTVL]
    assert asked_s == given[socket.TCP_USER_TIMEOUT] / 1000 == DEAD_PEER_TIMEOUT_S


def is_watched(answer: httpx2.Response) -> bool:
    """Whether TCP keepalive is on for the connection of this answer."""
    connection = answer.extensions["network_stream"].get_extra_info("socket")
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


async def test_both_clients_turn_on_tcp_keepalive(service):
    service.script(ScriptedReply(body={}), ScriptedReply(body={}))
    with Client(service.url) as client:
        async with client.driven._http.stream(method="GET", url="/") as answer:
            assert is_watched(answer)
    async with AsyncClient(service.url) as client, client._http.stream("GET", "/") as answer:
        assert is_watched(answer)


def test_certificates_are_checked_with_tls_and_not_loaded_without():
    assert transport_options(httpx2.URL("https://judge"))["verify"] is True
    plain = transport_options(httpx2.URL("http://judge:8000"))["verify"]
    assert plain.get_ca_certs() == []
    assert plain.verify_mode is ssl.CERT_REQUIRED  # an accidental TLS connection is refused


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
def test_a_proxy_named_by_the_environment_is_still_used(environment, url, direct, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert bypasses_proxy(httpx2.URL(url)) is direct


@pytest.mark.skipif(find_spec("socksio") is not None, reason="the package is installed")
@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_socks_proxy_without_its_package_says_which_to_install(make, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(
        ImportError, match=r"names a SOCKS proxy .* run pip install 'httpx2\[socks\]', or name the host"
    ):
        make("http://judge.invalid:8000")
    monkeypatch.setenv("NO_PROXY", "judge.invalid")
    make("http://judge.invalid:8000")


def test_a_request_goes_through_the_proxy_of_the_environment(service, connect, monkeypatch):
    service.script(ScriptedReply(body=VERSION))
    monkeypatch.setenv("HTTP_PROXY", service.url)
    assert connect("http://judge.invalid:8000", retries=0).rubric("math/quadratics").version == 3
