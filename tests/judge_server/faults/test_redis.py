"""A Redis killed or stopped during a run: judging is slower but never wrong, and Redis is used again afterwards."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.redis_process import RedisProcess, running_redis_process
from tests.judge_server.faults.stores import PARTS, ConsistencyChecker, running_service
from tests.services.processes import without_settings
from trainer_client import AsyncClient

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow]

Run = tuple[ConsistencyChecker, RedisProcess]
REQUESTS = [[f"Request {n}, response {m}." for m in range(3)] for n in range(8)]


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """A run at a service with a Redis cache and a slow engine."""
    without_settings(monkeypatch)
    with (
        running_redis_process() as redis,
        running_service(
            "scripted://hash?delay_s=0.005&concurrency=4", tmp_path / "data", cache_url=redis.url, ledger="off"
        ) as service,
    ):
        async with AsyncClient(service.url, run="r") as client:
            yield ConsistencyChecker(client), redis


async def known_to_all(checker: ConsistencyChecker, texts: list[str]) -> None:
    """Ask until every verdict comes from the cache."""
    async with asyncio.timeout(60):
        while (await checker.score(*texts)).usage.cached < len(texts) * PARTS:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def all_but_the_first(checker: ConsistencyChecker) -> None:
    """Score every request but the first, three at a time."""
    todo = iter(REQUESTS[1:])

    async def sender() -> None:
        for texts in todo:
            await checker.score(*texts)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(sender())


async def test_a_killed_and_restarted_redis_costs_time_and_no_verdict(run: Run) -> None:
    checker, redis = run
    await checker.score(*REQUESTS[0])
    await known_to_all(checker, REQUESTS[0])
    going_on = asyncio.create_task(all_but_the_first(checker))
    async with asyncio.timeout(60):
        while len(checker.rewards) < 9:  # noqa: ASYNC110 - in the middle of the run
            await asyncio.sleep(0.005)
    redis.kill()
    assert not going_on.done()
    await going_on
    assert (await checker.score(*REQUESTS[0])).usage.cached == 0  # verdicts that only Redis had are judged again
    redis.start()
    await known_to_all(checker, REQUESTS[0])
    for texts in REQUESTS:
        await checker.score(*texts)


async def test_a_redis_that_hangs_delays_requests_only_briefly_and_still_has_its_verdicts_afterwards(run: Run) -> None:
    checker, redis = run
    await checker.score(*REQUESTS[0])
    await known_to_all(checker, REQUESTS[0])
    redis.hang()
    await all_but_the_first(checker)
    assert (await checker.score(*REQUESTS[0])).usage.cached == 0
    redis.go_on()
    await known_to_all(checker, REQUESTS[0])
    await known_to_all(checker, REQUESTS[-1])
