"""A queue that is watched: a broker that is away is told from a worker that hears nothing."""

from contextlib import suppress

import pytest

from judge_server.operations.queues import RESPONDING_WINDOW_S, BrokerHealth
from tests.judge_server.operations.queues import ScriptedQueue
from trainer_client.wire.operations import ChunkRef

REF = ChunkRef("p", "op-1", 0)


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def look(watch: BrokerHealth, clock: Clock, interval_s: float = 2.0) -> None:
    """The feeder's next look."""
    clock.now += interval_s
    with suppress(ConnectionError):
        await watch.waiting()


def watching(clock: Clock, *waiting: int | Exception) -> BrokerHealth:
    """A watch of a worker with two slots, stalled after five seconds."""
    return BrokerHealth(ScriptedQueue(*waiting), 2, stalled_after_s=5.0, clock=clock)


async def test_it_is_the_queue_that_it_watches(clock: Clock) -> None:
    queue = ScriptedQueue(3, ConnectionError("away"))
    watch = BrokerHealth(queue, 2, clock=clock)
    await watch.put([REF])
    assert (queue.got, await watch.waiting()) == ([REF], 3)
    with pytest.raises(ConnectionError, match="away"):
        await watch.waiting()


async def test_a_broker_answers_from_its_first_answer_until_it_fails_or_is_not_heard_of(clock: Clock) -> None:
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


async def test_a_worker_that_is_handed_nothing_of_what_waits_is_deaf_after_some_time(clock: Clock) -> None:
    watch = watching(clock, 1, 1, 1, 1)
    for _ in range(3):
        await look(watch, clock)
        assert not watch.stalled
    await look(watch, clock)
    assert watch.stalled


async def test_one_that_is_handed_something_hears_again(clock: Clock) -> None:
    watch = watching(clock, 1, 1, 1, 1)
    for _ in range(4):
        await look(watch, clock)
    with watch.processing():
        assert not watch.stalled


async def test_an_empty_queue_or_a_broker_that_is_away_makes_nobody_deaf(clock: Clock) -> None:
    for between in (0, ConnectionError("away")):
        watch = watching(clock, 1, 1, between, 1, 1)
        for _ in range(5):
            await look(watch, clock)
            assert not watch.stalled


async def test_a_worker_without_room_is_not_deaf_but_with_a_slot_left_it_is(clock: Clock) -> None:
    watch = watching(clock, 1, 1, 1, 1, 1, 1, 1, 1)
    with watch.processing():
        with watch.processing():
            for _ in range(4):
                await look(watch, clock)
                assert not watch.stalled
        for _ in range(4):
            await look(watch, clock)
        assert watch.stalled


async def test_a_worker_that_stops_takes_nothing_and_is_not_deaf(clock: Clock) -> None:
    watch = watching(clock, 1, 1, 1, 1, 1)
    await look(watch, clock)
    watch.drain()
    for _ in range(4):
        await look(watch, clock)
    assert not watch.stalled
