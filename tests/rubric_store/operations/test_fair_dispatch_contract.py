"""The contract of stored operations: projects share the workers, however much each has waiting."""

from collections import Counter

from rubric_store import TenantStore
from rubric_store.operations.rows import ChunkOutcome, ChunkRef
from tests.rubric_store.operation_rows import LEASE_S, FixedClockOperations, later, new
from trainer_client.wire.tenants import Limits


async def announced(kept: FixedClockOperations, limit: int) -> list[str]:
    """The projects of the chunks that are enqueued now."""
    return [ref.project_id for ref in await kept.take_due(limit, lost_after_s=60)]


async def many(kept: FixedClockOperations, number: int = 9) -> None:
    """Create operations of one chunk each, all of the project `many`."""
    for one in range(number):
        await kept.create(new(f"op-{one}", chunks=1, project_id="many", created=one))


async def test_many_small_operations_get_no_more_than_one_large_one(kept: FixedClockOperations) -> None:
    await many(kept)
    await kept.create(new("op-1", chunks=9, project_id="one", created=100))
    assert await announced(kept, 10) == ["many", "one"] * 5
    assert await announced(kept, 100) == ["many", "one"] * 4


async def test_the_project_with_fewer_chunks_enqueued_or_running_comes_first(kept: FixedClockOperations) -> None:
    await many(kept)
    assert await announced(kept, 4) == ["many"] * 4
    for one in range(2):
        work = await kept.claim(ChunkRef("many", f"op-{one}", 0), "w", LEASE_S)
        assert work is not None
    assert await kept.complete(work, ChunkOutcome())
    await kept.create(new("op-1", chunks=9, project_id="one", created=100))
    assert await announced(kept, 5) == ["one"] * 3 + ["many", "one"]


async def test_a_projects_share_is_proportional_to_its_weight(kept: FixedClockOperations, migrated_url: str) -> None:
    tenants = TenantStore(migrated_url)
    await tenants.create_project("many", Limits(weight=2.5))
    await tenants.close()
    await many(kept, 20)
    await kept.create(new("op-1", chunks=20, project_id="one"))
    for _ in range(4):
        assert Counter(await announced(kept, 7)) == {"many": 5, "one": 2}


async def test_delayed_and_cancelled_chunks_take_no_turn(kept: FixedClockOperations) -> None:
    await many(kept)
    for one, pause_s in ((0, 30.0), (1, 30.0)):
        work = await kept.claim(ChunkRef("many", f"op-{one}", 0), "w", LEASE_S)
        assert work is not None
        await kept.requeue(work, "away", delay_s=pause_s, outcome=ChunkOutcome(), counts=False)
    await announced(kept, 1)
    await kept.cancel("many", "op-2", later(0))
    await kept.create(new("op-1", chunks=9, project_id="one", created=100))
    assert await announced(kept, 4) == ["many", "one"] * 2
    kept.at = later(31)
    assert [ref.operation_id for ref in await kept.take_due(1, lost_after_s=60)] == ["op-0"]
