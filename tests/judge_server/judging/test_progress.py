"""What is found out about a request's verdicts reaches the one who waits for them, each thing once."""

import asyncio
import time
from contextlib import aclosing

import pytest

from judge_server.errors import NotReady, Overloaded, ServiceError
from judge_server.judging.results import NO_COSTS, Costs, Judged, JudgingProgress, MemberCosts, Outcomes, collect
from judge_server.ports import JudgeResult
from judge_server.scoring.scorer import JudgedVerdict, Scorer
from tests.judge_server.support import criteria, group, judge
from trainer_client.wire import RewardRequest, RubricContent

MET, UNMET = JudgeResult(1.0), JudgeResult(0.0)
A, B = b"a" * 32, b"b" * 32


async def test_the_values_told_add_up_to_everything() -> None:
    progress = JudgingProgress()

    async def judge() -> None:
        for digest, outcome in ((A, MET), (B, UNMET)):
            progress.add(Outcomes({digest: outcome}, checks=1))
            progress.charge(Costs(calls=2, tokens_computed=10))
            await asyncio.sleep(0)

    told = await collect(progress.follow(judge, tick_s=0))
    assert told == progress.total()
    assert told == Outcomes({A: MET, B: UNMET}, checks=2, costs=Costs(calls=4, tokens_computed=20))


@pytest.mark.parametrize(("error", "expected"), [(NotReady("gone"), [A]), (Overloaded("full"), [])], ids=repr)
async def test_what_was_judged_is_told_before_an_error_unless_the_request_is_refused(
    error: ServiceError, expected: list[bytes]
) -> None:
    progress, told = JudgingProgress(), Outcomes()

    async def judge() -> None:
        progress.add(Outcomes({A: MET}))
        raise error

    async def read() -> None:
        async for judged in progress.follow(judge):
            told.add(judged.outcomes)

    with pytest.raises(type(error)):
        await read()
    assert list(told.by_digest) == expected


def test_costs_and_those_of_members_add_number_by_number() -> None:
    one = Costs(1, 20, 30, 4, 0.5, 0.25)
    assert one + Costs(2, 1, 0, 1, 0.25, 1.0) == Costs(3, 21, 30, 5, 0.75, 1.25)
    assert one + NO_COSTS == one
    assert MemberCosts(2, 1, one) + MemberCosts(1, 0, one) == MemberCosts(3, 1, one + one)


async def test_leaving_cancels_the_judging() -> None:
    progress, ended = JudgingProgress(), asyncio.Event()

    async def judge() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with aclosing(progress.follow(judge, tick_s=0)) as judging:
        assert await anext(judging) == Judged((), Outcomes())
    assert ended.is_set()


async def test_other_tasks_run_between_verdicts_that_are_known_at_once() -> None:
    rubric = RubricContent(criteria=tuple(criteria(*map(str, range(10)))))
    request = RewardRequest(rubric=rubric, groups=(group(*map(str, range(100))),))
    scorer = Scorer(await judge(), None)  # type: ignore[arg-type]
    await scorer.score(request, request_id="first", project_id="p")  # the second finds all of them in the cache
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    seen = []
    task = asyncio.create_task(other())
    async for part in scorer.stream(request, request_id="second", project_id="p", each_verdict=True):
        if isinstance(part, JudgedVerdict):
            seen.append(turns)
            written = time.perf_counter() + 0.0002  # as a page takes to show a verdict
            while time.perf_counter() < written:
                pass
    task.cancel()
    assert len(seen) == 1000
    assert seen[-1] - seen[0] >= 2
