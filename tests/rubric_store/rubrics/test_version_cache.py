"""The cache of references: only immutable ones, separate for each project, also while the database is unreachable."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import event

from rubric_store import RubricStore, open_engine
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


async def test_a_cached_version_is_found_without_the_database_which_is_tried_once_a_second(
    tmp_path: Path, new_sqlite: NewSQLite
) -> None:
    now, tries, away = 100.0, 0, False
    engine = open_engine(new_sqlite(tmp_path / "rubrics.db"))
    store = RubricStore(engine, clock=lambda: now)

    @event.listens_for(engine.sync_engine, "checkout")
    def connect(*_: object) -> None:
        nonlocal tries
        tries += 1
        if away:
            raise OSError("nobody there")

    published, _ = await store.publish("p", "team/a", rubric("Right."))
    assert await store.find("p", "team/a@1") == published
    tries, away = 0, True
    for _ in range(64):
        assert await store.find("p", "team/a@1") == published
    assert tries == 1
    now += 1.5
    assert await store.find("p", "team/a@1") == published
    assert tries == 2
    for unknown in ("team/a", "team/a@2"):
        with pytest.raises(ConnectionError):
            await store.find("p", unknown)
    assert tries == 4
    away = False
    now += 1.5
    await store.retire("p", "team/a", 1, "It was wrong.")
    found = await store.find("p", "team/a@1")
    assert found is not None
    assert found.retirement is not None
    await store.close()
    await engine.dispose()


async def test_a_recent_version_is_found_in_the_cache_and_refreshed_in_the_background(
    tmp_path: Path, new_sqlite: NewSQLite
) -> None:
    now = 100.0
    url = new_sqlite(tmp_path / "rubrics.db")
    store, other = RubricStore(url, clock=lambda: now), RubricStore(url, clock=lambda: now)
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
