"""Calibrations are stored in immutable versions, and aliases point at them."""

from collections.abc import AsyncIterator

import pytest

from rubric_store import CalibrationStore, TenantStore


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[CalibrationStore]:
    """An empty store."""
    store = CalibrationStore(migrated_url, actor=lambda: "ann")
    yield store
    await store.close()


async def test_equal_content_is_the_same_version_and_new_content_the_next(store: CalibrationStore) -> None:
    first, added = await store.add("support", {"a": 1, "b": [2]})
    same, again = await store.add("support", {"b": [2], "a": 1})
    second, _ = await store.add("support", {"a": 2})
    assert (first.version, added, same.version, again, second.version) == (1, True, 1, False, 2)
    assert (await store.add("other", {"a": 1}))[0].version == 1


async def test_a_reference_is_to_the_newest_version_a_version_or_an_alias(store: CalibrationStore) -> None:
    for number in (1, 2, 3):
        await store.add("support", {"a": number})
    assert await store.move_alias("support", "live", 1) is None
    assert await store.move_alias("support", "live", 2) == 1
    found = [await store.find(reference) for reference in ("support", "support@1", "support@live")]
    assert [one.content["a"] if one else None for one in found] == [3, 1, 2]
    assert [await store.find(reference) for reference in ("support@4", "support@none", "none")] == [None] * 3
    assert [(one.version, one.aliases) for one in await store.versions()] == [(3, ()), (2, ("live",)), (1, ())]


async def test_an_alias_must_have_a_version_and_must_not_look_like_one(store: CalibrationStore) -> None:
    await store.add("support", {})
    with pytest.raises(LookupError, match="there is no calibration support@2"):
        await store.move_alias("support", "live", 2)
    with pytest.raises(ValueError, match="reads as a version"):
        await store.move_alias("support", "3", 1)


async def test_every_change_is_in_the_audit_log(store: CalibrationStore, migrated_url: str) -> None:
    await store.add("support", {})
    await store.move_alias("support", "live", 1)
    tenants = TenantStore(migrated_url)
    entries = (await tenants.audit("default", subject=None, limit=10)).entries
    await tenants.close()
    assert [(one.actor, one.action, one.subject) for one in entries] == [
        ("ann", "calibration.alias", "calibration support@live"),
        ("ann", "calibration.add", "calibration support@1"),
    ]


@pytest.mark.parametrize("name", ["", "Bad", "two words", "a@b", "a/b", "x" * 65])
async def test_a_name_that_no_reference_can_have_is_refused(store: CalibrationStore, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a calibration"):
        await store.add(name, {})
    await store.add("support", {})
    with pytest.raises(ValueError, match="cannot be an alias"):
        await store.move_alias("support", f"{name} @", 1)
    assert await store.move_alias("support", "Live-2", 1) is None
