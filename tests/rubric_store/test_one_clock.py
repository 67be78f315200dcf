"""Processes whose clocks differ: leases and pauses are alike for all of them, for the database says what time it is."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from rubric_store import SQLOperations
from rubric_store.operations import connection
from tests.rubric_store.operation_rows import LEASE_S, NOW, new
from trainer_client.wire.operation_rows import ChunkOutcome, ChunkRef, ChunkWork

Open = Callable[[timedelta], SQLOperations]
AHEAD = timedelta(hours=1)


@pytest.fixture
async def hosts(migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    """Opens the store in a process whose clock differs by so much."""
    async with AsyncExitStack() as closing:

        def open_(off: timedelta) -> SQLOperations:
            monkeypatch.setattr(connection, "_now", lambda: datetime.now(UTC) + off)
            opened = SQLOperations(migrated_postgres_url)
            closing.push_async_callback(opened.close)
            return opened

        yield open_


async def taken(store: SQLOperations, chunk: int = 0) -> ChunkWork:
    """A chunk, claimed."""
    work = await store.claim(ChunkRef("p", "op-1", chunk), "w", LEASE_S)
    assert work is not None
    return work


def since_now(off: timedelta) -> float:
    """So much after this moment, in seconds since `NOW`."""
    return (datetime.now(UTC) + off - NOW).total_seconds()


@pytest.mark.postgres
async def test_a_worker_whose_clock_is_behind_takes_what_was_queued_by_one_that_is_ahead(hosts: Open) -> None:
    behind, ahead = hosts(-AHEAD), hosts(AHEAD)
    await ahead.create(new(created=since_now(AHEAD), finishes=True))
    assert len(await behind.due(100, lost_after_s=60)) == 2
    work = await taken(behind)
    await ahead.give_back(work, None, after_s=0.0, outcome=ChunkOutcome(), counts=False)
    assert await behind.due(100, lost_after_s=60) == [work.ref]
    await ahead.give_up(await taken(behind), "no")
    assert await ahead.complete(await taken(behind, 1), ChunkOutcome())
    await ahead.retry("p", "op-1")
    assert await ahead.complete(await taken(behind), ChunkOutcome())
    assert await behind.complete(await taken(behind, 2), ChunkOutcome())
    done = await ahead.get("p", "op-1")
    assert done is not None
    assert done.state == "done"


@pytest.mark.postgres
async def test_a_process_whose_clock_is_ahead_takes_nothing_from_workers_and_announces_nothing_twice(
    hosts: Open,
) -> None:
    behind, ahead = hosts(-AHEAD), hosts(AHEAD)
    await behind.create(new(created=since_now(-AHEAD)))
    await behind.due(100, lost_after_s=60)
    work = await taken(behind)
    shown = await behind.get("p", "op-1")
    assert shown is not None
    assert shown.progress.seconds == 0
    assert await ahead.due(100, lost_after_s=60) == []
    assert await ahead.claim(work.ref, "other", LEASE_S) is None
    assert await behind.renew(work, LEASE_S)
    assert await ahead.due(100, lost_after_s=60) == []
    assert await behind.complete(work, ChunkOutcome())


async def test_a_chunk_is_to_be_had_at_once_whatever_its_submitters_clock_says(migrated_url: str) -> None:
    store = SQLOperations(migrated_url)
    await store.create(new(created=since_now(AHEAD)))
    assert len(await store.due(100, lost_after_s=60)) == 2
    await taken(store)
    await store.close()
