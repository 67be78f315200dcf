"""Broker health: an unreachable broker is distinguished from a stalled worker."""

from contextlib import suppress

import pytest

from judge_server.operations.queues import RESPONDING_WINDOW_S, BrokerHealth
from rubric_store.operations.rows import ChunkRef
from tests.judge_server.operations.queues import ScriptedQueue

REF = ChunkRef("p", "op-1", 0)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def look(watch: BrokerHealth, clock: Clock, interval_s: float = 2.0) -> None:
    """Poll the queue once, after this interval."""
    clock.now += interval_s
    with suppress(ConnectionError):
        await watch.waiting()


def watching(clock: Clock, *waiting: int | Exception) -> BrokerHealth:
    """The broker health of a worker with two slots, stalled after five seconds."""
    return BrokerHealth(ScriptedQueue(*waiting), 2, stalled_after_s=5.0, clock=clock)


async def test_it_forwards_to_the_queue_it_watches(clock: Clock) -> None:
    queue = ScriptedQueue(3, ConnectionError("away"))
    watch = BrokerHealth(queue, 2, clock=clock)
    await watch.put([REF])
    assert (queue.got, await watch.waiting()) == ([REF], 3)
    with pytest.raises(ConnectionError, match="away"):
        await watch.waiting()


async def test_a_broker_responds_from_its_first_answer_until_it_fails_or_is_silent_for_too_long(clock: Clock) -> None:
    watch = watching(clock, 0, ConnectionError("away"), 0)
    assert not watch.responding
    await look(watch, clock)
    assert watch.responding
    await look(watch, clock)
    assert not watch.responding
    await look(watch, clock)
    clock.now += RESPONDING_WINDOW_S
    assert watch.responding
    clock.now += 0.1
    assert not watch.responding


async def test_a_worker_that_receives_no_waiting_chunk_is_stalled_after_some_time(clock: Clock) -> None:
    watch = watching(clock, 1, 1, 1, 1)
    for _ in range(3):
        await look(watch, clock)
        assert not watch.stalled
    await look(watch, clock)
    assert watch.stalled


async def test_a_worker_that_receives_a_chunk_is_no_longer_stalled(clock: Clock) -> None:
    watch = watching(clock, 1, 1, 1, 1)
    for _ in range(4):
        await look(watch, clock)
    with watch.processing():
        assert not watch.stalled


async def test_an_empty_queue_or_an_unreachable_broker_does_not_make_a_worker_stalled(clock: Clock) -> None:
    for between in (0, ConnectionError("away")):
        watch = watching(clock, 1, 1, between, 1, 1)
        for _ in range(5):
            await look(watch, clock)
            assert not watch.stalled


async def test_a_worker_without_a_free_slot_is_not_stalled_but_one_with_a_free_slot_is(clock: Clock) -> None:
    watch = watching(clock, 1, 1, 1, 1, 1, 1, 1, 1)
    with watch.processing():
        with watch.processing():
            for _ in range(4):
                await look(watch, clock)
                assert not watch.stalled
        for _ in range(4):
            await look(watch, clock)
        assert watch.stalled


async def test_a_draining_worker_is_not_stalled(clock: Clock) -> None:
    watch = watching(clock, 1, 1, 1, 1, 1)
    await look(watch, clock)
    watch.drain()
    for _ in range(4):
        await look(watch, clock)
    assert not watch.stalled
