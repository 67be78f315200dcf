"""Keys over HTTP: nothing is served without one, a scope opens its routes, and projects are isolated."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.api.auth import OPEN_PATHS, AccessMiddleware, ApiCallers, refuse
from judge_server.auth.authenticator import UsageMeter
from judge_server.ports import Identity
from rubric_store.ledger.rows import UseFilter, VerdictKey
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.auth.keyed import InMemoryApiKeyStore, KeyedService
from tests.judge_server.golden_files import openapi
from trainer_client.wire.tenants import Limits

ROUTES = [(method.upper(), path) for path, methods in openapi()["paths"].items() for method in methods]
KEYED = [(method, path) for method, path in ROUTES if path not in OPEN_PATHS]
RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}]}
GROUP = {"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes.", "No."]}
CONCRETE = {
    "judges/{name}": "judges/default",
    "{name}": "team/a",
    "{alias}": "production",
    "{reference}/retirement": "team/a@1/retirement",
    "{reference}": "team/a",
    "{id}": "op-1",
    "{run}": "r",
    "{run_name}": "r",
}


@pytest.fixture
async def keyless(new_sqlite: NewSQLite, tmp_path: Path) -> AsyncIterator[KeyedService]:
    new_sqlite(tmp_path / "rubrics.db")
    service = await KeyedService.start(tmp_path, required=False)
    yield service
    await service.close()


def concrete(path: str) -> str:
    for template, value in CONCRETE.items():
        path = path.replace(template, value)
    assert "{" not in path, f"add an example of {path} to CONCRETE"
    return path


async def ask(client: httpx2.AsyncClient, method: str, path: str, **options: Any) -> httpx2.Response:
    params = {"run": "r", "from": "1"} if method == "GET" else {}
    body = None if method in ("GET", "DELETE") else {}
    return await client.request(method, concrete(path), params=params, json=body, **options)


async def test_no_route_is_served_without_a_key(keyed: KeyedService) -> None:
    async with keyed.client() as client:
        for method, path in KEYED:
            answer = await ask(client, method, path)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="adjudge"'
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["type"] == "urn:adjudge:unauthorized"
            assert answer.json()["request_id"] == answer.headers["X-Request-Id"]


async def test_an_unknown_path_without_a_key_is_unauthorized(keyed: KeyedService) -> None:
    async with keyed.client() as client:
        for path in ("/nothing", "/v1/", "/healthz/", "/static-offline-docs", "//healthz", "/v1/rubrics/"):
            assert (await client.get(path)).status_code == 401, path


async def test_health_and_documentation_are_open(keyed: KeyedService) -> None:
    async with keyed.client() as client:
        for path in OPEN_PATHS:
            assert (await client.get(path)).status_code == 200, path


def scope_for(method: str, path: str) -> str:
    if path == "/metrics":
        return "metrics"
    if path.startswith("/v1/keys"):
        return "admin"
    if path.startswith("/v1/projects"):
        return "projects:write"
    if path.startswith("/v1/judges"):
        return "read" if method == "GET" else "judges:write"
    if path in ("/v1/rewards", "/v1/rewards/recompute", "/v1/comparisons") or path.startswith("/v1/compat/"):
        return "score"
    if method == "GET":
        return "read"
    if path == "/v1/labels":
        return "labels:write"
    return "rubrics:write" if path.startswith("/v1/rubrics") else "score"


async def unread() -> AsyncIterator[bytes]:
    """A body that must not be read."""
    raise AssertionError("the body was read")
    yield b""


async def test_every_route_requires_a_scope_and_names_the_missing_one_before_it_reads(keyed: KeyedService) -> None:
    async with keyed.client(await keyed.key("metrics")) as stranger, keyed.client(await keyed.key("read")) as reader:
        for method, path in KEYED:
            body: dict[str, Any] = {}
            if "requestBody" in openapi()["paths"][path][method.lower()]:
                body = {"content": unread(), "headers": {"Content-Type": "application/json"}}
            client = reader if path == "/metrics" else stranger
            answer = await client.request(method, concrete(path), params={"run": "r", "from": "1"}, **body)
            assert answer.status_code == 403, (method, path)
            assert answer.json()["type"] == "urn:adjudge:forbidden"
            assert repr(scope_for(method, path)) in answer.json()["detail"]


async def test_a_body_is_not_read_before_the_key_is_known(keyed: KeyedService) -> None:
    async with keyed.client("adj_nonsense") as client:
        assert (await client.post("/v1/rewards", content=unread())).status_code == 401


async def test_metrics_are_open_where_the_service_is_set_so(keyed: KeyedService, tmp_path: Path) -> None:
    opened = await KeyedService.start(tmp_path, open_metrics=True)
    async with opened.client() as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/v1")).status_code == 401
    await opened.close()


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.8.9.1", "[::1]:8000", "adjudge.localhost", "localhost."],
)
async def test_without_a_key_requests_for_local_host_names_are_served(keyless: KeyedService, host: str) -> None:
    async with keyless.client() as client:
        for path in ("/v1/rubrics", "/metrics"):
            assert (await client.get(path, headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.7",
        "[::2]",
        "a:b:c",
        "",
    ],
)
async def test_a_page_that_uses_dns_rebinding_is_served_nothing(keyless: KeyedService, host: str) -> None:
    async with keyless.client() as client:
        for method, path in KEYED:
            answer = await ask(client, method, path, headers={"Host": host, "Authorization": "Bearer made-up"})
            assert answer.status_code == 403, (method, path)
            assert answer.json()["type"] == "urn:adjudge:forbidden"
            assert "localhost" in answer.json()["detail"]
    async with keyless.client(await keyless.key("read")) as client:
        assert (await client.get("/v1/rubrics", headers={"Host": host or "judge.internal"})).status_code == 200


async def test_a_spent_budget_refuses_judging_and_nothing_else(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("b", Limits(tokens_per_day=0))
    async with keyed.client(await keyed.key("score", project_id="b")) as client:
        answer = await client.post("/v1/rewards", json={"rubric": RUBRIC, "groups": [GROUP]})
        assert answer.status_code == 429
        assert answer.json()["type"] == "urn:adjudge:budget-exhausted"
        assert answer.json()["retryable"] is False
        assert 0 < int(answer.headers["Retry-After"]) <= 86_401
        assert (await client.get("/v1/rubrics")).status_code == 200
        for free in (
            await client.delete("/v1/operations/op_1"),
            await client.post("/v1/rewards/recompute", json={"run": "r", "rubric": RUBRIC}),
        ):
            assert free.json()["type"] != "urn:adjudge:budget-exhausted"


async def test_a_request_is_checked_against_its_budget_once(
    keyed: KeyedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    check = UsageMeter.check_budget

    async def counted(meter: UsageMeter, identity: Identity) -> None:
        checked.append(identity.project_id)
        await check(meter, identity)

    monkeypatch.setattr(UsageMeter, "check_budget", counted)
    await keyed.tenants.create_project("b", Limits())
    async with keyed.client(await keyed.key("score", project_id="b")) as client:
        answer = await client.post("/v1/rewards", json={"rubric": RUBRIC, "groups": [GROUP]})
    assert answer.status_code == 200
    assert checked == ["b"]


async def test_too_many_requests_are_refused_with_a_retry_after(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("b", Limits(requests_per_minute=2))
    async with keyed.client(await keyed.key("read", project_id="b")) as client:
        statuses = [(await client.get("/v1")).status_code for _ in range(3)]
        refused = await client.get("/v1")
    assert statuses == [200, 200, 429]
    assert refused.json()["type"] == "urn:adjudge:rate-limited"
    assert refused.json()["retryable"] is True
    assert 1 <= int(refused.headers["Retry-After"]) <= 30


async def made_by(client: httpx2.AsyncClient) -> None:
    """Create one of everything that can be created."""
    assert (await client.post("/v1/rubrics/team/a/versions", json={**RUBRIC, "tags": ["t"]})).status_code == 201
    moved = await client.put(
        "/v1/rubrics/team/a/aliases/production", json={"version": 1}, headers={"If-None-Match": "*"}
    )
    assert moved.status_code == 200
    scored = await client.post("/v1/rewards", json={"run": "r", "rubric": "team/a", "groups": [GROUP]})
    assert scored.status_code == 200


async def test_a_project_cannot_read_what_another_owns(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("b")
    async with (
        keyed.client(await keyed.key("admin")) as mine,
        keyed.client(await keyed.key("admin", project_id="b")) as b,
    ):
        await made_by(mine)
        await keyed.recorded()
        (use, *_) = await keyed.ledger.uses(UseFilter("default", "r"))
        row = use.votes[0][0]
        await keyed.ledger.set_label("default", VerdictKey("r", row.request, row.place, row.slot), "ada", True)
        digest = (await mine.get("/v1/rubrics/team/a")).json()["digest"]
        assert (await b.get(f"/v1/rubrics/{digest}")).status_code == 404
        for path in [path for method, path in KEYED if method == "GET" and not path.startswith("/v1/compat/")]:
            seen, unseen = await ask(mine, "GET", path), await ask(b, "GET", path)
            if path == "/metrics" or path.startswith("/v1/projects"):
                assert unseen.status_code == 403
            elif path in ("/v1", "/v1/ledger", "/v1/judges/{name}/weights"):
                assert unseen.json() == seen.json()  # about the process, not a project
                assert "team/a" not in unseen.text
            elif path == "/v1/keys":
                assert {key["project_id"] for key in unseen.json()["keys"]} == {"b"}
            elif path == "/v1/labels":
                assert '"labels": [{' in seen.text
                assert unseen.text == ""
            elif path == "/v1/project":
                assert (seen.json()["id"], unseen.json()["id"]) == ("default", "b")
            elif path == "/v1/audit":
                assert {entry["project_id"] for entry in unseen.json()["entries"]} == {"b"}
            elif unseen.status_code == 200:
                assert all(seen.json()[name] for name, value in unseen.json().items() if isinstance(value, list)), path
                (listed,) = [value for value in unseen.json().values() if isinstance(value, list)]
                assert listed == [], path
            else:
                assert unseen.status_code == 404 or unseen.status_code == seen.status_code == 503, path
                assert digest not in unseen.text


async def test_a_project_cannot_change_what_another_owns(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("b")
    async with (
        keyed.client(await keyed.key("admin")) as mine,
        keyed.client(await keyed.key("admin", project_id="b")) as b,
    ):
        await made_by(mine)
        before = (await mine.get("/v1/rubrics/team/a@production")).json()
        for method, path, body, headers in (
            ("PUT", "/v1/rubrics/team/a/aliases/production", {"version": 1}, {"If-Match": '"1"'}),
            ("DELETE", "/v1/rubrics/team/a/aliases/production", None, {"If-Match": '"1"'}),
            ("PUT", "/v1/rubrics/team/a/tags", {"tags": []}, {}),
            ("PUT", "/v1/rubrics/team/a@1/retirement", {"reason": "x"}, {}),
            ("DELETE", "/v1/rubrics/team/a@1/retirement", None, {}),
            ("POST", "/v1/rewards", {"rubric": "team/a", "groups": [GROUP]}, {}),
        ):
            answer = await b.request(method, path, json=body, headers=headers)
            assert answer.status_code == 404, (method, path, answer.text)
        published = await b.post("/v1/rubrics/team/a/versions", json=RUBRIC)
        assert published.json()["version"] == 1
        assert (await mine.get("/v1/rubrics/team/a@production")).json() == before


async def test_cached_verdicts_are_not_shared_between_projects(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("b")
    usages = []
    for project_id in ("default", "default", "b", "b"):
        async with keyed.client(await keyed.key("score", project_id=project_id)) as client:
            answer = await client.post("/v1/rewards", json={"rubric": RUBRIC, "groups": [GROUP]})
            usages.append((answer.json()["usage"]["judge_calls"], answer.json()["usage"]["cached"]))
    assert usages == [(2, 0), (0, 2), (2, 0), (0, 2)]


async def test_changes_over_http_are_audited_under_the_keys_name(keyed: KeyedService) -> None:
    key = await keyed.key("rubrics:write")
    async with keyed.client(key) as client:
        assert (await client.post("/v1/rubrics/team/a/versions", json=RUBRIC)).status_code == 201
    (row,) = (await keyed.tenants.audit(subject="team/a@1")).entries
    assert row.actor == f"key {key[4:20]}"


async def test_a_key_sees_its_projects_limits_and_only_an_admin_key_the_audit_log(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("b", Limits(tokens_total=100))
    score, admin = await keyed.key("score", project_id="b"), await keyed.key("admin", project_id="b")
    keyed.authenticator.usage.count("b", 40)
    async with keyed.client(score) as client:
        state = (await client.get("/v1/project")).json()
        refused = await client.get("/v1/audit")
    assert (state["scopes"], state["limits"]["tokens_total"]) == (["read", "score"], 100)
    assert (state["tokens_today"], state["tokens_ever"]) == (40, 40)
    assert refused.status_code == 403
    assert "'admin'" in refused.json()["detail"]
    async with keyed.client(admin) as client:
        entries = (await client.get("/v1/audit", params={"subject": "b"})).json()["entries"]
    assert [entry["action"] for entry in entries] == ["project.created"]


async def test_a_burst_of_requests_without_a_key_begins_one_request_per_iteration_of_the_event_loop() -> None:
    began = 0

    async def page(*_: object) -> None:
        nonlocal began
        began += 1

    callers = ApiCallers(InMemoryApiKeyStore().authenticator())
    access = AccessMiddleware(page, identify=callers, refuse=refuse)
    scope = {"type": "http", "path": "/openapi.json", "headers": [], "state": {}}
    burst = [asyncio.create_task(access(dict(scope), _unused, _unused)) for _ in range(20)]
    seen = [0]
    while not all(task.done() for task in burst):
        await asyncio.sleep(0)
        seen.append(began)
    assert max(after - before for before, after in itertools.pairwise(seen)) == 1


async def _unused(*_: object) -> Any:
    raise AssertionError("the request must not read a body or send an answer")
