"""No header costs more than its length, and none makes the service fail, with and without a key."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import httpx2
import pytest

from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.conftest import Serve

HEADERS = (
    "Accept", "Accept-Encoding", "Authorization", "baggage", "Content-Type", "Cookie", "Expect", "Forwarded", "Host",
    "HX-Current-URL", "HX-Request", "Idempotency-Key", "If-Match", "If-Modified-Since", "If-None-Match",
    "Last-Event-ID", "Origin", "Range", "Sec-Fetch-Site", "traceparent", "tracestate", "X-Form-Token",
    "X-Forwarded-Proto", "X-Request-Id", "XRL-Authorization",
)  # fmt: skip
UNITS = (
    ";", "a;", "a=b;", '"', 'a="\\\\\\\\\\\\', 'a="\\0', "(", "()", ",", '"9",', "a,", "\t", "/+", "*/*;q=0.1,", "%",
    "%zz", "1-", "9", "[", "http://[", "http://a:", "=", "<", "\xff", "Bearer ", "Basic QQ==", "for=a,",
    "bytes=0-1,", "a=b,", "&", "?",
)  # fmt: skip
ROUTES = (
    ("GET", "/healthz", None), ("GET", "/openapi.json", None), ("GET", "/console/rubrics", None),
    ("POST", "/console/sign-in", b"key=a"), ("POST", "/v1/compat/openrlhf", b"{}"),
    ("PUT", "/v1/rubrics/a/aliases/b", b'{"version": 1}'), ("GET", "/v1/operations/op-1/events", None),
)  # fmt: skip


async def ask(
    http: httpx2.AsyncClient, name: str, value: str, routes: Sequence[tuple[str, str, bytes | None]] = ROUTES
) -> Sequence[httpx2.Response]:
    """Send a header to some routes."""
    answers = []
    for method, path, body in routes:
        kind = "application/x-www-form-urlencoded" if path.startswith("/console") else "application/json"
        usual = {"Content-Type": kind} if body is not None else {}
        usual |= {"Cookie": "adjudge_form=abc"} if path.startswith("/console") else {}
        headers = [(key.encode(), one.encode()) for key, one in usual.items() if key != name]
        headers.append((name.encode(), value.encode("latin-1")))
        answers.append(await http.request(method, path, content=body, headers=headers))
    return answers


@pytest.fixture(params=["open", "keyed"])
async def client(
    request: pytest.FixtureRequest, serve: Serve, keyed: KeyedService
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service that needs no key, or one without a key of a service that does."""
    if request.param == "open":
        yield await serve()
        return
    async with keyed.client() as http:
        yield http


@pytest.mark.parametrize("name", HEADERS)
async def test_a_header_of_any_content_is_answered_without_an_error(client: httpx2.AsyncClient, name: str) -> None:
    for unit in UNITS:
        for answer in await ask(client, name, unit * 20):
            assert answer.status_code != 500, (name, unit, answer.request.url)


@pytest.mark.parametrize("name", HEADERS)
async def test_a_header_costs_time_linear_in_its_length(serve: Serve, name: str) -> None:
    http = await serve()
    await ask(http, name, "a", ROUTES[::3])
    for unit in UNITS:
        took = []
        for size in (2**13, 2**16):
            began = time.process_time()
            await ask(http, name, unit * (size // len(unit)), ROUTES[::3])
            took.append(time.process_time() - began)
        assert took[1] < 20 * took[0] + 0.5, (name, unit, took)
        await asyncio.sleep(0)
