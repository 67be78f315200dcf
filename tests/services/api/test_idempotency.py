"""`Idempotency-Key` over HTTP: a request sent twice runs once, is recorded once, and gets the same answer."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rubric_store import RubricStore, SQLIdempotencyKeys
from rubric_store.tenants.rows import KeyClaim
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.api.problems import checked_problem, fields
from tests.judge_server.support import request
from tests.services.operations.in_process import recorded, serving_within
from trainer_client import AsyncClient, InProgress

pytestmark = pytest.mark.processes

CRITERIA = [{"id": "a", "description": "Says so."}]
KEY = {"Idempotency-Key": "k1"}
PUBLISH = "/v1/rubrics/team/a/versions"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path, new_sqlite: NewSQLite) -> str:
    """The URL of a database with the newest schema."""
    if request.param == "sqlite":
        return new_sqlite(tmp_path / "adjudge.db")
    return str(request.getfixturevalue("migrated_postgres_url"))


@pytest.fixture
async def transport(url: str, data_dir: Path) -> AsyncIterator[httpx2.ASGITransport]:
    """A transport to a service with a ledger."""
    async with serving_within(database_url=url) as made:
        yield made


@pytest.fixture
async def http(transport: httpx2.ASGITransport) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_a_repeated_publication_gets_the_same_answer_and_changes_nothing(
    http: httpx2.AsyncClient,
) -> None:
    body = {"criteria": CRITERIA, "tags": ["math"]}
    first = await http.post(PUBLISH, json=body, headers=KEY)
    assert first.status_code == 201
    await http.put("/v1/rubrics/team/a/tags", json={"tags": []})
    again = await http.post(PUBLISH, json=body, headers=KEY)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Location"] == first.headers["Location"] == "/v1/rubrics/team/a@1"
    assert (again.headers.get("Idempotent-Replayed"), first.headers.get("Idempotent-Replayed")) == ("true", None)
    assert (await http.get("/v1/rubrics", params={"tag": "math"})).json()["rubrics"] == []
    assert (await http.post(PUBLISH, json=body)).status_code == 200  # without the key it is a new request


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PUBLISH, {"criteria": [{"id": "a", "description": "Says something else."}]}),
        (PUBLISH, {"criteria": CRITERIA, "tags": ["math"]}),
        ("/v1/rubrics/team/b/versions", {"criteria": CRITERIA}),
        ("/v1/rewards", request()),
        ("/v1/verdicts", {k: v for k, v in request().items() if k != "reward"}),
    ],
)
async def test_a_key_used_for_another_request_is_refused_and_nothing_is_done(
    http: httpx2.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    await http.post(PUBLISH, json={"criteria": CRITERIA}, headers=KEY)
    answer = await http.post(path, json=body, headers=KEY)
    assert answer.status_code == 422
    problem = checked_problem(answer)
    assert problem["type"] == "urn:adjudge:invalid-request"
    assert "use a new key" in fields(problem)["Idempotency-Key"]
    assert len((await http.get("/v1/rubrics/team/a/versions")).json()["versions"]) == 1


async def test_a_failed_request_may_be_sent_again_under_its_key(http: httpx2.AsyncClient) -> None:
    body = {"criteria": CRITERIA, "parent": 1}
    refused = await http.post(PUBLISH, json=body, headers=KEY)
    assert refused.status_code == 422
    await http.post(PUBLISH, json={"criteria": [{"id": "z", "description": "First."}]})
    assert (await http.post(PUBLISH, json=body, headers=KEY)).status_code == 201


async def test_of_two_concurrent_requests_one_publishes_and_the_other_must_retry(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, begun, go_on = RubricStore.publish, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **given: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await publish(*args, **given)

    monkeypatch.setattr(RubricStore, "publish", slow)
    body = {"criteria": CRITERIA}
    first = asyncio.create_task(http.post(PUBLISH, json=body, headers=KEY))
    await begun.wait()
    second = await http.post(PUBLISH, json=body, headers=KEY)
    assert second.status_code == 409
    problem = checked_problem(second)
    assert (problem["type"], problem["retryable"]) == ("urn:adjudge:in-progress", True)
    assert 1 <= int(second.headers["Retry-After"]) <= 10
    go_on.set()
    assert (await first).status_code == 201
    third = await http.post(PUBLISH, json=body, headers=KEY)
    assert (third.status_code, third.content) == (201, (await first).content)


async def test_a_publisher_that_died_half_way_does_not_block_the_next(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = SQLIdempotencyKeys.claim

    async def nothing(*_: object) -> None:
        raise ConnectionError("the database went away")

    async def briefly(*args: Any, hold_s: float) -> KeyClaim:
        return await claim(*args, hold_s=min(hold_s, 0.5))

    with monkeypatch.context() as patched:
        patched.setattr(SQLIdempotencyKeys, "store_answer", nothing)
        patched.setattr(SQLIdempotencyKeys, "claim", briefly)
        first = await http.post(PUBLISH, json={"criteria": CRITERIA}, headers=KEY)
    assert first.status_code == 201
    again = await http.post(PUBLISH, json={"criteria": CRITERIA}, headers=KEY)
    while again.status_code == 409:
        await asyncio.sleep(0.05)
        again = await http.post(PUBLISH, json={"criteria": CRITERIA}, headers=KEY)
    assert (again.status_code, again.json()) == (200, first.json())  # it had been published


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_judged_again_under_its_key_is_recorded_once(http: httpx2.AsyncClient, stream: bool) -> None:
    headers = KEY | ({"Accept": "application/x-ndjson"} if stream else {})
    body = request("Yes.", "No.", run="r", step=3)
    answers = [await http.post("/v1/rewards", json=body, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    run = await recorded(http, 2 * 2 * 7)
    assert run["requests"] == 1
    assert run["verdicts"] == 2 * 7
    await http.post("/v1/rewards", json=body, headers={"Idempotency-Key": "another"})
    assert (await recorded(http, 3 * 2 * 7))["requests"] == 2


async def test_concurrent_requests_under_one_key_are_recorded_once(http: httpx2.AsyncClient) -> None:
    body = {k: v for k, v in request("Yes.", run="r").items() if k != "reward"}
    answers = await asyncio.gather(*(http.post("/v1/verdicts", json=body, headers=KEY) for _ in range(3)))
    assert {answer.status_code for answer in answers} == {200}
    assert (await recorded(http, 3 * 7))["requests"] == 1


async def test_judging_again_repeats_no_successful_call(http: httpx2.AsyncClient) -> None:
    body = request("Yes.", run="r")
    usage = [(await http.post("/v1/rewards", json=body, headers=KEY)).json()["usage"] for _ in range(2)]
    assert [used["judge_calls"] for used in usage] == [7, 0]


async def test_judging_afresh_under_a_key_asks_once(http: httpx2.AsyncClient) -> None:
    body = {k: v for k, v in request("Yes.", run="r").items() if k != "reward"} | {"fresh": True}
    keys = ["k1", "k1", "k2"]
    sent = [await http.post("/v1/verdicts", json=body, headers={"Idempotency-Key": key}) for key in keys]
    assert [answer.json()["usage"]["judge_calls"] for answer in sent] == [7, 0, 7]


async def test_judging_does_not_wait_for_an_unreachable_database(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise ConnectionError("the database is away")

    monkeypatch.setattr(SQLIdempotencyKeys, "claim", away)
    assert (await http.post("/v1/rewards", json=request(), headers=KEY)).status_code == 200
    refused = await http.post(PUBLISH, json={"criteria": CRITERIA}, headers=KEY)
    assert refused.status_code == 503
    assert checked_problem(refused)["retryable"] is True


async def test_retrying_an_operation_twice_under_one_key_is_one_retry(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"kind": "score", "rubric": {"criteria": CRITERIA}, "groups": request()["groups"]}
    made = (await http.post("/v1/operations", json=body)).json()
    cancelled = await http.delete(f"/v1/operations/{made['id']}")
    retry = f"/v1/operations/{made['id']}/retry"
    if cancelled.json()["state"] != "cancelled":
        pytest.skip("it finished before it could be cancelled")
    first = await http.post(retry, headers=KEY)
    assert first.json()["tries"] == 2
    await http.delete(f"/v1/operations/{made['id']}")
    again = await http.post(retry, headers=KEY)
    assert again.content == first.content
    assert (await http.get(f"/v1/operations/{made['id']}")).json()["tries"] == 2


@pytest.mark.parametrize("key", ["", "k" * 257])
async def test_an_invalid_key_is_refused_by_name(http: httpx2.AsyncClient, key: str) -> None:
    answer = await http.post(PUBLISH, json={"criteria": CRITERIA}, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert any("dempotency" in name for name in fields(checked_problem(answer)))


class AnswerLosingTransport(httpx2.AsyncBaseTransport):
    """Forwards requests to a service, and drops the first answers; `seen` has every answer."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, lost: int) -> None:
        self.inner, self.lost = inner, lost
        self.seen: list[httpx2.Response] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self.inner.handle_async_request(request)
        self.seen.append(answer)
        if len(self.seen) <= self.lost:
            raise httpx2.ReadError("the connection broke")
        return answer


async def at_once(_: float) -> None:
    """Do not pause."""


async def test_the_client_repeats_a_publication_under_its_key_if_the_answer_is_lost(
    transport: httpx2.ASGITransport, http: httpx2.AsyncClient
) -> None:
    losing = AnswerLosingTransport(transport, 2)
    async with AsyncClient("http://localhost", transport=losing, sleep=at_once) as client:
        published = await client.publish_rubric("team/a", CRITERIA, tags=["math"])
        assert published.version == 1
        assert [answer.status_code for answer in losing.seen] == [201, 201, 201]
        assert [answer.headers.get("Idempotent-Replayed") for answer in losing.seen] == [None, "true", "true"]
        assert (await client.publish_rubric("team/a", CRITERIA)).version == 1
    assert losing.seen[-1].status_code == 200, "another publication has another key"


async def test_requests_under_the_clients_key_are_recorded_once(
    transport: httpx2.ASGITransport, http: httpx2.AsyncClient
) -> None:
    group = {"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes."]}
    losing = AnswerLosingTransport(transport, 1)
    async with AsyncClient("http://localhost", run="r", transport=losing, sleep=at_once) as client:
        answer = await client.rewards([group], {"criteria": CRITERIA}, idempotency_key="r/3/g")
        streamed = [one async for one in client.stream_rewards([group], {"criteria": CRITERIA}, idempotency_key="s")]
    assert len(losing.seen) == 3
    assert answer.groups[0].responses[0].reward == streamed[0].responses[0].reward
    assert (await recorded(http, 3))["requests"] == 2


async def test_the_client_retries_while_its_own_request_is_in_progress(
    transport: httpx2.ASGITransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, busy = SQLIdempotencyKeys.claim, [2.5, 0.5]

    async def claimed(self: SQLIdempotencyKeys, *args: Any, **given: Any) -> KeyClaim:
        if busy:
            return KeyClaim(datetime.now(UTC), wait_s=busy.pop(0))
        return await claim(self, *args, **given)

    monkeypatch.setattr(SQLIdempotencyKeys, "claim", claimed)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with AsyncClient("http://localhost", transport=transport, sleep=sleep, random=lambda: 0.0) as client:
        assert (await client.publish_rubric("team/a", CRITERIA)).version == 1
        assert waits == [3.0, 1.0]
        busy.extend([1.0] * 9)
        with pytest.raises(InProgress):
            await client.publish_rubric("team/a", CRITERIA)
