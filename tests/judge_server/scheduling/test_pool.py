"""How a pool chooses a member, and how it checks members' health."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.scheduling.pools import Member, MemberUnavailable, Pool, PoolRules, ranked
from tests.hypothesis_examples import examples
from tests.judge_server.engines.pool.faulty import said
from tests.judge_server.scheduling.test_breaker import Clock

NAMES = ("a", "b", "c", "d")


class HealthStub:
    """A member whose health the test sets."""

    def __init__(self) -> None:
        self.well = True
        self.hangs = False
        self.breaks = False
        self.asked = 0

    async def healthy(self) -> bool:
        """Whether it is healthy, as set."""
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.breaks:
            raise ConnectionResetError("cut off")
        return self.well


def pool(*names: str, **options: Any) -> Pool[HealthStub]:
    """A pool with these names, without health checks."""
    return Pool({name: HealthStub() for name in names or NAMES}, HealthStub.healthy, PoolRules(**options))


def member(of: Pool[HealthStub], name: str) -> Member[HealthStub]:
    """The member with this name."""
    return next(member for member in of.members if member.name == name)


def key(n: int) -> bytes:
    """A key for this number."""
    return n.to_bytes(4, "big")


# Choosing


def test_a_key_goes_to_the_first_member_in_rendezvous_order_or_to_the_next_without_it() -> None:
    made = pool()
    for n in range(50):
        order = ranked(key(n), NAMES)
        first = made.choose(key(n))
        second = made.choose(key(n), exclude=order[:1])
        assert first is not None
        assert second is not None
        assert [first.name, second.name] == order[:2]
    assert made.choose(key(1), exclude=NAMES) is None


@given(loads=st.lists(st.integers(1, 40), min_size=1, max_size=60), spill=st.sampled_from([1.0, 1.25, 2.0]))
@settings(max_examples=examples(60))
def test_no_member_exceeds_the_load_bound_unless_all_would(loads: list[int], spill: float) -> None:
    made, work = pool(spill=spill), ExitStack()
    for n, load in enumerate(loads):
        before = {m.name: m.load for m in made.members}
        bound = spill * (sum(before.values()) + load) / len(NAMES)
        chosen = made.choose(key(n), load)
        assert chosen is not None
        if any(held + load <= bound for held in before.values()):
            assert before[chosen.name] + load < bound + 1
        else:
            assert before[chosen.name] + load < bound + 1 or before[chosen.name] == min(before.values())
        work.enter_context(made.held(chosen, load))


def test_a_repeated_key_spills_over_in_its_order() -> None:
    made, work = pool(), ExitStack()
    order = ranked(b"hot", NAMES)
    went = []
    for _ in range(8):
        chosen = made.choose(b"hot", 12)
        assert chosen is not None
        work.enter_context(made.held(chosen, 12))
        went.append(chosen.name)
    assert went[:4] == order
    assert Counter(went) == dict.fromkeys(NAMES, 2)


def test_a_failing_member_is_left_out_for_a_pause_and_then_gets_one_trial(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    made = pool("a", "b", clock=clock, failures=2, pause_s=5.0)  # type: ignore[arg-type]
    mine = next(key(n) for n in range(50) if ranked(key(n), ["a", "b"])[0] == "a")
    caplog.set_level(logging.INFO, "adjudge")

    def chosen() -> Member[HealthStub]:
        found = made.choose(mine)
        assert found is not None
        return found

    for _ in range(2):
        assert chosen().name == "a"
        chosen().failed("HTTP 500")
    assert [chosen().name for _ in range(3)] == ["b"] * 3
    clock.now += 5.0
    assert [chosen().name for _ in range(3)] == ["a", "b", "b"]
    member(made, "a").failed("HTTP 500")
    assert chosen().name == "b"
    clock.now += 10.0
    assert chosen().name == "a"
    member(made, "a").succeeded()
    assert [chosen().name for _ in range(3)] == ["a"] * 3
    assert [level for level, _ in said(caplog)] == ["WARNING", "INFO"]
    assert "HTTP 500" in said(caplog)[0][1]


# Health checks


@pytest.fixture
async def watched() -> AsyncIterator[Pool[HealthStub]]:
    """A pool with frequent health checks."""
    made = pool(interval_s=0.002, health_timeout_s=0.05, misses=2, pause_s=3600.0)
    made.start()
    yield made
    await made.close()


async def until_state(of: Member[HealthStub], state: str) -> None:
    """Wait until a member is in this state."""
    async with asyncio.timeout(10):
        while of.state != state:  # noqa: ASYNC110 - states have no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("ill", ["well", "hangs", "breaks"])
async def test_a_member_that_misses_its_checks_is_gone_until_it_is_healthy_again(
    watched: Pool[HealthStub], caplog: pytest.LogCaptureFixture, ill: str
) -> None:
    caplog.set_level(logging.INFO, "adjudge")
    a = member(watched, "a")
    setattr(a.target, ill, ill != "well")
    await asyncio.wait_for(a.gone.wait(), 10)
    assert a.state == "gone"
    assert all(watched.choose(key(n)) is not a for n in range(50))
    setattr(a.target, ill, ill == "well")
    await until_state(a, "closed")
    assert any(watched.choose(key(n)) is a for n in range(50))
    (down, why), (up, _) = said(caplog)
    assert (down, up) == ("WARNING", "INFO")
    assert why.startswith("a is out of the pool: ")


async def test_misses_that_are_not_consecutive_change_nothing() -> None:
    answers = [True, False, True, False, True]
    done = asyncio.Event()

    async def healthy(_: HealthStub) -> bool:
        if not answers:
            done.set()
            await asyncio.Event().wait()
        return answers.pop(0)

    made = Pool({"a": HealthStub()}, healthy, PoolRules(interval_s=0.0, health_timeout_s=10.0, misses=2))
    made.start()
    await asyncio.wait_for(done.wait(), 10)
    assert made.members[0].state == "closed"
    await made.close()


async def test_work_at_a_member_that_is_gone_is_cancelled_and_work_at_others_is_not(watched: Pool[HealthStub]) -> None:
    a, b = member(watched, "a"), member(watched, "b")
    given_up = asyncio.Event()

    async def wait(of: Member[HealthStub]) -> None:
        async with of.cancel_when_gone():
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()

    of_a, of_b = asyncio.create_task(wait(a)), asyncio.create_task(wait(b))
    a.target.hangs = True
    with pytest.raises(MemberUnavailable):
        await of_a
    assert given_up.is_set()
    assert not of_b.done()
    with pytest.raises(MemberUnavailable):
        async with a.cancel_when_gone():
            pass
    of_b.cancel()
    with pytest.raises(asyncio.CancelledError):
        await of_b


async def test_a_timeout_of_the_work_itself_is_not_mistaken_for_a_gone_member(watched: Pool[HealthStub]) -> None:
    with pytest.raises(TimeoutError):
        async with member(watched, "a").cancel_when_gone(), asyncio.timeout(0):
            await asyncio.Event().wait()


async def test_a_passed_health_check_does_not_close_a_breaker_opened_by_calls(watched: Pool[HealthStub]) -> None:
    a = member(watched, "a")
    for _ in range(3):
        a.failed("HTTP 500")
    asked = a.target.asked
    async with asyncio.timeout(10):
        while a.target.asked < asked + 3:  # noqa: ASYNC110 - health checks have no event
            await asyncio.sleep(0.001)
    assert a.state == "open"


async def test_a_member_that_returns_has_a_closed_breaker(watched: Pool[HealthStub]) -> None:
    a = member(watched, "a")
    for _ in range(3):
        a.failed("HTTP 500")
    a.target.well = False
    await asyncio.wait_for(a.gone.wait(), 10)
    a.target.well = True
    await until_state(a, "closed")


async def test_a_closed_pool_checks_no_member(watched: Pool[HealthStub]) -> None:
    await watched.close()
    asked = [one.target.asked for one in watched.members]
    await asyncio.sleep(0.02)
    assert [one.target.asked for one in watched.members] == asked
