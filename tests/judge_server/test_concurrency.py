"""The limit that adapts to an engine's throughput, with engines in virtual time."""

import pytest

from judge_server.scheduling.admission import AdaptiveLimit


class Engine:
    """Serves `knee` batches at once in `seconds` each; further batches wait inside it."""

    def __init__(self, knee: int, seconds: float = 0.1) -> None:
        self.knee, self.seconds, self.now = knee, seconds, 0.0

    def drive(self, limit: AdaptiveLimit, batches: int, *, full: bool = True) -> list[int]:
        """Serve this many batches of 1000 tokens, and return the limit after each."""
        seen = []
        for _ in range(batches):
            self.now += self.seconds / min(self.knee, limit.limit)
            limit.record_batch(1000.0, full=full)
            seen.append(limit.limit)
        return seen


@pytest.mark.parametrize("knee", [1, 4, 16, 40])
def test_the_limit_settles_at_what_the_engine_can_use(knee: int) -> None:
    engine = Engine(knee)
    limit = AdaptiveLimit(64, lambda: engine.now)
    engine.drive(limit, 6000)
    late = engine.drive(limit, 6000)
    assert sum(late) / len(late) == pytest.approx(knee, rel=0.35, abs=1)
    began = engine.now
    engine.drive(limit, 3000)
    best = 3000 * engine.seconds / knee
    assert engine.now - began < 1.15 * best


def test_the_limit_rises_when_the_engine_becomes_faster() -> None:
    engine = Engine(4)
    limit = AdaptiveLimit(64, lambda: engine.now)
    engine.drive(limit, 3000)
    assert limit.limit < 10
    engine.knee = 32
    late = engine.drive(limit, 20_000)[-4000:]
    assert sum(late) / len(late) > 20


def test_the_limit_does_not_adapt_while_the_engine_has_spare_capacity() -> None:
    engine = Engine(4)
    limit = AdaptiveLimit(64, lambda: engine.now)
    engine.drive(limit, 5000, full=False)
    assert limit.limit == 64


def test_rejections_lower_the_limit_once_per_window() -> None:
    limit = AdaptiveLimit(20, lambda: 0.0)
    for _ in range(9):
        limit.record_rejection()
    assert limit.limit == 14


def test_the_limit_never_leaves_its_bounds() -> None:
    engine = Engine(1)
    limit = AdaptiveLimit(3, lambda: engine.now)
    for _ in range(50):
        assert all(1 <= seen <= 3 for seen in engine.drive(limit, 40))
        limit.record_rejection()
        assert limit.limit >= 1


def test_the_limit_scales_with_the_capacity_of_the_engine_and_never_exceeds_it() -> None:
    engine = Engine(8)
    limit = AdaptiveLimit(64, lambda: engine.now)
    limit.resize(16)
    assert limit.limit == 16
    limit.resize(64)
    assert limit.limit == 64
    engine.drive(limit, 6000)
    learnt = limit.limit
    limit.resize(64)
    assert limit.limit == learnt < 20
    engine.knee = 16
    limit.resize(128)
    assert limit.limit == 2 * learnt
    assert all(1 <= seen <= 128 for seen in engine.drive(limit, 6000))
    limit.resize(1)
    assert limit.limit == 1
