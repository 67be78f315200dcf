"""A large publication is prepared away from the event loop, and is stored as it would be there."""

import json
import threading
from collections.abc import Callable

import pytest
from sqlalchemy import Text, literal_column, select

from rubric_store import RubricStore
from rubric_store.database import open_engine
from rubric_store.rubrics.publishing import LARGE_CHARACTERS, PreparedPublication
from rubric_store.rubrics.tables import rubric_versions
from tests.rubric_store.examples import rubric
from trainer_client.wire import RubricContent

LONG = rubric(*(f'Sätze {n}: "x" \x00 🧮 ' + "word " * (LARGE_CHARACTERS // 40) for n in range(9)))


class Recorded:
    """Prepares publications in the caller's thread, and counts them."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self, prepare: Callable[[], PreparedPublication]) -> PreparedPublication:
        self.times += 1
        return prepare()


@pytest.mark.parametrize(("content", "times"), [(LONG, 1), (rubric("short"), 0)])
async def test_only_a_large_publication_is_handed_over(migrated_url: str, content: RubricContent, times: int) -> None:
    recorded = Recorded()
    store = RubricStore(migrated_url, run_large=recorded)
    await store.publish("p1", "a", content)
    await store.close()
    assert recorded.times == times


async def test_by_default_it_is_prepared_in_another_thread(store: RubricStore, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    digest = RubricContent.digest.fget
    assert digest is not None
    monkeypatch.setattr(
        RubricContent, "digest", property(lambda self: (threads.append(threading.current_thread()), digest(self))[1])
    )
    await store.publish("p1", "a", LONG)
    assert threads
    assert threading.main_thread() not in threads


async def test_its_json_is_that_of_any_other_publication(store: RubricStore, migrated_url: str) -> None:
    await store.publish("p1", "a", LONG)
    engine = open_engine(migrated_url)
    async with engine.connect() as connection:
        column = literal_column(f"CAST({rubric_versions.c.criteria.name} AS TEXT)", Text)
        stored = (await connection.execute(select(column).select_from(rubric_versions))).scalar_one()
    await engine.dispose()
    assert stored == json.dumps([one.model_dump(mode="json") for one in LONG.criteria])
