"""Connections: addresses, keys, retries, timeouts, keepalive and proxies."""

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib.metadata import version
from importlib.util import find_spec

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.fake_service import COMPARISONS, REWARDS, VERDICTS, VERSION, ScriptedReply, problem, rewarded
from trainer_client import (
    AdjudgeError,
    AsyncClient,
    Client,
    ConnectionFailed,
    Criterion,
    Overloaded,
    ServerError,
    TimedOut,
)
from trainer_client.client.calls import bypasses_proxy
from trainer_client.client.connection import (
    DEAD_PEER_TIMEOUT_S,
    INITIAL_BACKOFF_S,
    MAX_BACKOFF_S,
    MAX_WAIT_S,
    RetryPolicy,
    keepalive_options,
    transport_options,
)
from trainer_client.verl import compute_score

OVERLOADED = problem("overloaded", 429, retryable=True)


def read_rubric(client):
    return client.rubric("math/quadratics")


GROUP = {"id": "q17", "prompt": "x?", "responses": ["42"]}


@pytest.mark.parametrize(
    "failure",
    [
        OVERLOADED,
        problem("not-ready", 503, retryable=True),
        problem("judging-failed", 502, retryable=True),
        ScriptedReply(429, "slow down"),
        ScriptedReply(502, "<html>bad gateway</html>"),
        ScriptedReply(503, "no upstream"),
        ScriptedReply(drop=True),
    ],
    ids=["overloaded", "not ready", "retryable problem", "proxy 429", "proxy 502", "proxy 503", "broken connection"],
)
def test_transient_errors_are_retried(service, connect, time, failure):
    service.script(failure, failure, ScriptedReply(body=VERSION))
    assert connect(service.url).rubric("math/quadratics").version == 3
    assert (len(service.asked), len(time.waits)) == (3, 2)


@pytest.mark.parametrize(
    "failure",
    [
        problem("unknown-rubric", 404),
        problem("not-ready", 503),
        problem("internal", 500),
        ScriptedReply(500, "x"),
        ScriptedReply(504),
    ],
    ids=["the request's fault", "a problem that says no", "internal", "proxy 500", "proxy 504"],
)
def test_permanent_errors_are_not_retried(service, connect, time, failure):
    service.script(failure, ScriptedReply(body=VERSION))
    with pytest.raises(AdjudgeError):
        connect(service.url).rubric("math/quadratics")
    assert (len(service.asked), time.waits) == (1, [])


@pytest.mark.parametrize(
    "create", [lambda client: client.create_project("team-math"), lambda client: client.create_key(["score"])]
)
def test_projects_and_keys_are_asked_for_once_since_they_may_exist_without_an_answer(service, connect, time, create):
    service.script(ScriptedReply(drop=True))
    with pytest.raises(ConnectionFailed):
        create(connect(service.url))
    assert (len(service.asked), time.waits) == (1, [])


def test_the_whole_request_is_sent_again_each_time(service, connect):
    service.script(OVERLOADED, ScriptedReply(body=rewarded))
    connect(service.url).rewards([GROUP], "r")
    assert service.asked[0].body == service.asked[1].body != b""


@pytest.mark.parametrize("ask", [read_rubric, lambda client: list(client.stream_rewards([GROUP], "r"))])
@pytest.mark.parametrize("retries", [0, 3])
def test_retries_are_limited_and_the_last_error_is_raised(service, connect, time, ask, retries):
    service.script(OVERLOADED)
    with pytest.raises(Overloaded, match="req-7"):
        ask(connect(service.url, retries=retries))
    assert (len(service.asked), len(time.waits)) == (retries + 1, retries)


async def test_a_connection_reset_while_connecting_is_retried_on_uvloop_too():
    gone = [AttributeError("'NoneType' object has no attribute 'getpeername'")]

    def answer(request):
        if gone:
            raise gone.pop()
        return httpx2.Response(200, json={"checks": {}})

    async with AsyncClient("http://judge", transport=httpx2.MockTransport(answer)) as client:
        assert not await client.ready()
        assert await client.ready()


async def test_a_programming_error_is_not_reported_as_a_failed_connection():
    def answer(request):
        raise AttributeError("a mistake")

    async with AsyncClient("http://judge", transport=httpx2.MockTransport(answer)) as client:
        with pytest.raises(AttributeError):
            await client.ready()


def test_an_unreachable_service_is_retried(connect, time, unserved_url):
    with pytest.raises(ConnectionFailed):
        connect(unserved_url, retries=2).rubric("math/quadratics")
    assert len(time.waits) == 2


def test_waits_double_and_are_scaled_by_the_random_number(service, connect, time):
    service.script(OVERLOADED)
    with pytest.raises(Overloaded):
        connect(service.url, retries=4, random=lambda: 0.5).rubric("math/quadratics")
    assert time.waits == [0.25, 0.5, 1.0, 2.0]


def test_retries_stop_when_the_budget_is_spent(service, connect, time):
    service.script(OVERLOADED)
    with pytest.raises(Overloaded):
        connect(service.url, retries=100, retry_budget_s=1.0).rubric("math/quadratics")
    assert time.waits == [0.25, 0.5]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds_is_honoured_with_jitter_on_top(service, connect, time, status):
    service.script(
        problem("overloaded", status, retryable=True, headers={"Retry-After": "7"}), ScriptedReply(body=VERSION)
    )
    connect(service.url).rubric("math/quadratics")
    assert time.waits == [7.25]


def test_retry_after_as_a_date_uses_the_date_of_the_answer(service, connect, time):
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    service.script(
        problem("overloaded", 429, retryable=True, headers={"Retry-After": then}), ScriptedReply(body=VERSION)
    )
    connect(service.url).rubric("math/quadratics")
    (wait,) = time.waits
    assert 10 < wait <= 20.25  # the date has whole seconds, and time passes until it is read


def test_retry_after_without_a_date_in_the_answer_uses_the_local_clock(time):
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    answers = iter([httpx2.Response(429, headers={"Retry-After": then}), httpx2.Response(200, json=VERSION)])
    transport = httpx2.MockTransport(lambda _: next(answers))
    with Client("http://judge", transport=transport, sleep=time.sleep, random=lambda: 0.0) as client:
        client.rubric("math/quadratics")
    (wait,) = time.waits
    assert 10 < wait <= 20


@pytest.mark.parametrize("asked", ["soon", "", "-3", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_an_invalid_retry_after_leaves_the_usual_wait(service, connect, time, asked):
    service.script(
        problem("overloaded", 429, retryable=True, headers={"Retry-After": asked}), ScriptedReply(body=VERSION)
    )
    connect(service.url).rubric("math/quadratics")
    assert time.waits == [0.25]


def test_no_wait_exceeds_the_maximum(service, connect, time):
    service.script(
        problem("overloaded", 429, retryable=True, headers={"Retry-After": "86400"}), ScriptedReply(body=VERSION)
    )
    connect(service.url).rubric("math/quadratics")
    assert time.waits == [MAX_WAIT_S]


def test_a_service_that_hangs_times_out_and_is_not_retried(service, connect, time):
    service.script(ScriptedReply(hang=True))
    with pytest.raises(TimedOut, match="timeout_s"):
        connect(service.url, timeout_s=0.5).rubric("math/quadratics")
    assert (len(service.asked), time.waits) == (1, [])


PAIR = {"id": "q17", "prompt": "x?", "a": "42", "b": "43"}


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda client, **more: client.rewards([GROUP], "r", **more), rewarded),
        (lambda client, **more: list(client.stream_rewards([GROUP], "r", **more)), rewarded),
        (lambda client, **more: client.verdicts([GROUP], "r", **more), lambda _: VERDICTS),
        (lambda client, **more: client.compare([PAIR], **more), lambda _: COMPARISONS),
    ],
    ids=["rewards", "stream_rewards", "verdicts", "compare"],
)
@pytest.mark.parametrize(
    ("timeout_s", "deadline_s", "read_timeout_s"), [(30, 60, 75), (30, 3600, 3615), (900, 60, 900)]
)
def test_the_client_waits_longer_than_the_deadline_of_judging(ask, answer, timeout_s, deadline_s, read_timeout_s):
    asked = []

    def reply(request):
        asked.append(request)
        return httpx2.Response(200, json=answer(json.loads(request.content)))

    transport = httpx2.MockTransport(reply)
    with Client("http://judge", timeout_s=timeout_s, transport=transport) as client:
        ask(client, deadline_s=deadline_s)
    assert asked[0].extensions["timeout"]["read"] == read_timeout_s


async def test_the_async_client_serves_concurrent_requests(service):
    service.script(ScriptedReply(body=VERSION))
    async with AsyncClient(service.url) as client:
        versions = await asyncio.gather(*(client.rubric("math/quadratics") for _ in range(20)))
    assert len(versions) == len(service.asked) == 20


@given(
    st.integers(0, 50),
    st.floats(0, 0.999),
    st.one_of(st.none(), st.floats(0, 1e9)),
    st.integers(0, 60),
    st.floats(0, 500),
)
def test_every_wait_is_bounded_and_the_budget_is_never_exceeded(retries, jitter, asked, tries_wanted, budget_s):
    now = [0.0]
    tries = RetryPolicy(retries, budget_s, lambda: now[0], lambda: jitter).start()
    error = Overloaded("busy", retryable=True, retry_after_s=asked)
    for number in range(tries_wanted):
        wait = tries.wait_after(error)
        if wait is None:
            break
        assert number < retries
        backoff = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2**number)
        assert min(asked or 0, MAX_WAIT_S) <= wait <= min(MAX_WAIT_S, (asked or 0) + backoff)
        now[0] += wait
    assert now[0] <= budget_s + 1e-6


def test_waits_stay_short_after_a_long_outage():
    tries = RetryPolicy(20, 500.0, lambda: 0.0, lambda: 0.999).start()
    waits = [tries.wait_after(ConnectionFailed("away", retryable=True)) for _ in range(12)]
    assert waits[:3] == pytest.approx([0.5, 1.0, 2.0], rel=0.01)
    assert waits[4:] == pytest.approx([5.0] * 8, rel=0.01)


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


KEY = "adj_abcdefghijklmnop_" + "s" * 43


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch):
    monkeypatch.delenv("ADJUDGE_API_KEY", raising=False)


@pytest.mark.parametrize(("given", "sent"), [(None, f"Bearer {KEY}"), ("adj_other", "Bearer adj_other"), ("", None)])
def test_the_key_of_the_environment_is_used_unless_one_is_given(service, connect, monkeypatch, given, sent):
    monkeypatch.setenv("ADJUDGE_API_KEY", f"{KEY}\n")
    service.script(ScriptedReply(body=VERSION))
    connect(service.url, api_key=given).rubric("math/quadratics")
    assert service.asked[0].headers.get("authorization") == sent


def test_without_a_key_none_is_sent(service, connect):
    service.script(ScriptedReply(body=VERSION))
    connect(service.url).rubric("math/quadratics")
    assert "authorization" not in service.asked[0].headers


def test_an_authorization_header_of_the_caller_replaces_the_key(service, connect):
    service.script(ScriptedReply(body=VERSION))
    connect(service.url, api_key=KEY, headers={"authorization": "Basic YTpi"}).rubric("math/quadratics")
    assert service.asked[0].headers["authorization"] == "Basic YTpi"


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
@pytest.mark.parametrize("key", ["adj_a b", "adj_ä", f"{KEY}\r\nX: y", " "])
def test_an_invalid_key_is_refused_and_not_repeated_in_the_error(client_class, key):
    with pytest.raises(ValueError, match="api_key has spaces or characters that no key has") as refused:
        client_class("http://judge:8000", api_key=key)
    assert key.strip() == "" or key not in str(refused.value)


def test_the_repr_of_a_clients_settings_hides_the_key():
    client = Client("http://judge:8000", api_key=KEY)
    assert KEY not in repr(client.settings)
    assert client.settings.api_key == KEY
    client.close()


CRITERIA = [{"id": "c1", "description": "states 42", "kind": "point"}]


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_the_address_of_the_environment_is_used_unless_one_is_given(client_class, monkeypatch):
    monkeypatch.setenv("ADJUDGE_URL", "http://judge.test\n")
    assert client_class().base_url == "http://judge.test"
    assert client_class("http://other.test", run="r").base_url == "http://other.test"


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_without_an_address_the_error_names_the_variable(client_class, monkeypatch):
    monkeypatch.delenv("ADJUDGE_URL", raising=False)
    with pytest.raises(ValueError, match=r"pass base_url, such as http://judge:8000, or set ADJUDGE_URL"):
        client_class()


async def test_verl_uses_the_address_of_the_environment(service, monkeypatch):
    monkeypatch.setenv("ADJUDGE_URL", service.url)
    service.script(ScriptedReply(body=rewarded))
    scored = await compute_score("data", "42", "42", {"prompt": "6 * 7?"}, rubric=CRITERIA)
    assert scored["score"] == 1.0


@pytest.mark.parametrize("criteria", [CRITERIA, tuple(CRITERIA), [Criterion(**CRITERIA[0])]])
def test_a_list_of_criteria_is_a_rubric_for_requests_and_for_groups(service, connect, criteria):
    service.script(ScriptedReply(body=REWARDS), ScriptedReply(body=REWARDS))
    client = connect(service.url)
    group = {"id": "q17", "prompt": "6 * 7?", "responses": ["42", "41"]}
    client.rewards([group], criteria, "points")
    client.rewards([{**group, "rubric": criteria}], mode="points")
    first, second = (json.loads(asked.body) for asked in service.asked)
    assert first["rubric"]["criteria"] == CRITERIA
    assert second["groups"][0]["rubric"] == first["rubric"]


class TestReady:
    def test_a_ready_service_is_ready(self, service, connect):
        service.script(ScriptedReply(body={"status": "ready"}))
        assert connect(service.url).ready() is True
        assert service.asked[0].target == "/readyz"

    def test_a_starting_service_is_not_ready_and_is_asked_once(self, service, connect):
        service.script(problem("not-ready", 503, retryable=True))
        assert connect(service.url).ready() is False
        assert len(service.asked) == 1

    def test_a_service_that_is_unreachable_or_hangs_is_not_ready(self, service, connect, unserved_url):
        assert connect(unserved_url).ready() is False
        service.script(ScriptedReply(hang=True))
        assert connect(service.url, timeout_s=0.05).ready() is False

    def test_an_address_of_another_service_is_an_error(self, service, connect):
        service.script(ScriptedReply(404, "nothing here"))
        with pytest.raises(ServerError, match=r"404.*nothing here"):
            connect(service.url).ready()


class TestConnection:
    def test_one_connection_serves_many_requests(self, service, connect):
        service.script(ScriptedReply(body=VERSION))
        client = connect(service.url)
        for _ in range(5):
            client.rubric("math/quadratics")
        assert (len(service.asked), service.connections) == (5, 1)

    def test_requests_name_the_client_and_include_the_given_headers(self, service, connect):
        service.script(ScriptedReply(body=VERSION))
        connect(service.url, headers={"Authorization": "Bearer k"}).rubric("math/quadratics")
        assert service.asked[0].headers["User-Agent"] == f"adjudge-client/{version('adjudge-client')}"
        assert service.asked[0].headers["Authorization"] == "Bearer k"

    def test_a_service_under_a_path_prefix_is_reached(self, service, connect):
        service.script(ScriptedReply(body=VERSION))
        connect(f"{service.url}/judges/one").rubric("math/quadratics")
        assert service.asked[0].target == "/judges/one/v1/rubrics/math/quadratics"

    def test_leaving_a_with_block_closes_the_connections(self, service):
        service.script(ScriptedReply(body=VERSION))
        with Client(service.url) as client:
            client.rubric("math/quadratics")
        with pytest.raises(RuntimeError, match="closed"):
            client.rubric("math/quadratics")

    async def test_leaving_an_async_with_block_closes_the_connections(self, service):
        service.script(ScriptedReply(body=VERSION))
        async with AsyncClient(service.url) as client:
            await client.rubric("math/quadratics")
        with pytest.raises(RuntimeError, match="closed"):
            await client.rubric("math/quadratics")

    def test_a_transport_can_replace_the_network(self):
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=VERSION))
        with Client("http://judge:8000", transport=transport) as client:
            assert client.rubric("math/quadratics").version == 3

    def test_an_address_without_a_service_is_a_failed_connection(self, connect, unserved_url):
        with pytest.raises(ConnectionFailed, match=unserved_url) as raised:
            connect(unserved_url, retries=0).rubric("math/quadratics")
        assert raised.value.status is None
