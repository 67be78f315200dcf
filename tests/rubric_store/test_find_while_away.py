"""Looking a version up while the database is away: what is remembered costs a try a second, and nothing is guessed."""

from pathlib import Path
from typing import Any

import pytest

from rubric_store import RubricStore
from rubric_store.repository import READ_TIMEOUT_S
from rubric_store.rubrics import store as module
from tests.fixtures.migrated import NewSQLite
from tests.rubric_store.examples import rubric


async def test_what_is_remembered_is_waited_for_a_second_and_then_the_database_is_left_alone_for_one(
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
