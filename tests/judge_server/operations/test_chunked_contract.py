"""What operations in chunks do, whatever queue announces them and whatever database keeps them."""

import asyncio

import pytest

from judge_server.operations import chunked
from judge_server.operations.kind import ChunkFailed, ChunkUndone, OperationRefused, ServiceAway
from judge_server.ports import UnknownOperation
from rubric_store import SQLOperations
from tests.judge_server.operations.benches import PROJECT, Bench, request
from trainer_client.wire.operation_rows import MOST_ATTEMPTS, ChunkOutcome


async def test_an_operation_goes_from_queued_over_running_to_done(bench: Bench) -> None:
    operation = await bench.operations.submit(PROJECT, "score", request(3) | {"run": "r"})
    assert (operation.state, operation.request, operation.progress.total) == ("queued", {"run": "r"}, 3)
    assert (await bench.until(operation.id, "running")).progress.done == 0
    bench.kind.let(3)
    done = await bench.until(operation.id)
    assert (done.state, done.progress.done, done.progress.made, done.usage.judge_calls) == ("done", 3, 3, 3)
    assert bench.kind.done == {0: 1, 1: 1, 2: 1}


async def test_results_come_in_pages_and_each_once(bench: Bench) -> None:
    id_ = await bench.submitted(5)
    bench.kind.let(5)
    await bench.until(id_)
    seen = []
    after: int | None = 0
    while after is not None:
        page = await bench.operations.results(PROJECT, id_, after=after, limit=2)
        assert len(page.results) <= 2
        seen += [result["group"] for result in page.results]
        after = page.next_after
    assert sorted(seen) == [f"q{n}" for n in range(5)]


@pytest.mark.parametrize(("after", "limit"), [(-1, 1), (0, 0), (0, 1001)])
async def test_pages_out_of_range_are_refused(bench: Bench, after: int, limit: int) -> None:
    id_ = await bench.submitted(1)
    with pytest.raises(ValueError, match="1 to 1000"):
        await bench.operations.results(PROJECT, id_, after=after, limit=limit)


async def test_a_request_that_its_kind_does_not_take_is_refused_and_not_kept(bench: Bench) -> None:
    with pytest.raises(ValueError, match="groups"):
        await bench.operations.submit(PROJECT, "score", {"groups": []})
    with pytest.raises(ValueError, match="refused"):
        await bench.operations.submit(PROJECT, "score", request(1) | {"run": "refused"})
    with pytest.raises(OperationRefused, match="generate_rubrics cannot be run here; there are score"):
        await bench.operations.submit(PROJECT, "generate_rubrics", {})
    assert await bench.operations.list(PROJECT) == ()


async def test_another_project_sees_nothing_of_it(bench: Bench) -> None:
    id_ = await bench.submitted(1)
    for asking in (bench.operations.get, bench.operations.results, bench.operations.cancel, bench.operations.retry):
        with pytest.raises(UnknownOperation):
            await asking("q", id_)
    assert await bench.operations.list("q") == ()
    assert [one.id for one in await bench.operations.list(PROJECT)] == [id_]


async def test_the_same_submission_is_one_operation(bench: Bench) -> None:
    ids = {(await bench.operations.submit(PROJECT, "score", request(1), submission="key")).id for _ in range(3)}
    assert len(ids) == 1
    with pytest.raises(ValueError, match="Idempotency-Key"):
        await bench.operations.submit(PROJECT, "score", request(2), submission="key")


async def test_a_submission_that_is_known_is_neither_read_nor_split_again(bench: Bench) -> None:
    first = await bench.operations.submit(PROJECT, "score", request(2), submission="key")
    bench.kind.cannot_split = ConnectionError("what references stand for cannot be looked up now")
    again = await bench.operations.submit(PROJECT, "score", request(2), submission="key")
    assert (again.id, again.request) == (first.id, first.request)
    other_order = dict(reversed(request(2).items()))
    assert (await bench.operations.submit(PROJECT, "score", other_order, submission="key")).id == first.id
    with pytest.raises(ConnectionError):
        await bench.operations.submit(PROJECT, "score", request(2), submission="another key")


async def test_what_is_kept_for_every_chunk_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "MOST_KEPT_BYTES", len('{"run":"12345"}'))
    await bench.operations.submit(PROJECT, "score", request(1) | {"run": "12345"})
    with pytest.raises(OperationRefused, match="has 16 bytes as JSON, and 15 are kept; publish a rubric"):
        await bench.operations.submit(PROJECT, "score", request(1) | {"run": "123456"})
    assert len(await bench.operations.list(PROJECT)) == 1


async def test_who_follows_reads_an_operation_only_when_it_has_changed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = await bench.submitted(2)
    await bench.begun(0, 1)
    asked = {"get": 0, "stands": 0}
    looked = asyncio.Event()

    def counted(name: str) -> None:
        ask = getattr(SQLOperations, name)

        async def counting(store: SQLOperations, *given: str) -> object:
            asked[name] += 1
            if asked["stands"] >= 10:
                looked.set()
            return await ask(store, *given)

        monkeypatch.setattr(SQLOperations, name, counting)

    for name in asked:
        counted(name)
    seen = []

    async def follow() -> None:
        async for operation in bench.operations.events(PROJECT, id_):
            seen.append(operation.revision)

    following = asyncio.create_task(follow())
    await looked.wait()
    assert asked["get"] == len(seen) == 1
    bench.kind.let(2)
    await following
    assert asked["get"] == len(seen)


async def test_events_begin_after_what_was_seen_and_end_with_the_operation(bench: Bench) -> None:
    id_ = await bench.submitted(2)
    running = await bench.until(id_, "running")
    bench.kind.let(2)
    revisions = [one.revision async for one in bench.operations.events(PROJECT, id_, after=running.revision)]
    assert revisions[0] > running.revision
    assert revisions == sorted(set(revisions))
    assert [one.state async for one in bench.operations.events(PROJECT, id_)] == ["done"]
    assert [one async for one in bench.operations.events(PROJECT, id_, after=revisions[-1])] == []


async def test_cancelling_stops_the_chunks_at_work_and_keeps_what_is_done(bench: Bench) -> None:
    id_ = await bench.submitted(3)
    await bench.begun(0, 1)
    bench.kind.let(1)
    await bench.begun(2)
    assert (await bench.operations.cancel(PROJECT, id_)).state == "cancelled"
    await bench.kind.comes(lambda: bench.kind.stopped.total() == 2)
    operation = await bench.operations.get(PROJECT, id_)
    assert (operation.state, operation.progress.done) == ("cancelled", 1)
    assert len((await bench.operations.results(PROJECT, id_)).results) == 1
    again = await bench.operations.cancel(PROJECT, id_)
    assert again.revision == operation.revision


async def test_a_chunk_that_cannot_be_done_fails_the_operation_and_another_try_does_the_rest(bench: Bench) -> None:
    bench.kind.raises[1] = ChunkFailed("there is no such rubric")
    bench.kind.let(3)
    id_ = await bench.submitted(3)
    failed = await bench.until(id_)
    assert (failed.state, failed.progress.done, failed.progress.failed) == ("failed", 2, 1)
    assert failed.problem == "1 of 3 parts failed; the last said: there is no such rubric"
    bench.kind.raises.clear()
    assert (await bench.operations.retry(PROJECT, id_)).tries == 2
    bench.kind.let(1)
    done = await bench.until(id_)
    assert (done.state, done.progress.done, done.progress.failed, done.problem) == ("done", 3, 0, None)
    assert bench.kind.done == {0: 1, 1: 1, 2: 1}
    assert (await bench.operations.retry(PROJECT, id_)).revision == done.revision


@pytest.mark.parametrize("error", [ChunkUndone("the judge failed"), RuntimeError("a mistake")])
async def test_a_chunk_is_tried_again_some_times_and_then_given_up(bench: Bench, error: Exception) -> None:
    bench.kind.raises[0] = error
    bench.kind.let(1000)
    id_ = await bench.submitted(1)
    failed = await bench.until(id_)
    assert failed.state == "failed"
    assert str(error) in (failed.problem or "")
    assert bench.kind.begun[0] == MOST_ATTEMPTS


async def test_a_service_that_is_away_is_waited_for_however_often(bench: Bench) -> None:
    bench.kind.raises[0] = ServiceAway("nobody answers", ChunkOutcome())
    bench.kind.let(1000)
    id_ = await bench.submitted(1)
    await bench.begun(0, times=2 * MOST_ATTEMPTS)
    waiting = await bench.operations.get(PROJECT, id_)
    assert (waiting.state, waiting.problem) == ("running", "nobody answers")
    bench.kind.raises.clear()
    assert (await bench.until(id_)).state == "done"


async def test_a_restart_goes_on_with_what_was_at_work_and_repeats_nothing_done(bench: Bench) -> None:
    id_ = await bench.submitted(3)
    await bench.begun(0, 1)
    bench.kind.let(1)
    await bench.begun(2)
    await bench.restart()
    bench.kind.let(2)
    done = await bench.until(id_)
    assert (done.state, done.progress.done) == ("done", 3)
    assert bench.kind.done == {0: 1, 1: 1, 2: 1}


async def test_a_kind_that_finishes_does_so_after_all_else(bench: Bench) -> None:
    bench.kind.finishes = True
    id_ = await bench.submitted(2)
    await bench.begun(0, 1)
    assert bench.kind.begun[2] == 0
    bench.kind.let(3)
    done = await bench.until(id_)
    assert (done.state, done.summary, done.progress.done) == ("done", {"finished": True}, 2)
