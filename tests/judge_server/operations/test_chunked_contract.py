"""The contract of operations in chunks, for every queue and database."""

import asyncio

import pytest

from judge_server.errors import NotFound
from judge_server.operations.handlers.base import (
    FatalChunkError,
    InvalidOperationError,
    RetryableChunkError,
    ServiceUnavailableError,
)
from rubric_store import SQLOperations
from rubric_store.operations.rows import MAX_ATTEMPTS, ChunkOutcome
from tests.judge_server.operations.harness import PROJECT, OperationsHarness, request


async def test_an_operation_is_queued_then_running_then_done(harness: OperationsHarness) -> None:
    operation = await harness.operations.submit(PROJECT, "score", request(3) | {"run": "r"})
    assert (operation.state, operation.request, operation.progress.total) == ("queued", {"run": "r"}, 3)
    assert (await harness.until(operation.id, "running")).progress.done == 0
    harness.kind.release(3)
    done = await harness.until(operation.id)
    assert (done.state, done.progress.done, done.progress.made, done.usage.judge_calls) == ("done", 3, 3, 3)
    assert harness.kind.done == {0: 1, 1: 1, 2: 1}


async def test_paging_returns_every_result_once(harness: OperationsHarness) -> None:
    id_ = await harness.submitted(5)
    harness.kind.release(5)
    await harness.until(id_)
    seen = []
    after: int | None = 0
    while after is not None:
        page = await harness.operations.results(PROJECT, id_, after=after, limit=2)
        assert len(page.results) <= 2
        seen += [result["group"] for result in page.results]
        after = None if page.next_cursor is None else int(page.next_cursor)
    assert sorted(seen) == [f"q{n}" for n in range(5)]


@pytest.mark.parametrize(("after", "limit"), [(-1, 1), (0, 0), (0, 1001)])
async def test_page_parameters_out_of_range_are_refused(harness: OperationsHarness, after: int, limit: int) -> None:
    id_ = await harness.submitted(1)
    with pytest.raises(ValueError, match="1 to 1000"):
        await harness.operations.results(PROJECT, id_, after=after, limit=limit)


async def test_a_request_that_is_invalid_for_its_kind_is_refused_and_not_stored(harness: OperationsHarness) -> None:
    with pytest.raises(ValueError, match="groups"):
        await harness.operations.submit(PROJECT, "score", {"groups": []})
    with pytest.raises(ValueError, match="refused"):
        await harness.operations.submit(PROJECT, "score", request(1) | {"run": "refused"})
    with pytest.raises(InvalidOperationError, match="generate_rubrics cannot be run here; there are score"):
        await harness.operations.submit(PROJECT, "generate_rubrics", {})
    assert (await harness.operations.list(PROJECT)).operations == ()


async def test_another_project_cannot_see_an_operation(harness: OperationsHarness) -> None:
    id_ = await harness.submitted(1)
    for asking in (
        harness.operations.get,
        harness.operations.results,
        harness.operations.cancel,
        harness.operations.retry,
    ):
        with pytest.raises(NotFound):
            await asking("q", id_)
    assert (await harness.operations.list("q")).operations == ()
    assert [one.id for one in (await harness.operations.list(PROJECT)).operations] == [id_]


async def test_a_repeated_submission_is_one_operation(harness: OperationsHarness) -> None:
    ids = {(await harness.operations.submit(PROJECT, "score", request(1), submission="key")).id for _ in range(3)}
    assert len(ids) == 1
    with pytest.raises(ValueError, match="Idempotency-Key"):
        await harness.operations.submit(PROJECT, "score", request(2), submission="key")


async def test_a_repeated_submission_is_neither_resolved_nor_split_again(harness: OperationsHarness) -> None:
    first = await harness.operations.submit(PROJECT, "score", request(2), submission="key")
    harness.kind.cannot_split = ConnectionError("what references stand for cannot be looked up now")
    again = await harness.operations.submit(PROJECT, "score", request(2), submission="key")
    assert (again.id, again.request) == (first.id, first.request)
    other_order = dict(reversed(request(2).items()))
    assert (await harness.operations.submit(PROJECT, "score", other_order, submission="key")).id == first.id
    with pytest.raises(ConnectionError):
        await harness.operations.submit(PROJECT, "score", request(2), submission="another key")


async def test_the_request_stored_with_every_chunk_is_bounded(harness: OperationsHarness) -> None:
    harness.options["max_request_bytes"] = len('{"run":"12345"}')
    await harness.restart()
    await harness.operations.submit(PROJECT, "score", request(1) | {"run": "12345"})
    with pytest.raises(InvalidOperationError, match="has 16 bytes as JSON, above the limit of 15"):
        await harness.operations.submit(PROJECT, "score", request(1) | {"run": "123456"})
    assert len((await harness.operations.list(PROJECT)).operations) == 1


async def test_followers_read_an_operation_only_when_it_has_changed(
    harness: OperationsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = await harness.submitted(2)
    await harness.begun(0, 1)
    asked = {"get": 0, "get_state": 0}
    looked = asyncio.Event()

    def counted(name: str) -> None:
        ask = getattr(SQLOperations, name)

        async def counting(store: SQLOperations, *given: str) -> object:
            asked[name] += 1
            if asked["get_state"] >= 10:
                looked.set()
            return await ask(store, *given)

        monkeypatch.setattr(SQLOperations, name, counting)

    for name in asked:
        counted(name)
    seen = []

    async def follow() -> None:
        async for operation in harness.operations.events(PROJECT, id_):
            seen.append(operation.revision)

    following = asyncio.create_task(follow())
    await looked.wait()
    assert asked["get"] == len(seen) == 1
    harness.kind.release(2)
    await following
    assert asked["get"] == len(seen)


async def test_events_start_after_the_last_seen_revision_and_end_with_the_operation(harness: OperationsHarness) -> None:
    id_ = await harness.submitted(2)
    running = await harness.until(id_, "running")
    harness.kind.release(2)
    revisions = [one.revision async for one in harness.operations.events(PROJECT, id_, after=running.revision)]
    assert revisions[0] > running.revision
    assert revisions == sorted(set(revisions))
    assert [one.state async for one in harness.operations.events(PROJECT, id_)] == ["done"]
    assert [one async for one in harness.operations.events(PROJECT, id_, after=revisions[-1])] == []


async def test_cancelling_stops_running_chunks_and_keeps_finished_ones(harness: OperationsHarness) -> None:
    id_ = await harness.submitted(3)
    await harness.begun(0, 1)
    harness.kind.release(1)
    await harness.begun(2)
    assert (await harness.operations.cancel(PROJECT, id_)).state == "cancelled"
    await harness.kind.wait_until(lambda: harness.kind.stopped.total() == 2)
    operation = await harness.operations.get(PROJECT, id_)
    assert (operation.state, operation.progress.done) == ("cancelled", 1)
    assert len((await harness.operations.results(PROJECT, id_)).results) == 1
    again = await harness.operations.cancel(PROJECT, id_)
    assert again.revision == operation.revision


async def test_a_chunk_that_cannot_be_done_fails_the_operation_and_a_retry_does_the_rest(
    harness: OperationsHarness,
) -> None:
    harness.kind.raises[1] = FatalChunkError("there is no such rubric")
    harness.kind.release(3)
    id_ = await harness.submitted(3)
    failed = await harness.until(id_)
    assert (failed.state, failed.progress.done, failed.progress.failed) == ("failed", 2, 1)
    assert failed.problem == "1 of 3 parts failed; the last said: there is no such rubric"
    harness.kind.raises.clear()
    assert (await harness.operations.retry(PROJECT, id_)).tries == 2
    harness.kind.release(1)
    done = await harness.until(id_)
    assert (done.state, done.progress.done, done.progress.failed, done.problem) == ("done", 3, 0, None)
    assert harness.kind.done == {0: 1, 1: 1, 2: 1}
    assert (await harness.operations.retry(PROJECT, id_)).revision == done.revision


async def test_a_problem_is_stored_without_the_characters_that_no_database_stores(harness: OperationsHarness) -> None:
    harness.kind.raises[0] = FatalChunkError("the model's server said: \0, \ud800")
    harness.kind.release(1)
    failed = await harness.until(await harness.submitted(1))
    assert failed.problem == "1 of 1 parts failed; the last said: the model's server said: \ufffd, \ufffd"
    assert harness.kind.begun[0] == 1


@pytest.mark.parametrize("error", [RetryableChunkError("the judge failed"), RuntimeError("a mistake")])
async def test_a_chunk_is_retried_a_limited_number_of_times(harness: OperationsHarness, error: Exception) -> None:
    harness.kind.raises[0] = error
    harness.kind.release(1000)
    id_ = await harness.submitted(1)
    failed = await harness.until(id_)
    assert failed.state == "failed"
    assert str(error) in (failed.problem or "")
    assert harness.kind.begun[0] == MAX_ATTEMPTS


async def test_an_unavailable_service_is_retried_without_limit(harness: OperationsHarness) -> None:
    harness.kind.raises[0] = ServiceUnavailableError("nobody answers", ChunkOutcome())
    harness.kind.release(1000)
    id_ = await harness.submitted(1)
    await harness.begun(0, times=2 * MAX_ATTEMPTS)
    waiting = await harness.operations.get(PROJECT, id_)
    assert (waiting.state, waiting.problem) == ("running", "nobody answers")
    harness.kind.raises.clear()
    assert (await harness.until(id_)).state == "done"


async def test_a_restart_resumes_running_chunks_and_repeats_no_finished_one(harness: OperationsHarness) -> None:
    id_ = await harness.submitted(3)
    await harness.begun(0, 1)
    harness.kind.release(1)
    await harness.begun(2)
    await harness.restart()
    harness.kind.release(2)
    done = await harness.until(id_)
    assert (done.state, done.progress.done) == ("done", 3)
    assert harness.kind.done == {0: 1, 1: 1, 2: 1}


async def test_the_final_chunk_runs_after_all_others(harness: OperationsHarness) -> None:
    harness.kind.has_final_chunk = True
    id_ = await harness.submitted(2)
    await harness.begun(0, 1)
    assert harness.kind.begun[2] == 0
    harness.kind.release(3)
    done = await harness.until(id_)
    assert (done.state, done.summary, done.progress.done) == ("done", {"finished": True}, 2)
