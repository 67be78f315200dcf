"""When a circuit breaker lets a call through."""

from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.scheduling.pools import CircuitBreaker
from tests.hypothesis_examples import examples


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> CircuitBreaker:
    """A breaker that has just opened, for two seconds."""
    breaker = CircuitBreaker(clock, failures=3, pause_s=2.0, longest_pause_s=7.0)
    for _ in range(3):
        assert breaker.try_acquire()
        breaker.failed()
    return breaker


def test_consecutive_failures_open_it_and_a_success_between_them_does_not() -> None:
    breaker = CircuitBreaker(Clock(), failures=3)
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.state == "closed"
    for _ in range(3):
        breaker.failed()
    assert breaker.state == "open"
    assert not breaker.try_acquire()


def test_after_its_pause_one_trial_is_allowed() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 1.9
    assert not breaker.try_acquire()
    clock.now += 0.1
    assert breaker.state == "half_open"
    assert breaker.would_allow
    assert breaker.try_acquire()
    assert not breaker.would_allow
    assert not breaker.try_acquire()


def test_a_successful_trial_closes_it_and_resets_its_history() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 2.0
    assert breaker.try_acquire()
    breaker.succeeded()
    breaker.failed()
    breaker.failed()
    assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "open"
    clock.now += 2.0
    assert breaker.state == "half_open"


def test_pauses_double_with_every_failed_trial_up_to_the_longest() -> None:
    clock = Clock()
    breaker = opened(clock)
    pauses = []
    for _ in range(4):
        began = clock.now
        while not breaker.try_acquire():
            clock.now += 0.5
        pauses.append(clock.now - began)
        breaker.failed()
    assert pauses == [2.0, 4.0, 7.0, 7.0]


def test_a_trial_without_a_result_is_followed_by_another() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 2.0
    assert breaker.try_acquire()
    clock.now += 1.9
    assert not breaker.try_acquire()
    clock.now += 0.1
    assert breaker.try_acquire()


def test_failures_of_calls_already_under_way_do_not_lengthen_the_pause() -> None:
    clock = Clock()
    breaker = opened(clock)
    for _ in range(10):
        breaker.failed()
    clock.now += 2.0
    assert breaker.try_acquire()


@given(st.lists(st.sampled_from(["try_acquire", "succeeded", "failed", "wait"]), max_size=60))
@settings(max_examples=examples(100))
def test_it_always_allows_a_call_again_within_the_longest_pause(steps: list[str]) -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, failures=2, pause_s=1.0, longest_pause_s=8.0)
    for step in steps:
        if step == "wait":
            clock.now += 1.0
        else:
            would_allow = breaker.would_allow
            said = getattr(breaker, step)()
            assert step != "try_acquire" or said == would_allow
    clock.now += 8.0
    assert breaker.try_acquire()
