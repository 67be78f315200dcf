"""The contract of every verdict cache, in memory and in Redis."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator

import pytest
import uvloop
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from judge_server.ports import JudgeResult, VerdictCache
from judge_server.resilient_redis import MAX_CONNECTIONS
from judge_server.scoring.cache import MemoryCache, RedisCache, cache_from_url
from tests.fixtures.redis_process import running_redis_process

FINDINGS = [
    JudgeResult(1.0, 0.1 + 0.2, 0.999, 3),
    JudgeResult(0.0, 1e-300, 5e-324, -1),
    JudgeResult(0.5, None, None, None),
    JudgeResult(1.0, 1.0, 1.0, 0),
    JudgeResult(1.0, 0.75, 0.9, raw_probability=0.75),
    JudgeResult(1.0, 0.75, 0.9, raw_probability=0.4),
    JudgeResult(1.0, rationale="Because the third step divides by x \ud800, 数学 𝔸. " * 200),
]


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[VerdictCache]:
    """A cache of each kind."""
    made = cache_from_url("memory://") if request.param == "memory" else patient(request.getfixturevalue("redis_url"))
    yield made
    await made.close()


def patient(redis_url: str, *, ttl_s: int = 100) -> RedisCache:
    """A cache that waits for a Redis on a slow machine."""
    return RedisCache(redis_url, ttl_s=ttl_s, timeout_s=60.0)


def digests(n: int) -> list[bytes]:
    """Unique digests; a digest may contain any bytes."""
    return [secrets.token_bytes(28) + b"\0\r\n*" for _ in range(n)]


async def test_every_field_of_a_result_is_read_back_unchanged(cache: VerdictCache) -> None:
    stored = dict(zip(digests(len(FINDINGS)), FINDINGS, strict=True))
    await cache.put_many(stored)
    assert dict(await cache.get_many(list(stored))) == stored


async def test_the_first_verdict_stored_is_kept(cache: VerdictCache) -> None:
    first, second = digests(2)
    await cache.put_many({first: FINDINGS[0]})
    await cache.put_many({first: FINDINGS[1], second: FINDINGS[2]})
    assert dict(await cache.get_many([second, first])) == {first: FINDINGS[0], second: FINDINGS[2]}


async def test_thousands_of_verdicts_at_once_are_stored_and_found(cache: VerdictCache) -> None:
    stored = {digest: FINDINGS[number % len(FINDINGS)] for number, digest in enumerate(digests(2500))}
    await cache.put_many(stored)
    assert dict(await cache.get_many([*digests(1), *stored, *digests(1)])) == stored


async def test_an_unknown_digest_is_absent_from_the_answer(cache: VerdictCache) -> None:
    known, unknown = digests(2)
    await cache.put_many({known: FINDINGS[0]})
    assert dict(await cache.get_many([unknown, known])) == {known: FINDINGS[0]}
    assert dict(await cache.get_many([unknown])) == {}


async def test_empty_reads_and_writes_are_allowed(cache: VerdictCache) -> None:
    await cache.put_many({})
    assert dict(await cache.get_many([])) == {}


async def test_a_read_may_ask_for_a_digest_twice(cache: VerdictCache) -> None:
    (digest,) = digests(1)
    await cache.put_many({digest: FINDINGS[0]})
    assert dict(await cache.get_many([digest, digest])) == {digest: FINDINGS[0]}


async def test_the_memory_cache_is_bounded_and_evicts_the_least_recently_read_verdicts() -> None:
    cache = MemoryCache(max_entries=3)
    a, b, c, d = digests(4)
    await cache.put_many(dict.fromkeys([a, b, c], FINDINGS[0]))
    await cache.get_many([a])
    await cache.put_many({d: FINDINGS[1]})
    assert set(await cache.get_many([a, b, c, d])) == {a, c, d}
    await cache.put_many(dict.fromkeys(digests(50), FINDINGS[0]))
    assert await cache.get_many([a, c, d]) == {}


async def test_the_memory_cache_is_bounded_in_bytes_and_holds_fewer_long_rationales() -> None:
    cache = MemoryCache(max_entries=1000, max_bytes=100_000)
    await cache.put_many(dict.fromkeys(digests(200), FINDINGS[0]))
    long = digests(200)
    await cache.put_many({digest: JudgeResult(1.0, rationale="x" * 9_000) for digest in long})
    assert set(await cache.get_many(long)) == set(long[-len(await cache.get_many(long)) :])
    assert 5 <= len(await cache.get_many(long)) <= 11


async def test_a_verdict_in_memory_expires_and_can_then_be_replaced() -> None:
    now = 0.0
    cache = MemoryCache(ttl_s=100.0, clock=lambda: now)
    (digest,) = digests(1)
    await cache.put_many({digest: FINDINGS[0]})
    now = 99.0
    await cache.put_many({digest: FINDINGS[1]})
    assert dict(await cache.get_many([digest])) == {digest: FINDINGS[0]}
    now = 100.0
    assert dict(await cache.get_many([digest])) == {}
    await cache.put_many({digest: FINDINGS[1]})
    assert dict(await cache.get_many([digest])) == {digest: FINDINGS[1]}


@pytest.mark.redis
async def test_long_rationales_are_compressed_in_redis_and_short_ones_stay_readable(redis_url: str) -> None:
    long, short = digests(2)
    text = "The response says so in its third step, and gives no reason for it. " * 100
    cache = patient(redis_url)
    await cache.put_many({long: JudgeResult(1.0, rationale=text), short: FINDINGS[0]})
    async with Redis.from_url(redis_url) as redis:
        assert await redis.strlen(b"adjudge:verdict:1:" + long) < len(text) / 10
        assert (await redis.get(b"adjudge:verdict:1:" + short)).startswith(b"[1.0,")
    await cache.close()


@pytest.mark.redis
async def test_a_verdict_that_an_older_version_stored_is_still_read(redis_url: str) -> None:
    (digest,) = digests(1)
    async with Redis.from_url(redis_url) as redis:
        await redis.set(b"adjudge:verdict:1:" + digest, '[0.5, null, null, null, 3.0, "\\u6570"]', ex=100)
    cache = patient(redis_url)
    assert dict(await cache.get_many([digest])) == {digest: JudgeResult(0.5, grade=3.0, rationale="数")}
    await cache.close()


@pytest.mark.redis
async def test_an_uncalibrated_verdict_is_stored_as_before_calibration_existed(redis_url: str) -> None:
    old, new = digests(2)
    value = b"[1.0, 0.75, 0.9, 2, null, null]"
    cache = patient(redis_url)
    async with Redis.from_url(redis_url) as redis:
        await redis.set(b"adjudge:verdict:1:" + old, value, ex=100)
        found = (await cache.get_many([old]))[old]
        await cache.put_many({new: found})
        assert await redis.get(b"adjudge:verdict:1:" + new) == value
    assert found == JudgeResult(1.0, 0.75, 0.9, 2, raw_probability=0.75)
    await cache.close()


@pytest.mark.redis
async def test_reading_and_writing_many_verdicts_take_one_redis_round_trip_each(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = AbstractConnection.send_packed_command

    async def counted(self: AbstractConnection, command: object, *more: object, **options: object) -> None:
        sent.append(1)
        await send(self, command, *more, **options)  # type: ignore[arg-type]

    cache = patient(redis_url)
    await cache.ready()
    monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
    many = dict.fromkeys(digests(300), FINDINGS[0])
    await cache.put_many(many)
    assert len(sent) == 1
    assert len(await cache.get_many(list(many))) == 300
    assert len(sent) == 2
    await cache.close()


@pytest.mark.redis
async def test_processes_on_one_redis_share_verdicts_until_they_expire(redis_url: str) -> None:
    (digest,) = digests(1)
    one, other = patient(redis_url, ttl_s=100), patient(redis_url)
    await one.put_many({digest: FINDINGS[0]})
    await other.put_many({digest: FINDINGS[1]})
    assert dict(await other.get_many([digest])) == {digest: FINDINGS[0]}
    async with Redis.from_url(redis_url) as redis:
        assert 0 < await redis.ttl(b"adjudge:verdict:1:" + digest) <= 100
    await one.close()
    await other.close()


@pytest.mark.redis
async def test_the_url_sets_bounds_and_time_to_live(redis_url: str) -> None:
    a, b = digests(2)
    memory = cache_from_url("memory://?entries=1&bytes=9999&ttl_s=5")
    await memory.put_many(dict.fromkeys([a, b], FINDINGS[0]))
    assert set(await memory.get_many([a, b])) == {b}
    in_redis = cache_from_url(f"{redis_url}?ttl_s=50&timeout_s=60")
    await in_redis.put_many({a: FINDINGS[0]})
    async with Redis.from_url(redis_url) as redis:
        assert 0 < await redis.ttl(b"adjudge:verdict:1:" + a) <= 50
    await in_redis.close()


@pytest.mark.parametrize("url", ["memory://?entry=5", "memory://?entries=0", "redis://localhost/0?ttl_s=soon"])
def test_an_unknown_or_invalid_option_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"option|should be"):
        cache_from_url(url)


@pytest.mark.parametrize("url", ["memcached://x", "", "redis.example"])
def test_an_unknown_cache_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(ValueError, match=r"memory:// or redis://"):
        cache_from_url(url)


async def test_a_reachable_cache_is_ready(cache: VerdictCache) -> None:
    assert await cache.ready()


async def test_an_unreachable_redis_returns_no_verdicts_and_raises_no_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        cache = RedisCache(f"redis://127.0.0.1:{unused.getsockname()[1]}/0")
        (digest,) = digests(1)
        await cache.put_many({digest: FINDINGS[0]})
        assert await cache.get_many([digest]) == {}
        assert not await cache.ready()
        await cache.close()


@pytest.fixture
async def small_redis() -> AsyncIterator[Redis]:
    """A Redis of its own that may use 2 MB more than it needs when empty."""
    with running_redis_process() as server:
        connection = Redis.from_url(server.url)
        used = (await connection.info("memory"))["used_memory"]
        await connection.config_set("maxmemory", used + 2**21)
        yield connection
        await connection.aclose()


def cache_at(connection: Redis) -> RedisCache:
    """A cache in the Redis of a connection."""
    return patient(f"redis://127.0.0.1:{connection.connection_pool.connection_kwargs['port']}/0")


async def fill(cache: VerdictCache) -> list[bytes]:
    """Store more verdicts than 2 MB hold, and return their digests in order."""
    stored = digests(20_000)
    for start in range(0, len(stored), 1000):
        await cache.put_many(dict.fromkeys(stored[start : start + 1000], FINDINGS[0]))
    return stored


@pytest.mark.redis
async def test_a_full_redis_that_evicts_nothing_is_still_read(
    small_redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await small_redis.config_set("maxmemory-policy", "noeviction")
    cache = cache_at(small_redis)
    stored = await fill(cache)
    assert dict(await cache.get_many([stored[0], stored[-1]])) == {stored[0]: FINDINGS[0]}
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "maxmemory-policy volatile-lru" in warnings[0]
    await cache.close()


@pytest.mark.redis
async def test_a_full_redis_evicts_verdicts_and_keeps_queued_messages(small_redis: Redis) -> None:
    await small_redis.config_set("maxmemory-policy", "volatile-lru")
    await small_redis.rpush("adjudge", *[f"message {n}" for n in range(100)])
    cache = cache_at(small_redis)
    stored = await fill(cache)
    await asyncio.sleep(1.1)  # Redis counts ages in seconds, and chooses by chance among verdicts of the same one
    (newest,) = digests(1)
    await cache.put_many({newest: FINDINGS[0]})
    found = await cache.get_many([*stored[:1000], newest])
    assert newest in found
    assert len(found) < 1000
    assert await small_redis.llen("adjudge") == 100
    await cache.close()


@pytest.mark.redis
def test_reset_redis_connections_are_replaced_on_the_event_loop_of_the_service(redis_url: str) -> None:
    async def reset_between_uses() -> None:
        cache = patient(redis_url)
        one, other = digests(2)
        await cache.put_many({one: FINDINGS[0]})
        await reset(cache)
        assert dict(await cache.get_many([one])) == {one: FINDINGS[0]}
        await reset(cache)
        await cache.put_many({other: FINDINGS[1]})
        await reset(cache)
        assert await cache.ready()
        assert dict(await cache.get_many([other])) == {other: FINDINGS[1]}
        await cache.close()

    async def reset(cache: RedisCache) -> None:
        (connection,) = cache._redis.client.connection_pool._available_connections
        connection._writer.transport.abort()
        await asyncio.sleep(0.01)

    uvloop.run(reset_between_uses())


@pytest.mark.redis
async def test_many_concurrent_readers_share_a_few_connections_and_all_are_answered(redis_url: str) -> None:
    cache, many = patient(redis_url), digests(300)
    await cache.put_many(dict.fromkeys(many, FINDINGS[0]))
    found = await asyncio.gather(*(cache.get_many([digest]) for digest in many))
    assert [dict(one) for one in found] == [{digest: FINDINGS[0]} for digest in many]
    assert 1 < len(cache._redis.client.connection_pool._available_connections) <= MAX_CONNECTIONS
    await cache.close()
