"""The order of checks: projects, runs and groups take turns, and long checks never occupy all workers."""

import asyncio
from contextlib import AsyncExitStack

from judge_server.scheduling.checker import MAX_SLOW_RUNS, SLOW_RUN_S, CheckOwner, CheckScheduler, RunHistory


class CheckHarness:
    """A scheduler whose checks end when the test says so, and the order in which they began."""

    def __init__(self, workers: int) -> None:
        self.turns = CheckScheduler(workers)
        self.began: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, owner: CheckOwner, *, long: bool = False) -> None:
        """Queue a check."""
        self.ends[name] = asyncio.Event()

        async def work() -> None:
            async with self.turns.acquire(owner, long=long):
                self.began.append(name)
                await self.ends[name].wait()

        self.tasks[name] = asyncio.create_task(work())
        await settled()

    async def end(self, name: str) -> None:
        """End a check that has begun."""
        self.ends[name].set()
        await settled()

    async def all_in_turn(self) -> list[str]:
        """End the checks one after another; return the order in which they began."""
        for place in range(len(self.tasks)):
            await self.end(self.began[place])
        return self.began


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_projects_runs_and_groups_take_turns_however_many_checks_each_has() -> None:
    line = CheckHarness(1)
    await line.come("first", CheckOwner("z\0r"))
    for n in range(6):
        await line.come(f"flood{n}", CheckOwner("p\0flood", "0"))
    await line.come("other group", CheckOwner("p\0flood", "1"))
    await line.come("other run", CheckOwner("p\0light", "0"))
    await line.come("other project", CheckOwner("q\0r"))
    began = await line.all_in_turn()
    assert began.index("other project") <= 3
    assert began.index("other run") <= 4
    assert began.index("other group") <= 6
    assert began.index("flood5") == len(began) - 1


async def test_long_checks_leave_a_worker_to_short_ones() -> None:
    line = CheckHarness(2)
    for n in range(3):
        await line.come(f"long{n}", CheckOwner("p\0r"), long=True)
    assert line.began == ["long0"]
    await line.come("short", CheckOwner("p\0r"))
    assert line.began == ["long0", "short"]
    await line.end("short")
    await line.end("long0")
    assert line.began == ["long0", "short", "long1"]
    await line.end("long1")
    await line.end("long2")
    await asyncio.gather(*line.tasks.values())


async def test_long_checks_get_their_turn_while_short_ones_keep_coming() -> None:
    line = CheckHarness(2)
    for n in range(4):
        await line.come(f"short{n}", CheckOwner("p\0r"))
    await line.come("long", CheckOwner("p\0r"), long=True)
    await line.end("short0")
    assert line.began == ["short0", "short1", "long"]
    for name in ("short1", "short2", "short3", "long"):
        await line.end(name)
    await asyncio.gather(*line.tasks.values())


async def test_a_cancelled_check_frees_its_place_in_the_queue_or_at_the_worker() -> None:
    line = CheckHarness(1)
    for name in ("a", "b", "c"):
        await line.come(name, CheckOwner("p\0r"))
    line.tasks["b"].cancel()
    await settled()
    assert len(line.turns) == 1
    line.tasks["a"].cancel()
    await settled()
    assert line.began == ["a", "c"]
    await line.end("c")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(line.turns.acquire(CheckOwner(), long=False))
    assert len(line.turns) == 0


async def test_one_of_three_workers_is_reserved_for_runs_with_quick_checks() -> None:
    line = CheckHarness(3)
    line.turns.history.record("p\0quick", slow=False)
    for n in range(3):
        await line.come(f"unknown{n}", CheckOwner("q\0new"))
    await line.come("quick", CheckOwner("p\0quick"))
    assert line.began == ["unknown0", "unknown1", "quick"]
    await line.end("quick")
    assert line.began == ["unknown0", "unknown1", "quick"]
    for n in range(3):
        await line.end(f"unknown{n}")
    await asyncio.gather(*line.tasks.values())


async def test_one_of_three_workers_is_reserved_for_short_checks() -> None:
    line = CheckHarness(3)
    for n in range(2):
        await line.come(f"long{n}", CheckOwner("p\0r"), long=True)
    await line.come("short", CheckOwner("p\0r"))
    assert line.began == ["long0", "short"]
    for name in ("long0", "short", "long1"):
        await line.end(name)
    await asyncio.gather(*line.tasks.values())


def test_after_a_slow_check_a_run_counts_as_slow_for_a_minute() -> None:
    now = 100.0
    history = RunHistory(lambda: now)
    assert "p\0r" in history
    history.record("p\0r", slow=False)
    assert "p\0r" not in history
    history.record("p\0r", slow=True)
    history.record("p\0r", slow=False)
    assert "p\0r" in history
    now += SLOW_RUN_S
    assert "p\0r" not in history


def test_a_project_gains_nothing_from_new_run_names() -> None:
    now = 100.0
    history = RunHistory(lambda: now)
    for run in ("p\0honest", "q\0other"):
        history.record(run, slow=False)
    for n in range(MAX_SLOW_RUNS + 1):
        assert "p\0honest" not in history
        history.record(f"p\0{n}", slow=True)
        history.record(f"p\0{n}", slow=True)
    assert "p\0honest" in history
    assert "q\0other" not in history
    now += SLOW_RUN_S
    assert "p\0honest" not in history
