"""The worker pool of checks: a check that hangs, explodes or dies affects no other."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import psutil
import pytest

from judge_server.ports import CallFailure, JudgeResult
from judge_server.scheduling.checker import Checker
from judge_server.verifiers import Check
from tests.judge_server.verifiers.checks import answered, check

pytestmark = pytest.mark.processes

YES, NO = JudgeResult(score=1.0), JudgeResult(score=0.0)
RIGHT = answered("math", "0.5", expected="1/2")
WRONG = answered("math", "0.6", expected="1/2")
HANGS = check("regex", "b" * 60 + "!", pattern="(b+)+$")
EXPLODES = check("regex", "a" * 60 + "!", pattern="(a+)+$")
LONGER_THAN_A_FIRST_TRY_S = 3.0
"""A worker killed earlier may not have begun its check, which would then run in another one."""
OUTLIVES_ITS_PARENT = """
import asyncio
from tests.judge_server.scheduling.test_checker import Checker, HANGS, RIGHT

async def main():
    checker, loop = Checker(seconds=2.0), asyncio.get_running_loop()
    print(await checker.run(RIGHT, loop.time() + 60), flush=True)
    hanging = asyncio.create_task(checker.run(HANGS, loop.time() + 60))
    await asyncio.sleep(0.2)
    print("hanging", flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    """A checker whose time limit is more than a check needs on a busy machine."""
    made = Checker(seconds=30.0)
    yield made
    await made.close()


@pytest.fixture
async def patient() -> AsyncIterator[Checker]:
    """A checker with an almost unlimited time limit."""
    made = Checker(seconds=600.0)
    yield made
    await made.close()


def soon(seconds: float = 60.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def workers() -> list[psutil.Process]:
    """The processes that run checks, children of the fork server."""
    forking = [each for each in psutil.Process().children() if "multiprocessing.forkserver" in " ".join(each.cmdline())]
    return [worker for each in forking for worker in each.children()]


def used(worker: psutil.Process) -> float:
    """The processor seconds that a worker has used."""
    with suppress(psutil.NoSuchProcess):
        return sum(worker.cpu_times()[:2])
    return 0.0


async def until_ended(process: psutil.Process) -> None:
    """Wait for the end of a killed process, whether or not its parent has reaped it."""
    with suppress(psutil.NoSuchProcess):
        while True:
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            await asyncio.sleep(0.01)


async def until_busy() -> psutil.Process:
    """Wait for a worker that uses more processor time than starting and a first try take; only while a check hangs."""
    before = {worker.pid: used(worker) for worker in workers()}
    while True:
        for worker in workers():
            if used(worker) - before.setdefault(worker.pid, used(worker)) > LONGER_THAN_A_FIRST_TRY_S:
                return worker
        await asyncio.sleep(0.02)


async def test_each_method_decides(checker: Checker) -> None:
    found = [
        await checker.run(each, soon())
        for each in (
            RIGHT,
            WRONG,
            answered("exact", "Yes", expected="yes"),
            check("contains", "no", all_of=["yes"]),
            check("regex", "yes", pattern="^y"),
            check("json_schema", "[]", schema={"type": "object"}),
            answered("numeric", "$1,000", expected=1000),
        )
    ]
    assert found == [YES, NO, YES, NO, YES, NO, YES]


async def test_plain_comparisons_start_no_process(checker: Checker) -> None:
    before = workers()
    assert await checker.run(answered("exact", "yes", expected="yes"), soon()) == YES
    assert await checker.run(check("contains", "yes " * 1000, all_of=["yes"]), soon()) == YES
    assert await checker.run(answered("numeric", "1", expected=1), soon()) == YES
    assert await checker.run(answered("math", None, expected="1"), soon()) == NO
    assert workers() == before


async def test_a_plain_comparison_of_a_very_long_text_does_not_block_the_event_loop(checker: Checker) -> None:
    assert await checker.run(check("contains", "x" * 2**21 + "end", all_of=["end"]), soon()) == YES
    assert len(workers()) > 0


@pytest.mark.faults
async def test_a_check_that_hangs_or_explodes_affects_no_other() -> None:
    checker = Checker(seconds=1.5)
    checks = [HANGS, RIGHT, EXPLODES, WRONG, RIGHT, HANGS, WRONG]
    try:
        found = await asyncio.gather(*(checker.run(each, soon()) for each in checks))
    finally:
        await checker.close()
    assert [each.kind if isinstance(each, CallFailure) else each for each in found] == [
        "timeout",
        YES,
        "timeout",
        NO,
        YES,
        "timeout",
        NO,
    ]
    assert "the regex check exceeded its limit of 1.5 CPU seconds" in found[0].detail
    assert "the regex check" in found[2].detail


def test_time_limits_count_processor_time_and_not_waiting() -> None:
    setup = "import time; from judge_server.verifiers.worker import time_limits\nwith time_limits(0.3):\n  "
    waiting, busy = (
        subprocess.run([sys.executable, "-c", setup + block], timeout=60, check=False)
        for block in ("time.sleep(0.6)", "9**9**9")
    )
    assert waiting.returncode == 0
    # On a machine that gives the process almost no time, the far longer wall-clock limit comes first.
    assert busy.returncode in {-signal.SIGPROF, -signal.SIGALRM}


@pytest.mark.faults
async def test_a_check_that_fills_the_memory_affects_no_other() -> None:
    checker = Checker(seconds=20.0, memory_mb=256)
    bomb = check("json_schema", "[" + "[]," * 4_000_000 + "[]]", schema={})
    try:
        found = await asyncio.gather(*(checker.run(each, soon()) for each in (RIGHT, bomb, WRONG, RIGHT)))
    finally:
        await checker.close()
    assert [found[0], found[2], found[3]] == [YES, NO, YES]
    assert found[1].kind == "engine"
    assert "256 MB" in found[1].detail


@pytest.mark.faults
@pytest.mark.slow
async def test_a_text_too_large_for_any_worker_is_a_failure_that_names_the_limit() -> None:
    checker = Checker(memory_mb=128)
    try:
        found = await checker.run(check("regex", "x" * 100_000_000, pattern="y"), soon())
        assert await checker.run(RIGHT, soon()) == YES
    finally:
        await checker.close()
    assert isinstance(found, CallFailure)
    assert found.kind == "engine"
    assert "128 MB" in found.detail


@pytest.mark.faults
async def test_a_check_whose_process_is_killed_fails_and_the_pool_continues(patient: Checker) -> None:
    await patient.run(RIGHT, soon())
    hanging = asyncio.create_task(patient.run(HANGS, soon()))
    (await until_busy()).kill()
    found = await hanging
    assert isinstance(found, CallFailure)
    assert found.kind == "engine"
    assert await asyncio.gather(patient.run(RIGHT, soon()), patient.run(WRONG, soon())) == [YES, NO]


@pytest.mark.faults
async def test_idle_processes_that_die_are_replaced(checker: Checker) -> None:
    await checker.run(RIGHT, soon())
    for worker in workers():
        worker.kill()
    found = await asyncio.gather(*(checker.run(each, soon()) for each in (RIGHT, WRONG, RIGHT)))
    assert found == [YES, NO, YES]


@pytest.mark.faults
@pytest.mark.slow
async def test_the_fork_server_may_die_too(checker: Checker) -> None:
    await checker.run(RIGHT, soon())
    killed = [*workers(), workers()[0].parent()]
    for each in killed:
        each.kill()
    for each in killed:  # takes a while on a busy machine
        await until_ended(each)
    assert await checker.run(WRONG, soon()) == NO


async def test_workers_ignore_an_interrupt(checker: Checker) -> None:
    for each in (RIGHT, WRONG):  # the second one uses the worker reserved for quick runs
        await checker.run(each, soon())
    before = workers()
    for worker in before:
        os.kill(worker.pid, signal.SIGINT)
    assert await checker.run(RIGHT, soon()) == YES
    assert workers() == before


async def test_a_check_unfinished_at_the_deadline_fails_and_leaves_nothing_running(checker: Checker) -> None:
    await checker.run(RIGHT, soon())
    found = await checker.run(HANGS, soon(0.4))
    assert isinstance(found, CallFailure)
    assert found.kind == "timeout"
    assert "deadline" in found.detail
    assert (await checker.run(RIGHT, soon(-1.0))).kind == "timeout"
    assert await checker.run(RIGHT, soon()) == YES


async def test_a_cancelled_check_ends_its_process(patient: Checker) -> None:
    await patient.run(RIGHT, soon())
    task = asyncio.create_task(patient.run(HANGS, soon()))
    busy = await until_busy()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(psutil.wait_procs, [busy], timeout=10)
    assert not busy.is_running()
    assert await patient.run(RIGHT, soon()) == YES


async def test_closing_fails_running_checks_and_leaves_no_process(patient: Checker) -> None:
    others = set(workers())  # of other tests' checkers
    await patient.run(RIGHT, soon())
    tasks = [asyncio.create_task(patient.run(each, soon())) for each in (HANGS, EXPLODES, HANGS)]
    await until_busy()
    await patient.close()
    found = [await task for task in tasks] + [await patient.run(RIGHT, soon())]
    assert [each.kind for each in found] == ["engine"] * 4
    assert all("the service is stopping" in each.detail for each in found)
    assert set(workers()) <= others
    await patient.close()


async def test_a_checker_that_was_never_used_can_be_closed() -> None:
    await Checker().close()


@pytest.mark.faults
def test_no_process_outlives_a_killed_service_and_startup_does_not_count_against_the_time_limit() -> None:
    left = []
    with subprocess.Popen([sys.executable, "-c", OUTLIVES_ITS_PARENT], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline().startswith(b"JudgeResult(score=1.0")
            assert parent.stdout.readline() == b"hanging\n"
            left = psutil.Process(parent.pid).children(recursive=True)
            assert len(left) >= 3
        finally:
            parent.kill()
    _, alive = psutil.wait_procs(left, timeout=30)
    for each in alive:
        each.kill()
    assert alive == []


async def test_results_do_not_depend_on_how_many_checks_run_at_once(checker: Checker) -> None:
    def halves(n: int) -> Check:
        return answered("math", f"{n}/{2 * n + n % 2}", expected="1/2")

    found = await asyncio.gather(*(checker.run(halves(n), soon()) for n in range(1, 100)))
    assert found == [NO if n % 2 else YES for n in range(1, 100)]
