"""The contract of stored operations: a chunk has one worker at a time, and is finished once."""

import asyncio

from sqlalchemy import select

from rubric_store.database import blocking_connection
from rubric_store.operations.database import chunks
from rubric_store.operations.rows import MAX_ATTEMPTS, ChunkOutcome, ChunkRef
from tests.rubric_store.operation_rows import LEASE_S, FixedClockOperations, claimed, later, new, outcome, state_of


async def test_a_chunk_has_one_worker_until_its_lease_expires(kept: FixedClockOperations) -> None:
    await kept.create(new())
    work = await claimed(kept, 0, "first")
    kept.at = later(59)
    assert await kept.claim(work.ref, "second", LEASE_S) is None
    assert await kept.renew(work, LEASE_S)
    kept.at = later(118)
    assert await kept.claim(work.ref, "second", LEASE_S) is None
    taken = await claimed(kept, 0, "second", at=120)
    assert taken.attempt == 2
    assert not await kept.renew(work, LEASE_S)


async def test_only_one_of_concurrent_workers_gets_the_chunk(kept: FixedClockOperations) -> None:
    await kept.create(new())
    ref = ChunkRef("p", "op-1", 0)
    got = await asyncio.gather(*(kept.claim(ref, f"w{n}", LEASE_S) for n in range(8)))
    assert sum(work is not None for work in got) == 1


async def test_a_chunk_done_twice_stores_its_results_and_its_cost_once(kept: FixedClockOperations) -> None:
    await kept.create(new())
    slow = await claimed(kept, 0, "slow")
    quick = await claimed(kept, 0, "quick", at=61)
    assert await kept.complete(quick, outcome("a", "b", "c"))
    assert not await kept.complete(slow, outcome("x", "y", "z"))
    await kept.fail(slow, "too late")
    await kept.requeue(slow, "too late", delay_s=0, outcome=outcome(), counts=True)
    operation = await state_of(kept)
    assert (operation.progress.done, operation.progress.made, operation.usage.judge_calls) == (3, 3, 5)
    page = await kept.results("p", "op-1", after=0, limit=10)
    assert page is not None
    assert page.results == ({"result": "a"}, {"result": "b"}, {"result": "c"})
    kept.at = later(999)
    assert await kept.claim(quick.ref, "third", LEASE_S) is None


async def test_a_requeued_chunk_waits_and_its_cost_is_counted(kept: FixedClockOperations) -> None:
    await kept.create(new())
    work = await claimed(kept, 0)
    await kept.requeue(work, "the judge is busy", delay_s=30, outcome=outcome(calls=7), counts=True)
    operation = await state_of(kept)
    assert (operation.problem, operation.usage.judge_calls, operation.progress.done) == ("the judge is busy", 7, 0)
    kept.at = later(29)
    assert await kept.claim(work.ref, "w", LEASE_S) is None
    assert (await claimed(kept, 0, at=30)).attempt == 2


async def test_uncounted_attempts_are_not_limited(kept: FixedClockOperations) -> None:
    await kept.create(new())
    for number in range(2 * MAX_ATTEMPTS):
        work = await claimed(kept, 0, at=number)
        assert work.attempt == 1
        await kept.requeue(work, "away", delay_s=0, outcome=ChunkOutcome(), counts=False)


async def test_a_chunk_whose_workers_keep_dying_fails(kept: FixedClockOperations) -> None:
    await kept.create(new())
    await kept.requeue(await claimed(kept, 0), "away", delay_s=0, outcome=ChunkOutcome(), counts=False)
    for number in range(MAX_ATTEMPTS):
        assert (await claimed(kept, 0, at=100 * number)).last_attempt is (number == MAX_ATTEMPTS - 1)
    kept.at = later(10_000)
    assert await kept.claim(ChunkRef("p", "op-1", 0), "w", LEASE_S) is None
    assert (await state_of(kept)).progress.failed == 3
    await kept.complete(await claimed(kept, 1), outcome("b"))
    failed = await state_of(kept)
    assert failed.state == "failed"
    assert failed.problem is not None
    assert f"died {MAX_ATTEMPTS} times" in failed.problem


async def test_the_inputs_of_a_chunk_are_kept_only_until_it_is_done(
    kept: FixedClockOperations, migrated_url: str
) -> None:
    def with_inputs() -> list[int]:
        with blocking_connection(migrated_url, writes=False) as connection:
            wanted = select(chunks.c.chunk).where(chunks.c.body.is_not(None)).order_by(chunks.c.chunk)
            return list(connection.execute(wanted).scalars())

    await kept.create(new(chunks=3, has_final_chunk=True))
    await kept.fail(await claimed(kept, 0), "no")
    await kept.requeue(await claimed(kept, 1), "busy", delay_s=0, outcome=outcome(), counts=True)
    await kept.complete(await claimed(kept, 2), outcome("c"))
    assert with_inputs() == [0, 1]
    await kept.cancel("p", "op-1", later(1))
    await kept.retry("p", "op-1")
    for chunk in (0, 1):
        work = await claimed(kept, chunk)
        assert work.body == {"numbers": [chunk], "text": "\0 and \U0001f600"}
        await kept.complete(work, outcome("d"))
    assert with_inputs() == []
    assert (await claimed(kept, 3)).body is None


async def test_chunks_are_enqueued_once_and_operations_take_turns(kept: FixedClockOperations) -> None:
    await kept.create(new("op-1", chunks=3))
    await kept.create(new("op-2", chunks=2, created=1))
    first = await kept.take_due(3, lost_after_s=60)
    assert [(ref.operation_id, ref.chunk) for ref in first] == [("op-1", 0), ("op-2", 0), ("op-1", 1)]
    rest = await kept.take_due(100, lost_after_s=60)
    assert [(ref.operation_id, ref.chunk) for ref in rest] == [("op-2", 1), ("op-1", 2)]
    assert await kept.take_due(100, lost_after_s=60) == []


async def test_a_chunk_enqueued_long_ago_and_never_claimed_is_enqueued_again(
    kept: FixedClockOperations,
) -> None:
    await kept.create(new(chunks=3))
    await kept.take_due(100, lost_after_s=60)
    kept.at = later(50)
    await kept.complete(await claimed(kept, 0), outcome("a"))
    await claimed(kept, 1)
    kept.at = later(59)
    assert await kept.take_due(100, lost_after_s=60) == []
    kept.at = later(61)
    assert await kept.take_due(100, lost_after_s=60) == [ChunkRef("p", "op-1", 2)]
    assert await kept.take_due(100, lost_after_s=60) == []
    work = await claimed(kept, 2)
    assert await kept.claim(work.ref, "of the other announcement", LEASE_S) is None


async def test_chunks_of_a_dead_worker_are_enqueued_again(kept: FixedClockOperations) -> None:
    await kept.create(new())
    await kept.take_due(100, lost_after_s=1000)
    await claimed(kept, 0)
    kept.at = later(59)
    assert await kept.take_due(100, lost_after_s=1000) == []
    kept.at = later(61)
    assert await kept.take_due(100, lost_after_s=1000) == [ChunkRef("p", "op-1", 0)]
    assert (await claimed(kept, 0)).attempt == 2


async def test_each_chunk_is_enqueued_by_only_one_of_several_dispatchers(kept: FixedClockOperations) -> None:
    await kept.create(new(chunks=40))
    announced = await asyncio.gather(*(kept.take_due(10, lost_after_s=60) for _ in range(8)))
    refs = [ref for some in announced for ref in some]
    assert len(refs) == len(set(refs))
    rest = await kept.take_due(100, lost_after_s=60)
    assert {ref.chunk for ref in [*refs, *rest]} == set(range(40))
