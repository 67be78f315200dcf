"""The contract of stored operations: the life of an operation, and its results, on every database."""

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from rubric_store.operations import database
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, Submission
from tests.rubric_store.operation_rows import (
    LEASE_S,
    NOW,
    SUBMISSION,
    FixedClockOperations,
    claimed,
    later,
    new,
    outcome,
    state_of,
)
from trainer_client.wire.verdicts import Usage


async def test_an_operation_is_stored_with_its_chunks_and_found_only_in_its_project(kept: FixedClockOperations) -> None:
    made = await kept.create(new())
    assert (made.state, made.revision, made.request, made.progress.total) == ("queued", 1, {"run": "r"}, 6)
    assert await kept.get("p", "op-1") == made
    assert await kept.get("other", "op-1") is None
    assert await kept.results("other", "op-1", after=0, limit=10) is None
    work = await claimed(kept, 1)
    assert (work.body, work.inputs, work.attempt) == ({"numbers": [1], "text": "\0 and \U0001f600"}, 3, 1)


async def test_lists_show_only_the_projects_operations_newest_first(kept: FixedClockOperations) -> None:
    for number in range(3):
        await kept.create(new(f"op-{number}", created=number))
    await kept.create(new("op-9", project_id="q"))
    page = await kept.list("p", 2)
    assert [one.id for one in page.operations] == ["op-2", "op-1"]
    assert page.next_cursor is not None
    rest = await kept.list("p", 2, page.next_cursor)
    assert [one.id for one in rest.operations] == ["op-0"]
    assert rest.next_cursor is None
    for wrong in ("op-1", "b3AtMQ", ""):
        with pytest.raises(ValueError, match="next_cursor"):
            await kept.list("p", 2, wrong)


async def test_lists_leave_out_large_requests_compressed_or_not(kept: FixedClockOperations) -> None:
    noise = random.Random(1)
    requests: list[Any] = [
        {"run": "r" * (database.MAX_LISTED_BYTES - len('{"run":""}'))},
        {"run": "r" * (database.MAX_LISTED_BYTES - len('{"run":""}') + 1)},
        {"run": "r" * 10**6},
        {"run": "".join(noise.choices("0123456789abcdefghijklmnopqrstuv", k=40_000))},
        {},
    ]
    for number, request in enumerate(requests):
        await kept.create(new(f"op-{number}", created=-number, request=request))
    assert [one.request for one in (await kept.list("p", 10)).operations] == [requests[0], {}, {}, {}, {}]
    whole = [await kept.get("p", f"op-{number}") for number in range(5)]
    assert [one.request for one in whole if one is not None] == requests


async def test_a_repeated_submission_returns_the_operation_and_other_content_is_refused(
    kept: FixedClockOperations,
) -> None:
    first = await kept.create(new(submission=SUBMISSION))
    split_otherwise = new("op-2", chunks=3, submission=SUBMISSION, request={"rubric": "team/primes@2"})
    assert await kept.create(split_otherwise) == first
    with pytest.raises(ValueError, match="op-1 was submitted with the same Idempotency-Key"):
        await kept.create(new("op-3", submission=Submission("key", b"something else")))
    assert (await kept.create(new("op-4", project_id="q", submission=SUBMISSION))).id == "op-4"
    assert [one.id for one in (await kept.list("p", 10)).operations] == ["op-1"]
    assert len(await kept.take_due(100, lost_after_s=60)) == 2 + 2


async def test_the_operation_of_a_submission_is_found_in_its_current_state(kept: FixedClockOperations) -> None:
    assert await kept.find_submission("p", SUBMISSION) is None
    await kept.create(new())
    await kept.create(new("op-2", submission=SUBMISSION))
    cancelled = await kept.cancel("p", "op-2", later(1))
    assert await kept.find_submission("p", SUBMISSION) == cancelled
    assert await kept.find_submission("q", SUBMISSION) is None
    with pytest.raises(ValueError, match="op-2 was submitted with the same Idempotency-Key"):
        await kept.find_submission("p", Submission("key", b"something else"))


async def test_concurrent_equal_submissions_create_one_operation(kept: FixedClockOperations) -> None:
    made = await asyncio.gather(*(kept.create(new(f"op-{n}", submission=SUBMISSION)) for n in range(8)))
    assert len({one.id for one in made}) == 1
    assert len(await kept.take_due(100, lost_after_s=60)) == 2


async def test_results_are_numbered_in_the_order_of_completion_and_paging_loses_none(
    kept: FixedClockOperations,
) -> None:
    await kept.create(new(chunks=3))
    seen: list[Any] = []
    after = 0
    for chunk in (2, 0, 1):
        assert await kept.complete(await claimed(kept, chunk), outcome(f"{chunk}a", f"{chunk}b"))
        page = await kept.results("p", "op-1", after=after, limit=10)
        assert page is not None
        seen += [one["result"] for one in page.results]
        after = int(page.next_cursor or 0)
    assert seen == ["2a", "2b", "0a", "0b", "1a", "1b"]
    assert page.next_cursor is None
    first = await kept.results("p", "op-1", after=1, limit=2)
    assert first is not None
    assert ([one["result"] for one in first.results], first.next_cursor) == (["2b", "0a"], "3")


async def test_pages_of_large_results_are_shorter_and_lose_none(kept: FixedClockOperations) -> None:
    noise = random.Random(1)
    texts = ["".join(noise.choices("0123456789abcdef", k=size)) for size in (9000, 900, 900, 900, 900, 9000, 9, 9)]
    await kept.create(new(chunks=1))
    await kept.complete(await claimed(kept, 0), outcome(*texts))
    max_bytes = 2 * len(database.pack({"result": texts[1]})) + 100
    pages = []
    after: int | None = 0
    while after is not None:
        page = await kept.results("p", "op-1", after=after, limit=1000, max_bytes=max_bytes)
        assert page is not None
        assert page.results
        pages.append([one["result"] for one in page.results])
        after = None if page.next_cursor is None else int(page.next_cursor)
    assert [len(page) for page in pages] == [1, 2, 2, 1, 2]
    assert [text for page in pages for text in page] == texts


async def test_the_state_of_an_operation_is_read_without_the_rest(kept: FixedClockOperations) -> None:
    assert await kept.get_state("p", "op-1") is None
    await kept.create(new())
    assert await kept.get_state("p", "op-1") == (1, "queued")
    assert await kept.get_state("q", "op-1") is None
    await kept.cancel("p", "op-1", NOW)
    assert await kept.get_state("p", "op-1") == (2, "cancelled")


async def test_an_operation_ends_with_its_last_chunk(kept: FixedClockOperations) -> None:
    await kept.create(new())
    assert (await state_of(kept)).started_at is None
    first = await claimed(kept, 0, at=1)
    kept.at = later(2)
    await kept.complete(first, outcome("a"))
    running = await state_of(kept)
    assert (running.state, running.started_at, running.ended_at) == ("running", later(1), None)
    last = await claimed(kept, 1, at=3)
    kept.at = later(4)
    await kept.complete(last, outcome("b"))
    done = await state_of(kept)
    assert (done.state, done.ended_at, done.expires_at) == ("done", later(4), later(4) + timedelta(days=30))
    assert done.usage == Usage(judge_calls=10, seconds_judging=1.0)
    assert (done.progress.calls, done.progress.seconds, done.progress.eta_s) == (10, 3.0, None)
    assert done.revision > running.revision


async def test_a_retry_runs_only_unfinished_chunks(kept: FixedClockOperations) -> None:
    await kept.create(new())
    await kept.complete(await claimed(kept, 0), outcome("a"))
    await kept.fail(await claimed(kept, 1), "no such rubric")
    failed = await state_of(kept)
    assert (failed.state, failed.problem) == ("failed", "1 of 2 parts failed; the last said: no such rubric")
    again = await kept.retry("p", "op-1")
    assert again is not None
    assert (again.state, again.problem, again.tries, again.ended_at) == ("queued", None, 2, None)
    assert (again.progress.known, again.progress.failed) == (3, 0)
    assert [ref.chunk for ref in await kept.take_due(10, lost_after_s=60)] == [1]
    await kept.complete(await claimed(kept, 1), outcome("b"))
    assert (await state_of(kept)).state == "done"
    done = await kept.retry("p", "op-1")
    assert done is not None
    assert (done.state, done.tries) == ("done", 2)


async def test_cancelling_takes_chunks_from_their_workers(kept: FixedClockOperations) -> None:
    await kept.create(new(chunks=3))
    await kept.complete(await claimed(kept, 0), outcome("a"))
    work = await claimed(kept, 1)
    cancelled = await kept.cancel("p", "op-1", later(5))
    assert cancelled is not None
    assert (cancelled.state, cancelled.ended_at) == ("cancelled", later(5))
    kept.at = later(6)
    assert not await kept.renew(work, LEASE_S)
    assert not await kept.complete(work, outcome("b"))
    assert await kept.claim(ChunkRef("p", "op-1", 2), "w", LEASE_S) is None
    kept.at = later(1000)
    assert await kept.take_due(10, lost_after_s=0) == []
    assert (await state_of(kept)).progress.done == 3
    assert await kept.cancel("p", "op-7", NOW) is None
    again = await kept.retry("p", "op-1")
    assert again is not None
    assert again.state == "queued"
    assert (await claimed(kept, 1)).attempt == 1


async def test_the_final_chunk_comes_after_all_others(kept: FixedClockOperations) -> None:
    await kept.create(new(has_final_chunk=True))
    last = ChunkRef("p", "op-1", 2)
    await kept.complete(await claimed(kept, 0), outcome("a"))
    assert await kept.claim(last, "w", LEASE_S) is None
    await kept.complete(await claimed(kept, 1), outcome("b"))
    assert (await state_of(kept)).state == "running"
    work = await claimed(kept, 2)
    assert (work.body, work.inputs) == (None, 0)
    await kept.complete(work, ChunkOutcome(summary={"kappa": 0.5}))
    done = await state_of(kept)
    assert (done.state, done.summary) == ("done", {"kappa": 0.5})


async def test_an_operation_with_a_failed_chunk_does_not_run_the_final_chunk(kept: FixedClockOperations) -> None:
    await kept.create(new(has_final_chunk=True))
    await kept.fail(await claimed(kept, 0), "no")
    await kept.complete(await claimed(kept, 1), outcome("b"))
    failed = await state_of(kept)
    assert (failed.state, failed.problem) == ("failed", "1 of 2 parts failed; the last said: no")
    await kept.retry("p", "op-1")
    await kept.complete(await claimed(kept, 0), outcome("a"))
    await kept.complete(await claimed(kept, 2), ChunkOutcome(summary={}))
    assert (await state_of(kept)).state == "done"


async def test_an_expired_operation_is_deleted_completely(kept: FixedClockOperations) -> None:
    await kept.create(new(chunks=1))
    await kept.create(new("op-2", chunks=1))
    await kept.complete(await claimed(kept, 0), outcome("a"))
    day = 24 * 3600
    assert await kept.purge(later(30 * day - 1)) == 0
    assert await kept.purge(later(30 * day)) == 1
    assert await kept.get("p", "op-1") is None
    assert await kept.results("p", "op-1", after=0, limit=1) is None
    assert await kept.get("p", "op-2") is not None
