"""How the processor time of a function grows with its input: for tests that nothing takes quadratic time."""

import time
from collections.abc import Callable

_REPEATS = 3
_SLACK_S = 0.05
"""Processor seconds that a small input and the machine's other work may hide."""


def assert_linear(work: Callable[[int], Callable[[], object]], size: int) -> None:
    """Check that four times the input takes at most ten times the processor time.

    Args:
        work: prepares an input of a size, and returns the function to measure.
        size: the smallest size; a quadratic function should take tenths of a second at four times it.
    """
    small, middle, large = [_seconds(work(factor * size)) for factor in (1, 2, 4)]
    assert middle < 5 * small + _SLACK_S, f"{small:.3f} s for {size:,}, {middle:.3f} s for twice as much"
    assert large < 10 * small + _SLACK_S, f"{small:.3f} s for {size:,}, {large:.3f} s for four times as much"


def _seconds(call: Callable[[], object]) -> float:
    """The least processor seconds of this process for a call."""
    took = []
    for _ in range(_REPEATS):
        began = time.process_time()
        call()
        took.append(time.process_time() - began)
    return min(took)
