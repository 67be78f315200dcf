"""Projects, keys and audit logs are administered over HTTP, each with its scope, and every change is audited."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.judge_server.auth.keyed import KeyedService
from trainer_client import AsyncClient, Forbidden, InvalidRequest, NotFound


@pytest.fixture
async def operator(keyed: KeyedService) -> AsyncIterator[AsyncClient]:
    """A client that administers every project."""
    key = await keyed.key("admin", "projects:write")
    async with AsyncClient("http://judge", api_key=key, transport=keyed.transport) as client:
        yield client


def client_with(keyed: KeyedService, key: str) -> AsyncClient:
    return AsyncClient("http://judge", api_key=key, transport=keyed.transport)


async def test_a_project_is_created_and_given_limits_and_a_first_key(
    keyed: KeyedService, operator: AsyncClient
) -> None:
    made = await operator.create_project("team-b", {"requests_per_minute": 60})
    assert (made.id, made.limits.requests_per_minute) == ("team-b", 60)
    changed = await operator.set_limits("team-b", {"weight": 2, "tokens_per_day": 1000})
    assert (changed.limits.weight, changed.limits.requests_per_minute) == (2, None)
    assert await operator.project("team-b") == changed
    key = await operator.create_key(["admin"], project="team-b", label="first")
    async with client_with(keyed, key.key) as theirs:
        assert (await theirs.project_state()).limits.tokens_per_day == 1000
        own = await theirs.create_key(["score"])
        assert own.project_id == "team-b"
        assert [one.id async for one in theirs.api_keys()] == [key.id, own.id]
    revoked = await operator.revoke_key(own.id, project="team-b")
    assert revoked.revoked_at is not None
    log = [(entry.action, entry.actor.split()[0]) async for entry in operator.audit_log(project="team-b")]
    assert [action for action, _ in log] == [
        "key.revoked",
        "key.created",
        "key.created",
        "limits.changed",
        "project.created",
    ]
    assert {actor for _, actor in log} == {"key"}


async def test_errors_in_a_project_request_are_reported(operator: AsyncClient) -> None:
    await operator.create_project("team-b")
    with pytest.raises(InvalidRequest, match="already exists"):
        await operator.create_project("team-b")
    for call in (
        operator.project("nobody"),
        operator.set_limits("nobody", {}),
        operator.create_key(["read"], project="x"),
    ):
        with pytest.raises(NotFound, match="no project"):
            await call
    with pytest.raises(InvalidRequest, match="weight"):
        await operator.set_limits("team-b", {"weight": 0})
    with pytest.raises(InvalidRequest, match="cannot name a project; use lower-case"):
        await operator.project("Team B")
    (mine, *_) = [key async for key in operator.api_keys()]
    with pytest.raises(NotFound, match="has no key"):
        await operator.revoke_key(mine.id, project="team-b")


@pytest.mark.parametrize("scopes", [("admin",), ("score", "metrics"), ("projects:write",)])
async def test_without_its_scope_nothing_of_another_project_is_accessible(
    keyed: KeyedService, scopes: tuple[str, ...]
) -> None:
    await keyed.tenants.create_project("other")
    async with keyed.client(await keyed.key(*scopes)) as client:

        async def status(method: str, path: str, body: Any = None) -> int:
            return (await client.request(method, path, json=body)).status_code

        projects = {await status("GET", "/v1/projects"), await status("GET", "/v1/projects/other")}
        assert projects == ({200} if "projects:write" in scopes else {403})
        limits = await status("PUT", "/v1/projects/other/limits", {"weight": 3})
        assert limits == (200 if "projects:write" in scopes else 403)
        made = await status("POST", "/v1/projects", {"id": "-".join(scopes).replace(":", "-")})
        assert made == (201 if "projects:write" in scopes else 403)
        assert await status("GET", "/v1/keys?project=other") == 403
        assert await status("POST", "/v1/keys?project=other", {"scopes": ["read"]}) == 403
        assert await status("GET", "/v1/audit?project=other") == 403
        assert await status("GET", "/v1/keys") == (200 if "admin" in scopes else 403)


async def test_an_administrator_cannot_grant_the_scope_of_operators(keyed: KeyedService) -> None:
    async with client_with(keyed, await keyed.key("admin")) as client:
        with pytest.raises(Forbidden, match="projects:write"):
            await client.create_key(["projects:write"])


async def test_lists_are_paged_without_losing_entries(keyed: KeyedService, operator: AsyncClient) -> None:
    for n in range(5):
        await keyed.tenants.create_project(f"p{n}")
        await operator.create_key(["read"], label=str(n))
    async with keyed.client(await keyed.key("admin", "projects:write")) as client:
        for path, field, everything in (
            ("/v1/projects", "projects", [one.id async for one in operator.projects()]),
            ("/v1/keys", "keys", [one.id async for one in operator.api_keys()]),
            ("/v1/audit", "entries", [one.subject async for one in operator.audit_log()]),
        ):
            seen: list[str] = []
            after: str | None = None
            while after is not None or not seen:
                params = {"limit": "2"} | ({} if after is None else {"after": after})
                page = (await client.get(path, params=params)).json()
                assert len(page[field]) <= 2
                seen += [one.get("id") or one["subject"] for one in page[field]]
                after = page["next_cursor"]
            assert seen == everything
            assert len(seen) >= 5
            wrong = await client.get(path, params={"after": "!"})
            assert wrong.status_code == 422
            assert wrong.json()["errors"][0]["field"] == "after"
