"""What every database that keeps operations does: a chunk has one worker at a time, and is finished once."""

import asyncio

from rubric_store import SQLOperations
from tests.rubric_store.operation_rows import LEASE_S, NOW, claimed, later, new, outcome, state_of
from trainer_client.wire.operation_rows import MOST_ATTEMPTS, ChunkOutcome, ChunkRef


async def test_a_chunk_has_one_worker_until_its_lease_runs_out(kept: SQLOperations) -> None:
    await kept.create(new())
    work = await claimed(kept, 0, "first")
    assert await kept.claim(work.ref, "second", later(59), LEASE_S) is None
    assert await kept.renew(work, later(50), LEASE_S)
    assert await kept.claim(work.ref, "second", later(100), LEASE_S) is None
    taken = await claimed(kept, 0, "second", at=111)
    assert taken.attempt == 2
    assert not await kept.renew(work, later(112), LEASE_S)


async def test_of_workers_at_the_same_time_one_gets_the_chunk(kept: SQLOperations) -> None:
    await kept.create(new())
    ref = ChunkRef("p", "op-1", 0)
    got = await asyncio.gather(*(kept.claim(ref, f"w{n}", NOW, LEASE_S) for n in range(8)))
    assert sum(work is not None for work in got) == 1


async def test_a_chunk_done_twice_has_its_results_and_its_cost_once(kept: SQLOperations) -> None:
    await kept.create(new())
    slow = await claimed(kept, 0, "slow")
    quick = await claimed(kept, 0, "quick", at=61)
    assert await kept.complete(quick, outcome("a", "b", "c"), later(62))
    assert not await kept.complete(slow, outcome("x", "y", "z"), later(63))
    await kept.give_up(slow, "too late", later(64))
    await kept.give_back(slow, "too late", later(64), after_s=0, outcome=outcome(), counts=True)
    operation = await state_of(kept)
    assert (operation.progress.done, operation.progress.made, operation.usage.judge_calls) == (3, 3, 5)
    page = await kept.results("p", "op-1", after=0, limit=10)
    assert page is not None
    assert page.results == ({"result": "a"}, {"result": "b"}, {"result": "c"})
    assert await kept.claim(quick.ref, "third", later(999), LEASE_S) is None


async def test_a_chunk_given_back_waits_and_its_cost_is_counted(kept: SQLOperations) -> None:
    await kept.create(new())
    work = await claimed(kept, 0)
    await kept.give_back(work, "the judge is busy", NOW, after_s=30, outcome=outcome(calls=7), counts=True)
    operation = await state_of(kept)
    assert (operation.problem, operation.usage.judge_calls, operation.progress.done) == ("the judge is busy", 7, 0)
    assert await kept.claim(work.ref, "w", later(29), LEASE_S) is None
    assert (await claimed(kept, 0, at=30)).attempt == 2


async def test_attempts_that_do_not_count_may_be_many(kept: SQLOperations) -> None:
    await kept.create(new())
    for number in range(2 * MOST_ATTEMPTS):
        work = await claimed(kept, 0, at=number)
        assert work.attempt == 1
        await kept.give_back(work, "away", later(number), after_s=0, outcome=ChunkOutcome(), counts=False)


async def test_a_chunk_whose_workers_keep_dying_is_given_up(kept: SQLOperations) -> None:
    await kept.create(new())
    for number in range(MOST_ATTEMPTS):
        assert (await claimed(kept, 0, at=100 * number)).last_attempt is (number == MOST_ATTEMPTS - 1)
    assert await kept.claim(ChunkRef("p", "op-1", 0), "w", later(10_000), LEASE_S) is None
    assert (await state_of(kept)).progress.failed == 3
    await kept.complete(await claimed(kept, 1, at=10_001), outcome("b"), later(10_002))
    failed = await state_of(kept)
    assert failed.state == "failed"
    assert failed.problem is not None
    assert f"died {MOST_ATTEMPTS} times" in failed.problem


async def test_chunks_are_announced_once_and_operations_take_turns(kept: SQLOperations) -> None:
    await kept.create(new("op-1", chunks=3))
    await kept.create(new("op-2", chunks=2, created=1))
    at = later(2)
    first = await kept.due(at, 3, announced_before=None)
    assert [(ref.operation_id, ref.chunk) for ref in first] == [("op-1", 0), ("op-2", 0), ("op-1", 1)]
    rest = await kept.due(at, 100, announced_before=None)
    assert [(ref.operation_id, ref.chunk) for ref in rest] == [("op-2", 1), ("op-1", 2)]
    assert await kept.due(later(3), 100, announced_before=None) == []
    assert len(await kept.due(later(9), 100, announced_before=later(4))) == 5


async def test_chunks_of_a_dead_worker_are_announced_again(kept: SQLOperations) -> None:
    await kept.create(new())
    await kept.due(NOW, 100, announced_before=None)
    await claimed(kept, 0)
    assert await kept.due(later(59), 100, announced_before=None) == []
    assert await kept.due(later(61), 100, announced_before=None) == [ChunkRef("p", "op-1", 0)]
    assert (await claimed(kept, 0, at=61)).attempt == 2


async def test_each_chunk_is_announced_by_one_of_those_who_ask_at_once(kept: SQLOperations) -> None:
    await kept.create(new(chunks=40))
    announced = await asyncio.gather(*(kept.due(NOW, 10, announced_before=None) for _ in range(8)))
    refs = [ref for some in announced for ref in some]
    assert len(refs) == len(set(refs))
    rest = await kept.due(NOW, 100, announced_before=None)
    assert {ref.chunk for ref in [*refs, *rest]} == set(range(40))
