"""Processes with different clocks agree on leases and delays, because they use the database's clock."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest

from rubric_store import SQLOperations
from rubric_store.operations.database import HostClock
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk
from tests.fixtures.migrated import NewSQLite
from tests.rubric_store.operation_rows import LEASE_S, NOW, new

Open = Callable[[timedelta], SQLOperations]
AHEAD = timedelta(hours=1)


@pytest.fixture
def sqlite_url(tmp_path: Path, new_sqlite: NewSQLite) -> str:
    """The URL of a new SQLite database, which has no clock."""
    return new_sqlite(tmp_path / "rubrics.db")


class SetClock:
    """A host's clocks: the time is off by `off`, and the monotonic time has run on by `slept_s`."""

    def __init__(self, off: timedelta = timedelta()) -> None:
        self.off = off
        self.slept_s = 0.0

    @property
    def host_clock(self) -> HostClock:
        """The clocks, as a store takes them."""
        return HostClock(lambda: datetime.now(UTC) + self.off, lambda: monotonic() + self.slept_s)


@pytest.fixture
async def hosts(migrated_postgres_url: str) -> AsyncIterator[Open]:
    """Opens the store in a process whose clock is off by the given time."""
    async with AsyncExitStack() as closing:

        def open_(off: timedelta) -> SQLOperations:
            opened = SQLOperations(migrated_postgres_url, host_clock=SetClock(off).host_clock)
            closing.push_async_callback(opened.close)
            return opened

        yield open_


async def taken(store: SQLOperations, chunk: int = 0) -> LeasedChunk:
    """Claim a chunk."""
    work = await store.claim(ChunkRef("p", "op-1", chunk), "w", LEASE_S)
    assert work is not None
    return work


def since_now(off: timedelta) -> float:
    """The seconds from `NOW` to this long after the present."""
    return (datetime.now(UTC) + off - NOW).total_seconds()


@pytest.mark.postgres
async def test_a_worker_whose_clock_is_behind_takes_chunks_queued_by_one_that_is_ahead(hosts: Open) -> None:
    behind, ahead = hosts(-AHEAD), hosts(AHEAD)
    await ahead.create(new(created=since_now(AHEAD), has_final_chunk=True))
    assert len(await behind.take_due(100, lost_after_s=60)) == 2
    work = await taken(behind)
    await ahead.requeue(work, None, delay_s=0.0, outcome=ChunkOutcome(), counts=False)
    assert await behind.take_due(100, lost_after_s=60) == [work.ref]
    await ahead.fail(await taken(behind), "no")
    assert await ahead.complete(await taken(behind, 1), ChunkOutcome())
    await ahead.retry("p", "op-1")
    assert await ahead.complete(await taken(behind), ChunkOutcome())
    assert await behind.complete(await taken(behind, 2), ChunkOutcome())
    done = await ahead.get("p", "op-1")
    assert done is not None
    assert done.state == "done"


@pytest.mark.postgres
async def test_a_process_whose_clock_is_ahead_takes_no_chunk_from_workers_and_enqueues_nothing_twice(
    hosts: Open,
) -> None:
    behind, ahead = hosts(-AHEAD), hosts(AHEAD)
    await behind.create(new(created=since_now(-AHEAD)))
    await behind.take_due(100, lost_after_s=60)
    work = await taken(behind)
    shown = await behind.get("p", "op-1")
    assert shown is not None
    assert shown.progress.seconds == 0
    assert await ahead.take_due(100, lost_after_s=60) == []
    assert await ahead.claim(work.ref, "other", LEASE_S) is None
    assert await behind.renew(work, LEASE_S)
    assert await ahead.take_due(100, lost_after_s=60) == []
    assert await behind.complete(work, ChunkOutcome())


async def test_a_chunk_is_available_at_once_whatever_its_submitters_clock(migrated_url: str) -> None:
    store = SQLOperations(migrated_url)
    await store.create(new(created=since_now(AHEAD)))
    assert len(await store.take_due(100, lost_after_s=60)) == 2
    await taken(store)
    await store.close()


BACK = timedelta(days=-2)


@pytest.mark.parametrize("off", [BACK, -BACK], ids=["back", "forward"])
async def test_on_sqlite_changing_the_clock_does_not_affect_a_running_process(sqlite_url: str, off: timedelta) -> None:
    clock = SetClock()
    store = SQLOperations(sqlite_url, host_clock=clock.host_clock)
    await store.create(new(created=since_now(timedelta())))
    assert len(await store.take_due(100, lost_after_s=60)) == 2
    work = await taken(store)
    clock.off = off
    assert await store.take_due(100, lost_after_s=60) == []
    assert await store.claim(work.ref, "other", LEASE_S) is None
    shown = await store.get("p", "op-1")
    assert shown is not None
    assert 0 <= shown.progress.seconds < LEASE_S
    clock.slept_s = LEASE_S + 61
    assert len(await store.take_due(100, lost_after_s=60)) == 2
    await taken(store)
    await store.close()


async def test_on_sqlite_a_process_started_after_the_clock_was_set_back_continues(sqlite_url: str) -> None:
    before = SQLOperations(sqlite_url)
    await before.create(new(created=since_now(timedelta()), has_final_chunk=True))
    assert len(await before.take_due(100, lost_after_s=60)) == 2
    left = await taken(before)
    await before.requeue(await taken(before, 1), None, delay_s=30, outcome=ChunkOutcome(), counts=False)
    await before.close()
    clock = SetClock(BACK)
    after = SQLOperations(sqlite_url, host_clock=clock.host_clock)
    assert await after.take_due(100, lost_after_s=60) != []
    clock.slept_s = LEASE_S + 1
    for chunk in range(3):
        await after.take_due(100, lost_after_s=60)
        assert await after.complete(await taken(after, chunk), ChunkOutcome())
    assert not await after.complete(left, ChunkOutcome())
    done = await after.get("p", "op-1")
    assert done is not None
    assert done.state == "done"
    await after.close()
