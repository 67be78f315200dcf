"""Rate limits: the requests a minute of each project, counted in this process or over all processes on one Redis."""

import time
from collections import OrderedDict
from collections.abc import Callable

RATE_REDIS_TIMEOUT_S = 0.2
"""Timeout for Redis to count a request of a project that has a rate limit. After it, each process counts by itself. If
it is higher, a Redis that hangs slows every such request."""

_PREFIX = "adjudge:rate:1:"
_MINUTE_US = 60_000_000

_COUNT = """
local seconds, micros = unpack(redis.call('TIME'))
local now, each, most = seconds * 1000000 + micros, tonumber(ARGV[1]), tonumber(ARGV[2])
local full = tonumber(redis.call('GET', KEYS[1]) or now)
local ahead = math.max(full, now) + each - now
if ahead > most then return math.ceil(ahead - most) end
redis.call('SET', KEYS[1], string.format('%.0f', now + ahead), 'PX', math.ceil(ahead / 1000))
return 0
"""
"""Stores the time, in microseconds, at which a project's bucket is full again. Each request moves it forward by its
share of a minute; a request that would move it beyond a minute from now exceeds the rate."""


class TokenBucket:
    """A bucket of up to `size` tokens, refilled at `per_second` and full at first. `clock` returns seconds."""

    def __init__(self, size: float, per_second: float, clock: Callable[[], float]) -> None:
        self.size, self.per_second = size, per_second
        self._clock = clock
        self._level = size
        self._refilled_at = clock()

    def take(self) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is one."""
        now = self._clock()
        self._level = min(self.size, self._level + (now - self._refilled_at) * self.per_second)
        self._refilled_at = now
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self.per_second


class LocalRateLimiter:
    """Counts the requests of projects in this process, with a bucket of a minute's requests for each."""

    def __init__(self, clock: Callable[[], float], max_projects: int = 10_000) -> None:
        self._clock = clock
        self._max_projects = max_projects
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request and return 0, or return the seconds until it is within the rate."""
        bucket = self._buckets.get(project_id)
        if bucket is None or bucket.size != per_minute:
            bucket = self._buckets[project_id] = TokenBucket(per_minute, per_minute / 60.0, self._clock)
        self._buckets.move_to_end(project_id)
        while len(self._buckets) > self._max_projects:
            self._buckets.popitem(last=False)
        return bucket.take()

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


class RedisRateLimiter:
    """Counts the requests of projects over all processes on one Redis.

    After `timeout_s` seconds without an answer, this process counts alone.
    """

    def __init__(
        self, url: str, clock: Callable[[], float] = time.monotonic, *, timeout_s: float = RATE_REDIS_TIMEOUT_S
    ) -> None:
        from judge_server.resilient_redis import ResilientRedis  # slow to import, and needed by this limiter only

        self._redis = ResilientRedis(url, timeout_s, clock)
        self._count = self._redis.client.register_script(_COUNT)
        self._local = LocalRateLimiter(clock)

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request and return 0, or return the seconds until it is within the rate."""
        key, each = _PREFIX + project_id, f"{_MINUTE_US / per_minute:.3f}"
        wait_us = await self._redis.execute(
            lambda: self._count(keys=[key], args=[each, _MINUTE_US]), "rates are counted by this process alone"
        )
        return await self._local.wait_for(project_id, per_minute) if wait_us is None else float(wait_us) / 1e6

    async def close(self) -> None:
        """Close the connections; the counts stay for a minute."""
        await self._redis.close()
