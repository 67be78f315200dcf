"""Projects, keys, usage and audit entries, on each database."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from rubric_store import RubricStore, TenantStore
from rubric_store.tenants.rows import TokenUsage
from tests.rubric_store.examples import rubric
from trainer_client.wire.tenants import Limits

DAY = date(2026, 2, 3)
NOW = datetime(2026, 2, 3, 12, tzinfo=UTC)


@pytest.fixture
async def tenants(migrated_url: str) -> AsyncIterator[TenantStore]:
    opened = TenantStore(migrated_url, actor=lambda: "ada")
    yield opened
    await opened.close()


@pytest.fixture
async def rubrics(migrated_url: str) -> AsyncIterator[RubricStore]:
    opened = RubricStore(migrated_url, actor=lambda: "key k1")
    yield opened
    await opened.close()


async def test_the_default_project_exists_from_the_start_without_limits(tenants: TenantStore) -> None:
    (project,) = await tenants.projects()
    assert (project.id, project.limits) == ("default", Limits())
    assert await tenants.project("default") == project


async def test_a_project_keeps_its_limits_until_new_ones_are_set(tenants: TenantStore) -> None:
    first = Limits(weight=2.5, requests_per_minute=60, tokens_per_day=10**12)
    await tenants.create_project("team-b", first)
    found = await tenants.project("team-b")
    assert found is not None
    assert found.limits == first
    await tenants.set_limits("team-b", Limits(tokens_total=0))
    assert [(p.id, p.limits) for p in await tenants.projects()] == [
        ("default", Limits()),
        ("team-b", Limits(tokens_total=0)),
    ]


async def test_a_project_is_created_once_and_under_a_plain_name(tenants: TenantStore) -> None:
    with pytest.raises(ValueError, match="a project 'default' already exists"):
        await tenants.create_project("default")
    for name in ("", "Team", "a/b", "-a", "a\0b", "x" * 65):
        with pytest.raises(ValueError, match="cannot name a project"):
            await tenants.create_project(name)


async def test_a_key_is_found_by_its_id_with_its_digest_and_its_projects_limits(tenants: TenantStore) -> None:
    limits = Limits(requests_per_minute=7)
    await tenants.create_project("b", limits)
    expires = NOW + timedelta(days=30)
    made = await tenants.add_key("b", "k1", b"\1" * 32, scopes=["read", "score"], label="CI", expires_at=expires)
    found = await tenants.find_key("k1")
    assert found == (made, b"\1" * 32, limits)
    assert (made.project_id, made.scopes, made.expires_at, made.label) == ("b", ("read", "score"), expires, "CI")
    assert await tenants.find_key("k2") is None


async def test_keys_are_listed_by_project(tenants: TenantStore) -> None:
    await tenants.create_project("b")
    for project_id, key_id in (("b", "k1"), ("default", "k2"), ("b", "k3")):
        await tenants.add_key(project_id, key_id, b"\0" * 32, scopes=["read"])
    assert [key.id for key in await tenants.keys("b")] == ["k1", "k3"]
    assert [key.id for key in await tenants.keys()] == ["k1", "k2", "k3"]


async def test_ensuring_a_key_stores_it_once_and_keeps_it_revoked(tenants: TenantStore) -> None:
    made = await asyncio.gather(*(tenants.ensure_key("default", "k1", b"\1" * 32, scopes=["read"]) for _ in range(4)))
    assert sorted(is_new for _, is_new in made) == [False, False, False, True]
    assert [(entry.action, entry.subject) for entry in (await tenants.audit(subject="k1")).entries] == [
        ("key.created", "k1")
    ]
    await tenants.revoke_key("k1")
    key, is_new = await tenants.ensure_key("default", "k1", b"\1" * 32, scopes=["read"])
    assert (key.state_at(datetime.now(UTC)), is_new) == ("revoked", False)
    with pytest.raises(ValueError, match="another key with the id 'k1' exists"):
        await tenants.ensure_key("default", "k1", b"\2" * 32, scopes=["read"])
    with pytest.raises(LookupError, match="adjudge projects create b"):
        await tenants.ensure_key("b", "k2", b"\2" * 32, scopes=["read"])


async def test_key_ids_are_unique_across_projects(tenants: TenantStore) -> None:
    await tenants.create_project("b")
    await tenants.add_key("b", "k1", b"\1" * 32, scopes=["read"])
    with pytest.raises(IntegrityError):
        await tenants.add_key("default", "k1", b"\2" * 32, scopes=["admin"])
    found = await tenants.find_key("k1")
    assert found is not None
    assert (found.digest, found.key.project_id) == (b"\1" * 32, "b")


async def test_missing_projects_and_keys_cannot_be_changed(tenants: TenantStore) -> None:
    with pytest.raises(LookupError, match="adjudge projects create nobody"):
        await tenants.add_key("nobody", "k1", b"\0" * 32, scopes=["read"])
    with pytest.raises(LookupError, match="no project 'nobody'"):
        await tenants.set_limits("nobody", Limits())
    with pytest.raises(LookupError, match="no key 'k1'"):
        await tenants.revoke_key("k1")
    assert [row.action for row in (await tenants.audit()).entries] == []


async def test_revoking_a_key_again_keeps_the_first_time(tenants: TenantStore) -> None:
    await tenants.add_key("default", "k1", b"\0" * 32, scopes=["read"])
    first = await tenants.revoke_key("k1")
    assert first.state_at(NOW) == "revoked"
    assert await tenants.revoke_key("k1") == first
    assert (await tenants.keys()) == [first]
    assert [row.action for row in (await tenants.audit()).entries] == ["key.revoked", "key.created"]


async def test_an_ended_session_stays_ended_and_others_go_on(tenants: TenantStore, migrated_url: str) -> None:
    soon = datetime.now(UTC) + timedelta(hours=12)
    assert not await tenants.has_ended("b", "s1")
    for _ in range(2):
        await tenants.end_session("b", "s1", soon)
    assert await tenants.has_ended("b", "s1")
    assert not await tenants.has_ended("b", "s2")
    assert not await tenants.has_ended("default", "s1")
    other_process = TenantStore(migrated_url)
    assert await other_process.has_ended("b", "s1")
    await other_process.close()


async def test_ended_sessions_are_deleted_an_hour_after_they_expired(tenants: TenantStore) -> None:
    now = datetime.now(UTC)
    await tenants.end_session("b", "expired", now - timedelta(minutes=30))
    await tenants.end_session("b", "long expired", now - timedelta(minutes=90))
    assert await tenants.has_ended("b", "expired")
    assert not await tenants.has_ended("b", "long expired")


async def test_the_last_use_of_a_key_only_moves_forward(tenants: TenantStore) -> None:
    await tenants.add_key("default", "k1", b"\0" * 32, scopes=["read"])
    await tenants.record_key_use({"k1": NOW, "gone": NOW})
    await tenants.record_key_use({"k1": NOW - timedelta(hours=1)})
    assert (await tenants.keys())[0].last_used_at == NOW


async def test_usage_is_summed_by_day_and_in_total(tenants: TenantStore) -> None:
    await tenants.create_project("b")
    await tenants.add_usage(DAY, {"b": (1, 100), "default": (1, 7)})
    await tenants.add_usage(DAY, {"b": (2, 50), "nobody": (1, 1)})
    await tenants.add_usage(DAY + timedelta(days=1), {"b": (1, 5_000_000_000)})
    assert await tenants.used_tokens("b", DAY) == TokenUsage(150, 5_000_000_150)
    assert await tenants.used_tokens("default", DAY) == TokenUsage(7, 7)
    assert await tenants.used_tokens("default", DAY + timedelta(days=1)) == TokenUsage(0, 7)
    assert await tenants.used_tokens("nobody", DAY) == TokenUsage(0, 0)


async def test_usage_counted_by_several_processes_at_once_is_complete(migrated_url: str) -> None:
    stores = [TenantStore(migrated_url) for _ in range(4)]
    await asyncio.gather(*(store.add_usage(DAY, {"default": (1, n)}) for n in range(1, 6) for store in stores))
    assert await stores[0].used_tokens("default", DAY) == TokenUsage(60, 60)
    for store in stores:
        await store.close()


async def test_every_change_of_a_rubric_is_audited_with_actor_and_change(
    tenants: TenantStore, rubrics: RubricStore
) -> None:
    one, two = rubric("Is right."), rubric("Is kind.")
    for content in (one, one, two):
        await rubrics.publish("b", "math", content, tags=["t"])
    await rubrics.move_alias("b", "math", "production", 1, expected=None)
    await rubrics.move_alias("b", "math", "production", 2, expected=1)
    await rubrics.move_alias("b", "math", "production", 2, expected=1)
    await rubrics.remove_alias("b", "math", "production", expected=2)
    await rubrics.replace_tags("b", "math", ["v", "u"])
    await rubrics.replace_tags("b", "math", ["u", "v"])
    await rubrics.retire("b", "math", 2, "Wrong.")
    await rubrics.restore("b", "math", 2)
    await rubrics.restore("b", "math", 2)
    rows = (await tenants.audit("b")).entries
    assert {(row.project_id, row.actor) for row in rows} == {("b", "key k1")}
    assert [(row.action, row.subject, row.before, row.after) for row in reversed(rows)] == [
        ("tags.changed", "math", None, "t"),
        ("version.published", "math@1", None, one.digest),
        ("version.published", "math@2", None, two.digest),
        ("alias.moved", "math@production", None, one.digest),
        ("alias.moved", "math@production", one.digest, two.digest),
        ("alias.removed", "math@production", two.digest, None),
        ("tags.changed", "math", "t", "u v"),
        ("version.retired", "math@2", None, "Wrong."),
        ("version.restored", "math@2", "Wrong.", None),
    ]
    assert (await tenants.audit("default")).entries == ()


async def test_a_failed_change_is_not_audited(tenants: TenantStore, rubrics: RubricStore) -> None:
    await rubrics.publish("b", "math", rubric("x"))
    with pytest.raises(ValueError, match="parent"):
        await rubrics.publish("b", "math", rubric("y"), tags=["t"], parent=9)
    with pytest.raises(LookupError):
        await rubrics.move_alias("b", "math", "production", 9, expected=None)
    assert [row.action for row in (await tenants.audit("b")).entries] == ["version.published"]


async def test_changes_of_projects_and_limits_are_audited_and_read_newest_first(tenants: TenantStore) -> None:
    before, after = Limits(weight=2), Limits(weight=3)
    await tenants.create_project("b", before)
    await tenants.set_limits("b", after)
    await tenants.set_limits("b", after)
    await tenants.add_key("b", "k1", b"\0" * 32, scopes=["read", "score"])
    rows = (await tenants.audit()).entries
    assert [(row.action, row.subject, row.before, row.after) for row in rows] == [
        ("key.created", "k1", None, "read score"),
        ("limits.changed", "b", before.model_dump_json(exclude_none=True), after.model_dump_json(exclude_none=True)),
        ("project.created", "b", None, before.model_dump_json(exclude_none=True)),
    ]
    assert {row.actor for row in rows} == {"ada"}
    assert [row.action for row in (await tenants.audit(limit=1)).entries] == ["key.created"]
    assert [row.action for row in (await tenants.audit(subject="k1")).entries] == ["key.created"]
