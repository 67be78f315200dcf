"""Finding versions in the cache: while the database is unreachable, and where callers accept a recent copy."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rubric_store import RubricStore
from rubric_store.repository import READ_TIMEOUT_S
from rubric_store.rubrics import queries
from rubric_store.rubrics import store as module
from tests.fixtures.migrated import NewSQLite
from tests.rubric_store.examples import rubric


async def test_a_cached_version_waits_a_second_for_the_database_which_is_then_skipped_for_one(
    tmp_path: Path, new_sqlite: NewSQLite, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waited = 100.0, []
    store = RubricStore(new_sqlite(tmp_path / "rubrics.db"))
    published, _ = await store.publish("p", "team/a", rubric("Right."))
    assert await store.find("p", "team/a@1") == published

    async def away(*_: Any, timeout_s: float) -> None:
        waited.append(timeout_s)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(module, "monotonic", lambda: now)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_read", away)
        for _ in range(64):
            assert await store.find("p", "team/a@1") == published
        assert waited == [1.0]
        now += 1.5
        assert await store.find("p", "team/a@1") == published
        assert waited == [1.0, 1.0]
        for unknown in ("team/a", "team/a@2"):
            with pytest.raises(ConnectionError):
                await store.find("p", unknown)
        assert waited == [1.0, 1.0, READ_TIMEOUT_S, READ_TIMEOUT_S]
    now += 1.5
    await store.retire("p", "team/a", 1, "It was wrong.")
    found = await store.find("p", "team/a@1")
    assert found is not None
    assert found.retirement is not None
    await store.close()


async def test_a_recent_version_is_found_in_the_cache_and_refreshed_in_the_background(
    tmp_path: Path, new_sqlite: NewSQLite, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    for each in (module, queries):
        monkeypatch.setattr(each, "monotonic", lambda: now)
    url = new_sqlite(tmp_path / "rubrics.db")
    store, other = RubricStore(url), RubricStore(url)
    published, _ = await store.publish("p", "team/a", rubric("Right."))
    assert await store.find("p", "team/a@1", max_age_s=5.0) == published
    retired = await other.retire("p", "team/a", 1, "It was wrong.")
    now += 0.9
    assert await store.find("p", "team/a@1", max_age_s=5.0) == published
    assert await store.find("p", "team/a@1") == retired
    await other.restore("p", "team/a", 1)
    now += 4.0
    assert await store.find("p", "team/a@1", max_age_s=5.0) == retired  # and refreshed in the background
    async with asyncio.timeout(60):
        while await store.find("p", "team/a@1", max_age_s=5.0) != published:  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.01)
    retired = await other.retire("p", "team/a", 1, "It was wrong.")
    now += 5.0
    assert await store.find("p", "team/a@1", max_age_s=5.0) == retired
    await store.close()
    await other.close()


async def test_a_change_by_the_same_store_is_seen_at_once(tmp_path: Path, new_sqlite: NewSQLite) -> None:
    store = RubricStore(new_sqlite(tmp_path / "rubrics.db"))
    published, _ = await store.publish("p", "team/a", rubric("Right."))
    assert await store.find("p", published.digest, max_age_s=60.0) == published
    retired = await store.retire("p", "team/a", 1, "It was wrong.")
    assert await store.find("p", published.digest, max_age_s=60.0) == retired
    assert await store.restore("p", "team/a", 1) == published
    assert await store.find("p", published.digest, max_age_s=60.0) == published
    await store.close()
