"""What every adapter of the `Operations` port keeps to.

An adapter comes with a `Bench`: it runs jobs whose work the test lets go on piece by piece, and it can be stopped and
started again over what it kept.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from judge_server.operations import InProcessOperations
from judge_server.ports.operations import JobContext, JobFailed, Operations, UnknownOperation
from trainer_client.wire.operations import TERMINAL_STATES, Operation, OperationProgress

PROJECT = "p"


@dataclass
class CountingJob:
    """A job that writes the numbers below `request["to"]`, each when it is let; it goes on from what it has written.

    It fails with `error` at the number `request["fails_at"]`.
    """

    lets: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    written: list[int] = field(default_factory=list)
    error: Exception = field(default_factory=lambda: OSError("the disk is full"))
    running: int = 0
    most_running: int = 0

    def check(self, request: dict[str, Any]) -> None:
        if not isinstance(request.get("to"), int):
            raise ValueError("to: say how far to count")

    def results_file(self, request: dict[str, Any], folder: Path) -> Path:
        return folder / "numbers.jsonl"

    async def run(self, context: JobContext) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self._count(context)
        finally:
            self.running -= 1

    async def _count(self, context: JobContext) -> None:
        file = self.results_file(context.request, context.folder)
        begun = len(file.read_text().splitlines()) if file.exists() else 0
        to = context.request["to"]
        for number in range(begun, to):
            context.report(OperationProgress(done=number, total=to, known=begun))
            await self.lets.acquire()
            if number == context.request.get("fails_at"):
                raise self.error
            with file.open("a") as out:
                out.write(json.dumps({"number": number}) + "\n")
            self.written.append(number)
        context.report(OperationProgress(done=to, total=to, known=begun, made=to))

    def release(self, times: int = 1) -> None:
        """Let it write so many more."""
        for _ in range(times):
            self.lets.release()


@dataclass
class JobHarness:
    """An adapter under test. `restart` stops it, as the end of its process would, and starts another over its files."""

    operations: Operations
    job: CountingJob
    restart: Callable[[], Any]


@pytest_asyncio.fixture(params=["in_process"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobHarness]:
    job = CountingJob()

    async def restart() -> None:
        await made[-1].close()
        made.append(InProcessOperations(tmp_path, {"generate_rubrics": job}))
        await made[-1].start()
        harness.operations = made[-1]

    made = [InProcessOperations(tmp_path, {"generate_rubrics": job})]
    await made[0].start()
    harness = JobHarness(made[0], job, restart)
    yield harness
    await made[-1].close()


async def submitted(harness: JobHarness, **request: Any) -> str:
    return (await harness.operations.submit(PROJECT, "generate_rubrics", request)).id


async def until(harness: JobHarness, id_: str, true_of: Callable[[Operation], bool]) -> Operation:
    """The operation, as soon as something is true of it."""
    async with asyncio.timeout(20):
        async for operation in harness.operations.events(PROJECT, id_):
            if true_of(operation):
                return operation
    raise AssertionError("it ended before that was true")


async def ended(harness: JobHarness, id_: str) -> Operation:
    return await until(harness, id_, lambda operation: operation.state in TERMINAL_STATES)


async def test_an_operation_goes_from_queued_over_running_to_done(harness: JobHarness) -> None:
    operation = await harness.operations.submit(PROJECT, "generate_rubrics", {"to": 2})
    assert (operation.state, operation.started_at, operation.ended_at) == ("queued", None, None)
    assert operation.request == {"to": 2}
    running = await until(harness, operation.id, lambda one: one.progress.total is not None)
    assert (running.state, running.progress.done, running.progress.total) == ("running", 0, 2)
    harness.job.release(2)
    done = await ended(harness, operation.id)
    assert (done.state, done.problem) == ("done", None)
    assert (done.progress.done, done.progress.made) == (2, 2)
    assert done.started_at is not None
    assert done.ended_at is not None
    assert operation.created_at <= done.started_at <= done.ended_at
    assert await harness.operations.get(PROJECT, operation.id) == done


async def test_a_request_that_its_kind_does_not_take_is_refused_at_once(harness: JobHarness) -> None:
    with pytest.raises(ValueError, match="how far to count"):
        await submitted(harness, to="the moon")
    with pytest.raises(ValueError, match="validate_rubrics"):
        await harness.operations.submit(PROJECT, "validate_rubrics", {"to": 1})
    assert await harness.operations.list(PROJECT) == ()


async def test_an_operation_that_fails_says_why_and_keeps_what_it_made(harness: JobHarness) -> None:
    id_ = await submitted(harness, to=3, fails_at=1)
    harness.job.release(3)
    failed = await ended(harness, id_)
    assert (failed.state, failed.problem) == ("failed", "the disk is full")
    assert failed.ended_at is not None
    page = await harness.operations.results(PROJECT, id_)
    assert (page.results, page.next_after) == (({"number": 0},), None)


@pytest.mark.parametrize(("error", "logged"), [(JobFailed("no"), False), (RuntimeError("a mistake"), True)])
async def test_only_a_mistake_in_the_program_is_logged(
    harness: JobHarness, error: Exception, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    harness.job.error = error
    id_ = await submitted(harness, to=1, fails_at=0)
    harness.job.release()
    assert (await ended(harness, id_)).problem == str(error)
    assert ("Traceback" in caplog.text) == logged


async def test_a_cancelled_operation_ends_where_it_is_and_the_next_one_runs(harness: JobHarness) -> None:
    first, second = await submitted(harness, to=100), await submitted(harness, to=1)
    harness.job.release(2)
    await until(harness, first, lambda one: one.progress.done == 2)
    cancelled = await harness.operations.cancel(PROJECT, first)
    assert (cancelled.state, cancelled.problem) == ("cancelled", None)
    assert cancelled.ended_at is not None
    harness.job.release(1)
    assert (await ended(harness, second)).state == "done"
    assert len((await harness.operations.results(PROJECT, first)).results) == 2
    assert (await harness.operations.cancel(PROJECT, first)) == cancelled
    await harness.restart()
    assert (await harness.operations.get(PROJECT, first)).state == "cancelled"


async def test_an_operation_may_be_cancelled_while_it_waits_for_its_turn(harness: JobHarness) -> None:
    first, second = await submitted(harness, to=1), await submitted(harness, to=1)
    await until(harness, first, lambda one: one.state == "running")
    cancelled = await harness.operations.cancel(PROJECT, second)
    assert (cancelled.state, cancelled.started_at) == ("cancelled", None)
    harness.job.release(2)
    assert (await ended(harness, first)).state == "done"
    assert harness.job.written == [0]


async def test_operations_run_in_the_order_in_which_they_were_submitted_one_at_a_time(harness: JobHarness) -> None:
    ids = [await submitted(harness, to=2) for _ in range(3)]
    harness.job.release(6)
    ended_at = [(await ended(harness, id_)).ended_at for id_ in ids]
    assert ended_at == sorted(ended_at, key=lambda at: str(at))
    assert harness.job.most_running == 1
    assert [one.id for one in await harness.operations.list(PROJECT)] == ids[::-1]


async def test_results_come_in_pages_while_more_are_made(harness: JobHarness) -> None:
    id_ = await submitted(harness, to=5)
    harness.job.release(3)
    await until(harness, id_, lambda one: one.progress.done == 3)
    first = await harness.operations.results(PROJECT, id_, limit=2)
    assert (first.results, first.next_after) == (({"number": 0}, {"number": 1}), 2)
    second = await harness.operations.results(PROJECT, id_, after=2, limit=2)
    assert (second.results, second.next_after) == (({"number": 2},), 3)
    assert await harness.operations.results(PROJECT, id_, after=3) == second.model_copy(
        update={"results": (), "next_after": 3}
    )
    harness.job.release(2)
    await ended(harness, id_)
    last = await harness.operations.results(PROJECT, id_, after=3, limit=2)
    assert (last.results, last.next_after) == (({"number": 3}, {"number": 4}), None)


@pytest.mark.parametrize(("after", "limit"), [(0, 0), (0, 100_000), (-1, 10)])
async def test_a_page_that_cannot_be_is_refused(harness: JobHarness, after: int, limit: int) -> None:
    id_ = await submitted(harness, to=1)
    with pytest.raises(ValueError, match="page"):
        await harness.operations.results(PROJECT, id_, after=after, limit=limit)


async def test_events_begin_after_the_revision_seen_and_end_with_the_operation(harness: JobHarness) -> None:
    id_ = await submitted(harness, to=3)
    harness.job.release(1)
    seen = await until(harness, id_, lambda one: one.progress.done == 1)
    harness.job.release(2)
    later = [one async for one in harness.operations.events(PROJECT, id_, after=seen.revision)]
    revisions = [one.revision for one in later]
    assert revisions[0] > seen.revision
    assert revisions == sorted(set(revisions))
    assert later[-1].state == "done"
    assert [one async for one in harness.operations.events(PROJECT, id_, after=revisions[-1])] == []
    assert [one async for one in harness.operations.events(PROJECT, id_)] == [later[-1]]


async def test_all_who_listen_hear_of_the_end(harness: JobHarness) -> None:
    id_ = await submitted(harness, to=2)
    listeners = [asyncio.create_task(ended(harness, id_)) for _ in range(5)]
    await asyncio.sleep(0)
    harness.job.release(2)
    assert {one.state for one in await asyncio.gather(*listeners)} == {"done"}


async def test_what_was_running_or_queued_goes_on_in_the_next_process(harness: JobHarness) -> None:
    first, second = await submitted(harness, to=4), await submitted(harness, to=1)
    harness.job.release(2)
    before = await until(harness, first, lambda one: one.progress.done == 2)
    await harness.restart()
    harness.job.release(3)
    after = await ended(harness, first)
    assert (after.state, after.progress.known) == ("done", 2)
    assert after.revision > before.revision
    assert after.started_at == before.started_at
    assert (await ended(harness, second)).state == "done"
    assert harness.job.written == [0, 1, 2, 3, 0], "nothing was done twice"
    page = await harness.operations.results(PROJECT, first)
    assert [one["number"] for one in page.results] == [0, 1, 2, 3]


async def test_what_has_ended_is_still_known_to_the_next_process_and_not_run_again(harness: JobHarness) -> None:
    id_ = await submitted(harness, to=1)
    harness.job.release(1)
    done = await ended(harness, id_)
    await harness.restart()
    assert await harness.operations.get(PROJECT, id_) == done
    assert await harness.operations.list(PROJECT) == (done,)
    assert harness.job.written == [0]


async def test_an_operation_is_known_to_its_own_project_alone(harness: JobHarness) -> None:
    id_ = await submitted(harness, to=1)
    for project, unknown in (("other", id_), (PROJECT, "op-0")):
        with pytest.raises(UnknownOperation, match=unknown):
            await harness.operations.get(project, unknown)
        with pytest.raises(UnknownOperation):
            await harness.operations.cancel(project, unknown)
        with pytest.raises(UnknownOperation):
            await harness.operations.results(project, unknown)
        with pytest.raises(UnknownOperation):
            await anext(aiter(harness.operations.events(project, unknown)))
    assert await harness.operations.list("other") == ()
    assert (await harness.operations.get(PROJECT, id_)).state == "running" or harness.job.written == []


async def test_one_that_was_cancelled_goes_on_where_it_left_off_when_it_is_tried_again(harness: JobHarness) -> None:
    id_ = await submitted(harness, to=3)
    harness.job.release()
    await until(harness, id_, lambda one: one.progress.done == 1)
    await harness.operations.cancel(PROJECT, id_)
    again = await harness.operations.retry(PROJECT, id_)
    assert (again.state, again.tries, again.ended_at) == ("queued", 2, None)
    harness.job.release(2)
    done = await ended(harness, id_)
    assert (done.state, harness.job.written) == ("done", [0, 1, 2])
    assert (await harness.operations.retry(PROJECT, id_)).revision == done.revision


async def test_the_same_submission_is_one_operation(harness: JobHarness) -> None:
    ids = {
        (await harness.operations.submit(PROJECT, "generate_rubrics", {"to": 0}, submission="key")).id for _ in range(3)
    }
    assert len(ids) == 1
