"""The rubric store's benchmark fills a store as publishing would, and times the calls that it names."""

import psutil
import pytest
from benchmarks import rubric_store as benchmark

from rubric_store import RubricStore, migrations

SIZE = 60


@pytest.mark.postgres
@pytest.mark.slow
async def test_a_store_filled_in_bulk_equals_one_filled_by_publishing(postgres_url: str) -> None:
    migrations.upgrade(postgres_url)
    benchmark.fill(postgres_url, 0, SIZE)
    store = RubricStore(postgres_url)
    number = SIZE - 1
    filled = await store.find(benchmark.PROJECT, benchmark.name(number))
    assert filled is not None
    await benchmark.add(store, number, "other")
    published = await store.find(benchmark.PROJECT, "other")
    assert published is not None
    same = {"name", "created_at"}
    assert filled.model_dump(exclude=same) == published.model_dump(exclude=same)
    rare = filled.criteria[0].description.split()[-1]
    for narrowed in ({"text": rare}, {"tag": f"tag{number % 50}", "text": rare}):
        page = await store.list(benchmark.PROJECT, **narrowed)
        assert [summary.name for summary in page.rubrics] == ["other", benchmark.name(number)]
    assert await store.publish(benchmark.PROJECT, benchmark.name(number), benchmark.content(number)) == (filled, False)
    await store.close()


async def test_a_row_shows_the_latency_and_the_processor_time_of_a_call() -> None:
    async def nothing(_: int) -> None:
        return None

    row = await benchmark.timed(psutil.Process(), "nothing", SIZE, nothing, 20)
    assert list(row) == ["call", "rubrics", "p50 ms", "p99 ms", "processor ms"]
    assert 0 <= row["p50 ms"] <= row["p99 ms"]
