"""Room in the queue: requests are admitted or refused as a whole, limited per run, and given a retry time."""

import pytest

from judge_server.errors import Overloaded
from judge_server.scheduling.queueing import QueueLimits


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def room(calls: int = 10, run_calls: int | None = None, clock: Clock | None = None) -> QueueLimits:
    """A queue with room for this many calls."""
    return QueueLimits(calls, run_calls, clock or Clock())


def test_a_full_queue_refuses_a_request_as_a_whole_and_says_when_to_retry() -> None:
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


def test_an_idle_queue_admits_a_request_of_any_size_and_zero_calls_are_always_admitted() -> None:
    queue = room()
    queue.acquire("a", 1000)
    with pytest.raises(Overloaded):
        queue.acquire("a", 1)
    queue.acquire("a", 0)
    queue.release("a", 1000)
    assert not queue.held_by_run


def test_a_run_below_its_equal_share_is_admitted_although_another_filled_the_queue() -> None:
    queue = room(100)
    queue.acquire("flood", 100)
    with pytest.raises(Overloaded):
        queue.acquire("flood", 1)
    queue.acquire("light", 50)
    with pytest.raises(Overloaded):
        queue.acquire("light", 1)


def test_the_queue_holds_at_most_twice_its_size_for_any_number_of_runs() -> None:
    queue = room(100)
    queue.acquire("flood", 100)
    for number in range(1000):
        try:
            queue.acquire(f"run {number}", 7)
        except Overloaded:
            continue
    assert 150 < queue.held <= 200


def test_a_run_has_a_separate_limit_if_one_is_set() -> None:
    queue = room(100, run_calls=10)
    queue.acquire("a", 30)
    with pytest.raises(Overloaded, match="of this run"):
        queue.acquire("a", 1)
    queue.acquire("b", 10)
    with pytest.raises(Overloaded, match="of this run"):
        queue.acquire("b", 1)


@pytest.mark.parametrize(("per_second", "expected"), [(10, 5), (100, 1), (0.5, 60)])
def test_the_retry_time_follows_from_the_recent_rate_of_the_queue(per_second: float, expected: int) -> None:
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


def test_without_a_known_rate_the_retry_time_is_a_default() -> None:
    queue = room()
    queue.acquire("a", 10)
    with pytest.raises(Overloaded) as refused:
        queue.acquire("a", 10)
    assert refused.value.retry_after_s == 5
