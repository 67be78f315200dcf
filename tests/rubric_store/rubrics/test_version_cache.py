"""The cache of references: only immutable ones, separate for each project, also while the database is unreachable."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rubric_store import RubricStore
from rubric_store.repository import READ_TIMEOUT_S
from rubric_store.rubrics import queries
from rubric_store.rubrics import store as module
from rubric_store.rubrics.queries import VersionCache
from tests.fixtures.migrated import NewSQLite
from tests.rubric_store.examples import rubric
from trainer_client.wire import Criterion, RubricVersion, content_digest, parse_reference

CRITERIA = (Criterion(id="a", description="Is right."),)
VERSION = RubricVersion(
    name="team/a", version=1, digest=content_digest(CRITERIA), criteria=CRITERIA, created_at=datetime.now(UTC)
)


def test_versions_and_digests_are_cached_and_movable_references_are_not() -> None:
    remembered = VersionCache()
    for text in ("team/a@1", VERSION.digest, "team/a", "team/a@production", "team/a@latest"):
        remembered.put("p", parse_reference(text), VERSION, 0.0)
    assert remembered.get("p", parse_reference("team/a@1")) is VERSION
    assert remembered.get("p", parse_reference(VERSION.digest)) is VERSION
    for text in ("team/a", "team/a@production", "team/a@latest", "team/a@2"):
        assert remembered.get("p", parse_reference(text)) is None


def test_a_project_gets_only_what_it_found_itself() -> None:
    remembered = VersionCache()
    remembered.put("p", parse_reference("team/a@1"), VERSION, 0.0)
    assert remembered.get("q", parse_reference("team/a@1")) is None


def test_the_version_found_longest_ago_is_evicted_first() -> None:
    million = Criterion(id="a", description="x" * 20_000).model_copy(update={"description": "x" * 2**20})
    version = VERSION.model_copy(update={"criteria": (million,)})
    remembered = VersionCache()
    for number in [*range(1, 21), 1, *range(21, 41)]:
        remembered.put("p", parse_reference(f"team/a@{number}"), version, 0.0)
    kept = [n for n in range(1, 41) if remembered.get("p", parse_reference(f"team/a@{n}"))]
    assert kept == [1, *range(42 - len(kept), 41)]
    assert 20 < len(kept) <= 32  # versions of one mebibyte each


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
