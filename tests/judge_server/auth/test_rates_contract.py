"""The contract of rate limiters, in memory and on Redis; and faults of Redis."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.auth.rates import LocalRateLimiter, RedisRateLimiter, TokenBucket
from judge_server.ports import RateLimiter
from tests.fixtures.ports import unused_port


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
async def rates(request: pytest.FixtureRequest) -> AsyncIterator[RateLimiter]:
    """Each kind of rate limiter."""
    memory = request.param == "memory"
    made: RateLimiter = LocalRateLimiter(time.monotonic) if memory else patient(request.getfixturevalue("redis_url"))
    yield made
    await made.close()


def patient(redis_url: str) -> RedisRateLimiter:
    """A limiter that waits for a Redis on a slow machine."""
    return RedisRateLimiter(redis_url, timeout_s=60.0)


def project() -> str:
    """A project that no other test uses."""
    return f"project {secrets.token_hex(8)}"


async def let_through(rates: RateLimiter, project_id: str, per_minute: int, tries: int) -> int:
    return sum([await rates.wait_for(project_id, per_minute) == 0 for _ in range(tries)])


async def test_a_minutes_requests_may_come_at_once_and_the_next_gets_a_wait_time(rates: RateLimiter) -> None:
    mine = project()
    assert await let_through(rates, mine, 3, 3) == 3
    for _ in range(3):  # a refused request is not counted
        assert 0 < await rates.wait_for(mine, 3) <= 20


async def test_after_the_wait_time_a_request_passes(rates: RateLimiter) -> None:
    mine, per_minute = project(), 600
    assert await let_through(rates, mine, per_minute, per_minute) == per_minute
    while not (wait := await rates.wait_for(mine, per_minute)):
        pass  # on a slow machine tokens have come in meanwhile
    assert wait <= 0.1
    await asyncio.sleep(wait + 0.001)
    assert await rates.wait_for(mine, per_minute) == 0


async def test_a_projects_requests_do_not_count_against_another(rates: RateLimiter) -> None:
    mine, other = project(), project()
    assert await let_through(rates, mine, 1, 5) == 1
    assert await rates.wait_for(other, 1) == 0


async def test_concurrent_requests_are_all_counted(rates: RateLimiter) -> None:
    mine = project()
    waits = await asyncio.gather(*(rates.wait_for(mine, 5) for _ in range(50)))
    assert sum(wait == 0 for wait in waits) == 5


async def test_a_changed_limit_applies_at_once(rates: RateLimiter) -> None:
    raised, lowered = project(), project()
    assert await let_through(rates, raised, 1, 2) == 1
    assert await rates.wait_for(raised, 1000) <= 0.06
    assert await let_through(rates, lowered, 1000, 100) == 100
    assert await let_through(rates, lowered, 1, 5) <= 1


@pytest.mark.redis
async def test_all_processes_on_a_redis_count_together(redis_url: str) -> None:
    mine, several = project(), [patient(redis_url) for _ in range(3)]
    assert sum([await let_through(one, mine, 7, 5) for one in several]) == 7
    for one in several:
        await one.close()


@pytest.mark.redis
async def test_a_projects_bucket_expires_when_it_is_full(redis_url: str) -> None:
    rates, mine = patient(redis_url), project()
    await rates.wait_for(mine, 60)
    left_ms = await rates._redis.client.pttl(f"adjudge:rate:1:{mine}")
    assert 0 < left_ms <= 1000
    await rates.close()


async def test_while_redis_is_unreachable_each_process_counts_alone_and_retries_after_a_second() -> None:
    now = [0.0]
    rates, mine = RedisRateLimiter(f"redis://127.0.0.1:{unused_port()}/0", lambda: now[0]), project()
    assert await let_through(rates, mine, 3, 5) == 3
    asked = rates._redis._cooldown_until
    now[0] += 0.5
    await rates.wait_for(mine, 3)
    assert rates._redis._cooldown_until == asked  # Redis was not asked
    now[0] += 0.6
    await rates.wait_for(mine, 3)
    assert rates._redis._cooldown_until > asked
    await rates.close()


async def test_a_redis_that_accepts_connections_but_never_answers_delays_a_request_only_briefly() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    rates = RedisRateLimiter(f"redis://127.0.0.1:{port}/0")
    async with asyncio.timeout(30):
        assert await let_through(rates, project(), 2, 5) == 2
    await rates.close()
    server.close()


@given(st.integers(1, 1000), st.lists(st.floats(0, 30), max_size=60))
def test_a_bucket_passes_no_more_than_its_size_plus_its_refill(per_minute: int, pauses: list[float]) -> None:
    now = 0.0
    bucket = TokenBucket(per_minute, per_minute / 60.0, lambda: now)
    through: list[float] = []
    for pause in pauses:
        now += pause
        if bucket.take() == 0.0:
            through.append(now)
    for first in range(len(through)):
        for last in range(first, len(through)):
            most = per_minute + (through[last] - through[first]) * per_minute / 60.0
            assert last - first + 1 <= most + 1e-6
