"""Room in the queue: let in as a whole or refused, bounded by run too, and an honest time to come back."""

import pytest

from judge_server.errors import Overloaded
from judge_server.queueing import QueueLimits


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def room(calls: int = 10, run_calls: int | None = None, clock: Clock | None = None) -> QueueLimits:
    """Room for so many calls."""
    return QueueLimits(calls, run_calls, clock or Clock())


def test_a_full_queue_refuses_a_request_as_a_whole_and_says_when_to_come_back() -> None:
    queue = room()
    queue.acquire("a", 8)
    with pytest.raises(Overloaded, match="8 judge calls are waiting and 3 more") as refused:
        queue.acquire("a", 3)
    assert (refused.value.status, refused.value.retryable) == (429, True)
    assert refused.value.retry_after_s
    queue.acquire("a", 2)
    queue.release("a", 10)
    queue.acquire("a", 10)
    assert queue.held == 10


def test_an_idle_queue_takes_a_request_of_any_size_and_what_needs_no_room_is_always_let_in() -> None:
    queue = room()
    queue.acquire("a", 1000)
    with pytest.raises(Overloaded):
        queue.acquire("a", 1)
    queue.acquire("a", 0)
    queue.release("a", 1000)
    assert not queue.held_by_run


def test_a_run_that_holds_less_than_its_equal_share_is_let_in_although_another_filled_the_queue() -> None:
    queue = room(100)
    queue.acquire("flood", 100)
    with pytest.raises(Overloaded):
        queue.acquire("flood", 1)
    queue.acquire("light", 50)
    with pytest.raises(Overloaded):
        queue.acquire("light", 1)


def test_however_many_runs_there_are_the_queue_holds_twice_its_size_at_the_most() -> None:
    queue = room(100)
    queue.acquire("flood", 100)
    for number in range(1000):
        try:
            queue.acquire(f"run {number}", 7)
        except Overloaded:
            continue
    assert 150 < queue.held <= 200


def test_a_run_has_a_bound_of_its_own_where_one_is_set() -> None:
    queue = room(100, run_calls=10)
    queue.acquire("a", 30)
    with pytest.raises(Overloaded, match="of this run"):
        queue.acquire("a", 1)
    queue.acquire("b", 10)
    with pytest.raises(Overloaded, match="of this run"):
        queue.acquire("b", 1)


@pytest.mark.parametrize(("per_second", "expected"), [(10, 5), (100, 1), (0.5, 60)])
def test_the_time_to_come_back_is_what_the_queue_needs_at_its_rate_of_late(per_second: float, expected: int) -> None:
    clock = Clock()
    queue = room(200, clock=clock)
    queue.acquire("a", 200)
    for _ in range(60):
        clock.now += 1 / per_second
        queue.release("a", 1)
        queue.acquire("a", 1)
    with pytest.raises(Overloaded) as refused:
        queue.acquire("a", 50)
    assert refused.value.retry_after_s == pytest.approx(expected, abs=1)


def test_where_no_rate_is_known_the_time_is_a_guess() -> None:
    queue = room()
    queue.acquire("a", 10)
    with pytest.raises(Overloaded) as refused:
        queue.acquire("a", 10)
    assert refused.value.retry_after_s == 5
