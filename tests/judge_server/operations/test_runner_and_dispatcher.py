"""The runner and the dispatcher with a store or queue that is unreachable or revokes chunks."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from judge_server.operations.runner import STORE_RETRY_DELAY_S, ChunkRunner, work_on
from judge_server.operations.service import LOST_AFTER_S, MAX_QUEUED_CHUNKS, REENQUEUE_AFTER_S, Dispatcher
from rubric_store import SQLOperations
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk, NewChunk, NewOperation
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.operations.harness import PROJECT, CountingHandler, request
from tests.judge_server.operations.queues import ScriptedQueue

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REF = ChunkRef("p", "op-1", 0)
WORK = LeasedChunk(REF, "score", {}, {"n": 1}, 1, 1, "w")


class Store:
    """A store with one chunk; each method returns or raises the next item of its deque, or else succeeds."""

    def __init__(self, **answers: Sequence[Any]) -> None:
        self.answers = {name: deque(some) for name, some in answers.items()}
        self.calls: list[str] = []
        self.lost: list[float] = []
        self.limits: list[int] = []

    def _next(self, name: str, otherwise: Any) -> Any:
        self.calls.append(name)
        waiting = self.answers.get(name)
        answer = waiting.popleft() if waiting else otherwise
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def claim(self, *_: Any) -> LeasedChunk | None:
        return self._next("claim", WORK)  # type: ignore[no-any-return]

    async def renew(self, *_: Any) -> bool:
        return bool(self._next("renew", True))

    async def complete(self, *_: Any) -> bool:
        return bool(self._next("complete", True))

    async def requeue(self, *_: Any, **__: Any) -> None:
        self._next("requeue", None)

    async def take_due(self, limit: int, *, lost_after_s: float) -> Sequence[ChunkRef]:
        self.lost.append(lost_after_s)
        self.limits.append(limit)
        return self._next("take_due", [])  # type: ignore[no-any-return]

    async def purge(self, _: datetime) -> int:
        return int(self._next("purge", 0))


class Kind:
    """Waits until released."""

    has_final_chunk = False

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.begun = asyncio.Event()
        self.stopped = False

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        return ChunkOutcome()


def runner(store: Store, kind: Kind, lease_s: float = 1000.0) -> ChunkRunner:
    """A runner whose pauses are short except those between renewals."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0 if seconds < 100 else 1000)

    return ChunkRunner(store, {"score": kind}, lease_s=lease_s, sleep=sleep)  # type: ignore[arg-type,dict-item]


async def test_a_finished_chunk_is_stored_once_the_store_is_back() -> None:
    store, kind = Store(complete=[ConnectionError("away"), ConnectionError("away")]), Kind()
    kind.release.set()
    await runner(store, kind).run(REF)
    assert store.calls == ["claim", "complete", "complete", "complete"]


async def test_a_chunk_that_cannot_be_claimed_is_left_to_be_enqueued_again() -> None:
    store, kind = Store(claim=[ConnectionError("away")]), Kind()
    await runner(store, kind).run(REF)
    assert (store.calls, kind.begun.is_set()) == (["claim"], False)


async def test_work_continues_while_leases_cannot_be_renewed_and_stops_when_the_chunk_is_lost() -> None:
    store, kind = Store(renew=[ConnectionError("away"), True, ConnectionError("away"), False]), Kind()
    await runner(store, kind, lease_s=3.0).run(REF)
    assert store.calls == ["claim", "renew", "renew", "renew", "renew"]
    assert kind.stopped


async def test_a_failed_renewal_is_retried_long_before_the_next_is_due() -> None:
    store, kind = Store(renew=[ConnectionError("away"), True, False]), Kind()
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    await ChunkRunner(store, {"score": kind}, lease_s=60.0, sleep=sleep).run(REF)  # type: ignore[arg-type,dict-item]
    assert slept == [20.0, STORE_RETRY_DELAY_S, 20.0]


async def test_a_runner_that_is_stopped_gives_its_chunk_back() -> None:
    store, kind = Store(), Kind()
    running = asyncio.create_task(runner(store, kind).run(REF))
    await kind.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (store.calls, kind.stopped) == (["claim", "requeue"], True)


async def test_a_kind_unknown_to_an_older_worker_is_left_to_a_newer_one() -> None:
    said: list[tuple[str | None, float, bool]] = []

    class RequeueingStore(Store):
        async def requeue(  # type: ignore[override]
            self, work: LeasedChunk, problem: str | None, *, delay_s: float, counts: bool, **_: object
        ) -> None:
            said.append((problem, delay_s, counts))

    await ChunkRunner(RequeueingStore(), {}, unavailable_retry_delay_s=7.0).run(REF)  # type: ignore[arg-type]
    assert said == [("this worker cannot run score; the chunk waits for one of a newer version", 7.0, False)]


def dispatcher(store: Store, queue: ScriptedQueue) -> Dispatcher:
    return Dispatcher(store, queue, now=lambda: NOW)  # type: ignore[arg-type]


async def test_a_queue_is_filled_up_to_its_window_once_half_of_it_is_empty() -> None:
    store, queue = Store(take_due=[[REF]]), ScriptedQueue(MAX_QUEUED_CHUNKS // 2, MAX_QUEUED_CHUNKS // 2 + 1)
    feeding = dispatcher(store, queue)
    assert await feeding.dispatch() == 1
    assert await feeding.dispatch() == 0
    assert (store.limits, queue.got) == ([MAX_QUEUED_CHUNKS // 2], [REF])


async def test_chunks_are_enqueued_again_soon_where_the_queue_is_empty_and_much_later_otherwise() -> None:
    store, queue = Store(), ScriptedQueue(1, 0)
    feeding = dispatcher(store, queue)
    await feeding.dispatch()
    await feeding.dispatch()
    assert store.lost == [LOST_AFTER_S, REENQUEUE_AFTER_S]
    assert LOST_AFTER_S > 10 * REENQUEUE_AFTER_S


async def test_chunks_that_a_broker_did_not_take_are_enqueued_again_though_its_queue_is_never_empty(
    tmp_path: Path, new_sqlite: NewSQLite
) -> None:
    class FailingQueue(ScriptedQueue):
        fails = True

        async def put(self, refs: Sequence[ChunkRef]) -> None:
            if self.fails:
                raise ConnectionError("another broker takes over")
            await super().put(refs)

    now = NOW
    store, queue = SQLOperations(new_sqlite(tmp_path / "operations.db"), clock=lambda: now), FailingQueue(*[7] * 4)
    await store.create(NewOperation("op-1", "p", "score", {}, [NewChunk(1, {}), NewChunk(1, {})], NOW))
    feeding = Dispatcher(store, queue)
    assert await feeding.dispatch() == 0
    queue.fails = False
    assert await feeding.dispatch() == 0
    now += timedelta(seconds=LOST_AFTER_S + 1)
    assert await feeding.dispatch() == 2
    assert await feeding.dispatch() == 0
    assert queue.got == [REF, ChunkRef("p", "op-1", 1)]
    await store.close()


async def test_no_error_ends_the_dispatcher() -> None:
    store = Store(take_due=[RuntimeError("a mistake"), ConnectionError("away"), [REF]], purge=[ConnectionError("away")])
    queue = ScriptedQueue(ConnectionError("no broker"), 0, 0, 0, asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await dispatcher(store, queue).run(0.0)
    assert queue.got == [REF]


async def test_a_woken_dispatcher_polls_at_once() -> None:
    looked, announced = asyncio.Event(), asyncio.Event()

    class WatchedQueue(ScriptedQueue):
        async def waiting(self) -> int:
            looked.set()
            return await super().waiting()

        async def put(self, refs: Sequence[ChunkRef]) -> None:
            await super().put(refs)
            if refs:
                announced.set()

    store, queue = Store(take_due=[[], [REF]]), WatchedQueue(0, 0)
    feeding = dispatcher(store, queue)
    running = asyncio.create_task(feeding.run(3600.0))
    await looked.wait()
    assert queue.got == []
    feeding.wake()
    async with asyncio.timeout(30):
        await announced.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert queue.got == [REF]


async def test_a_process_begins_the_final_chunk_without_waiting_for_the_next_dispatch(
    tmp_path: Path, new_sqlite: NewSQLite
) -> None:
    store, kind = SQLOperations(new_sqlite(tmp_path / "operations.db")), CountingHandler(has_final_chunk=True)
    async with work_on(store, {"score": kind}, interval_s=3600.0) as operations:
        kind.release(4)
        id_ = (await operations.submit(PROJECT, "score", request(3))).id
        async with asyncio.timeout(60), aclosing(operations.events(PROJECT, id_)) as events:
            states = [operation.state async for operation in events]
    await store.close()
    assert states[-1] == "done"
    assert kind.done == {0: 1, 1: 1, 2: 1, 3: 1}
