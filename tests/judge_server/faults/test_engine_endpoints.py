"""Endpoints of a pool that are killed, hang, are slow or answer in HTML, under two concurrent runs.

`Fleet.score` checks that failures give no reward and that no verdict has two values. The tests here check that finished
calls are kept, and that only calls in flight at the fault are repeated.
"""

import signal
from asyncio import create_task
from pathlib import Path

import pytest

from tests.judge_server.faults.endpoints import CALLS, Fleet, fleet, only

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy test machine may delay a healthy server's answer: only the pool's timeout counts."""
    monkeypatch.setattr("judge_server.engines.openai.probe.READY_TIMEOUT_S", 60.0)


async def all_are_in_flight_or_done(judging: Fleet, *holding: int) -> None:
    """Wait until every call has begun, and those in flight are held by these endpoints."""

    def holds() -> bool:
        busy = [bool(endpoint.in_flight) for endpoint in judging.endpoints]
        return len(judging.count("begin")) == CALLS and busy == [n in holding for n in range(len(busy))]

    await judging.until(holds)


async def nothing_is_asked_again(judging: Fleet) -> None:
    """Check that every call has one final answer, and that both runs get the same rewards again without a new call."""
    asked = judging.count("begin").total()
    assert len(judging.count("end")) == CALLS
    assert only(judging.count("end"), 1)
    again = await judging.two_runs()
    assert all(reward is not None for rewards in again for reward in rewards)
    assert judging.count("begin").total() == asked


async def test_a_killed_endpoint_loses_only_the_calls_in_flight(tmp_path: Path) -> None:
    async with fleet(tmp_path, "hold", "none") as judging:
        a, b = judging.endpoints
        runs = create_task(judging.two_runs())
        await all_are_in_flight_or_done(judging, 0)
        lost, finished = a.in_flight, judging.count("end")
        assert len(lost) >= 6
        assert len(a.count("end")) >= 6
        await a.kill()
        assert all(reward is not None for rewards in await runs for reward in rewards)
        assert judging.count("begin") == finished + lost + lost
        assert lost <= b.count("end")
        await nothing_is_asked_again(judging)
        await judging.until(lambda: judging.states == ["gone", "closed"])
        await a.start()
        await judging.until(lambda: judging.states == ["closed", "closed"])
        before = a.count("end").total()
        assert None not in await judging.score("later", range(100, 112))
        assert a.count("end").total() > before


@pytest.mark.slow
async def test_calls_of_an_endpoint_that_hangs_move_on_and_keep_one_value(tmp_path: Path) -> None:
    async with fleet(tmp_path, "hold", "none", health_timeout_s=4.0) as judging:
        a, b = judging.endpoints
        runs = create_task(judging.two_runs())
        await all_are_in_flight_or_done(judging, 0)
        lost, finished = a.in_flight, judging.count("end")
        a.send(signal.SIGSTOP)
        assert all(reward is not None for rewards in await runs for reward in rewards)
        assert judging.states == ["gone", "closed"]
        assert judging.count("begin") == finished + lost + lost
        a.send(signal.SIGCONT)
        await judging.until(lambda: not a.in_flight and judging.states == ["closed", "closed"])
        a.send(signal.SIGUSR1)
        await nothing_is_asked_again(judging)
        assert b.count("end") > lost
        before = a.count("end").total()
        assert None not in await judging.score("later", range(100, 112))
        assert a.count("end").total() > before


@pytest.mark.slow
async def test_a_slow_endpoint_keeps_its_calls_and_stays_in_the_pool(tmp_path: Path) -> None:
    async with fleet(tmp_path, "slow", "none") as judging:
        assert all(reward is not None for rewards in await judging.two_runs() for reward in rewards)
        assert len(judging.endpoints[0].count("end")) >= 12
        assert only(judging.count("begin"), 1)
        assert judging.states == ["closed", "closed"]
        await nothing_is_asked_again(judging)


@pytest.mark.slow
async def test_calls_that_time_out_are_failures_and_only_they_are_repeated_later(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path, "hold", "none", timeout_s=5.0) as judging:
        a, _ = judging.endpoints
        one, other = await judging.two_runs()
        late = a.count("begin") - a.count("end")
        missing = [rewards.count(None) for rewards in (one, other)]
        assert 6 * max(missing) <= len(late) <= 6 * sum(missing)
        assert only(judging.count("begin"), 1)
        a.send(signal.SIGUSR1)
        await judging.until(lambda: not a.in_flight)
        assert all(reward is not None for rewards in await judging.two_runs() for reward in rewards)
        assert {key for key, times in judging.count("begin").items() if times > 1} == set(late)
        await nothing_is_asked_again(judging)


@pytest.mark.slow
async def test_an_endpoint_that_answers_in_html_is_taken_out_and_its_calls_move_on(tmp_path: Path) -> None:
    async with fleet(tmp_path, "page", "none") as judging:
        a, b = judging.endpoints
        assert all(reward is not None for rewards in await judging.two_runs() for reward in rewards)
        pages = a.count("page")
        assert pages
        assert pages <= b.count("end")
        await judging.until(lambda: judging.states == ["gone", "closed"])
        asked = a.count("begin")
        assert None not in await judging.score("later", range(100, 112))
        assert a.count("begin") == asked
        a.send(signal.SIGUSR1)
        await judging.until(lambda: judging.states == ["closed", "closed"])
        assert None not in await judging.score("later", range(200, 212))
        assert a.count("begin").total() > asked.total()


@pytest.mark.slow
async def test_when_all_endpoints_are_killed_finished_calls_are_kept_and_the_rest_asked_after_a_restart(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path, "hold", "hold", max_hold_s=1.0) as judging:
        runs = create_task(judging.two_runs())
        await all_are_in_flight_or_done(judging, 0, 1)
        lost, finished = judging.endpoints[0].in_flight + judging.endpoints[1].in_flight, judging.count("end")
        assert len(lost) == len(finished) == CALLS / 2
        for endpoint in judging.endpoints:
            await endpoint.kill()
        begun = judging.count("begin")  # calls that moved from one endpoint to the other count twice
        assert set(begun) == set(finished) | set(lost)
        assert all(reward is None for rewards in await runs for reward in rewards)
        await judging.until(lambda: judging.states == ["gone", "gone"])
        assert await judging.score("one", range(12)) == [None] * 12
        for endpoint in judging.endpoints:
            await endpoint.start()
        await judging.until(lambda: judging.states == ["closed", "closed"])
        assert all(reward is not None for rewards in await judging.two_runs() for reward in rewards)
        assert judging.count("begin") == begun + lost
        await nothing_is_asked_again(judging)
