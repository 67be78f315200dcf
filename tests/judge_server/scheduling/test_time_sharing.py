"""Long work of many requests: one slice of the event loop at a time, one thread, and turns by project."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from judge_server.errors import NotReady, TooLarge
from judge_server.ports import ANONYMOUS, identity_context
from judge_server.scheduling.time_sharing import (
    BACKGROUND_SHARE,
    LONG_WORK_TIMEOUT_S,
    LongWorkThread,
    Projects,
    TimeSlicer,
    in_chunks,
    next_slice,
    run_in_thread,
    throttle_thread,
)


def acts_for(project: str) -> AbstractContextManager[None]:
    return identity_context(replace(ANONYMOUS, project_id=project))


async def test_one_slice_runs_per_event_loop_iteration_for_any_number_of_requests() -> None:
    slices = 0

    async def long_work() -> None:
        nonlocal slices
        for _ in range(20):
            await next_slice()
            slices += 1

    working = [asyncio.create_task(long_work()) for _ in range(10)]
    seen = [0]
    while not all(task.done() for task in working):
        await asyncio.sleep(0)
        seen.append(slices)
    assert seen[-1] == 200
    assert max(after - before for before, after in itertools.pairwise(seen)) == 1


async def test_work_shorter_than_a_slice_does_not_wait_for_other_requests() -> None:
    async def long_work() -> None:
        while True:
            await next_slice()

    others = [asyncio.create_task(long_work()) for _ in range(10)]
    await asyncio.sleep(0)
    short = asyncio.create_task(TimeSlicer(slice_s=60.0).yield_if_due())
    await asyncio.sleep(0)
    assert short.done()
    for task in others:
        task.cancel()


async def test_waiting_for_something_else_is_no_slice() -> None:
    at = 0.0
    slicer = TimeSlicer(slice_s=1.0, clock=lambda: at)
    at = 5.0
    slicer.resume()
    resumed = asyncio.create_task(slicer.yield_if_due())
    await asyncio.sleep(0)
    assert resumed.done()
    at = 10.0
    due = asyncio.create_task(slicer.yield_if_due())
    await asyncio.sleep(0)
    assert not due.done()
    await due


async def test_projects_take_turns_so_that_many_requests_of_one_do_not_delay_those_of_another() -> None:
    order: list[str] = []

    async def long_work(project: str, slices: int) -> None:
        with acts_for(project):
            for _ in range(slices):
                await next_slice()
                order.append(project)

    crowd = [asyncio.create_task(long_work("crowd", 30)) for _ in range(20)]
    await asyncio.sleep(0)
    alone = asyncio.create_task(long_work("alone", 5))
    await alone
    assert len(order) <= 18  # every third slice is its own, and it joined after at most three
    for task in crowd:
        task.cancel()


async def test_one_function_at_a_time_runs_in_the_thread_and_projects_take_turns() -> None:
    running, most, order, go_on = 0, 0, [], threading.Event()

    def compute(project: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        go_on.wait(10)
        order.append(project)
        running -= 1
        return project

    async def call(project: str) -> str:
        with acts_for(project):
            return await run_in_thread(compute, project)

    crowd = [asyncio.create_task(call("crowd")) for _ in range(5)]
    await asyncio.sleep(0)
    alone = asyncio.create_task(call("alone"))
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(*crowd, alone) == ["crowd"] * 5 + ["alone"]
    assert (most, order.index("alone")) == (1, 2)


@pytest.mark.parametrize(("other", "rests"), [("b", True), ("a", False)])
async def test_the_thread_rests_after_its_work_while_other_projects_have_requests(
    monkeypatch: pytest.MonkeyPatch, other: str, rests: bool
) -> None:
    pauses = []
    loop = asyncio.get_running_loop()
    wait = loop.call_later

    def call_later(delay: float, callback: Callable[..., None], *args: object) -> asyncio.Handle:
        if delay >= LONG_WORK_TIMEOUT_S:
            return wait(delay, callback, *args)
        pauses.append(delay)
        return loop.call_soon(callback, *args)

    def compute() -> None:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass

    with acts_for(other):
        TimeSlicer()
    monkeypatch.setattr(loop, "call_later", call_later)
    with acts_for("a"):
        await run_in_thread(compute)
        await run_in_thread(int)  # after the rest
    assert [pause >= 0.02 for pause in pauses] == [True] * rests  # twice as long as it computed


async def test_cancelling_a_wait_for_the_thread_lets_the_next_function_run() -> None:
    go_on = threading.Event()
    first = asyncio.create_task(run_in_thread(go_on.wait, 10))
    await asyncio.sleep(0)
    cancelled = [asyncio.create_task(run_in_thread(int, "1")) for _ in range(3)]
    last = asyncio.create_task(run_in_thread(int, "2"))
    await asyncio.sleep(0)
    first.cancel()
    cancelled[0].cancel()
    go_on.set()
    await asyncio.sleep(0)
    cancelled[1].cancel()
    assert await last == 2
    assert await cancelled[2] == 1


async def test_a_function_that_takes_too_long_is_given_up_and_others_run() -> None:
    thread, ends, ran = LongWorkThread(Projects(), timeout_s=0.05), threading.Event(), []
    endless = asyncio.create_task(thread.run(ends.wait))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(thread.run(lambda n=n: ran.append(n))) for n in range(3)]  # type: ignore[misc]
    with pytest.raises(TooLarge, match=r"0\.05 s"):
        await endless
    await asyncio.gather(*waiting)
    assert ran == [0, 1, 2]
    ends.set()
    assert await thread.run(lambda: "ended") == "ended"


async def test_a_function_whose_caller_has_gone_is_given_up_too() -> None:
    thread, ends = LongWorkThread(Projects(), timeout_s=0.05), threading.Event()
    endless = asyncio.create_task(thread.run(ends.wait))
    await asyncio.sleep(0)
    endless.cancel()
    assert await thread.run(lambda: 7) == 7
    ends.set()


async def test_an_error_in_the_thread_reaches_only_its_caller() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await run_in_thread(int, "x")
    assert await run_in_thread(int, "7") == 7


async def test_long_work_stops_at_its_deadline() -> None:
    slicer = TimeSlicer(deadline=asyncio.get_running_loop().time() - 1, slice_s=0.0)
    with pytest.raises(NotReady, match="deadline passed before it was planned"):
        await slicer.yield_if_due()


def computed_and_slept(
    monkeypatch: pytest.MonkeyPatch, *, throttled: bool, behind: bool = False
) -> tuple[float, float]:
    """The seconds that a thread computes and sleeps on 100 chunks of 3 ms each."""
    computed = slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds

    clock = SimpleNamespace(thread_time=lambda: computed, sleep=sleep)
    monkeypatch.setattr("judge_server.scheduling.time_sharing.time", clock)

    def work() -> None:
        nonlocal computed
        if throttled:
            throttle_thread(lambda: behind)
        for chunk in in_chunks(range(400), 4):
            assert len(chunk) == 4
            computed += 0.003

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return computed, slept


def test_a_throttled_thread_computes_for_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, slept = computed_and_slept(monkeypatch, throttled=True)
    assert computed / (computed + slept) == pytest.approx(BACKGROUND_SHARE, rel=0.02)


@pytest.mark.parametrize("how", [{"throttled": False}, {"throttled": True, "behind": True}])
def test_other_threads_and_those_with_a_backlog_do_not_sleep(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    assert computed_and_slept(monkeypatch, **how)[1] == 0
