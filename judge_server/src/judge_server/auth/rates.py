"""Rate limits by token bucket, in this process or in Redis.

Token buckets in this process: so many at once, and then so many a second.

Rates in Redis: one count for all processes, by one short script, by the clock of Redis.

Where Redis does not answer at once, this process counts by itself, as if it were alone, and leaves Redis alone for a
second: a limit that is kept by each process for itself is better than requests that wait, or than none.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from judge_server.cache import ResilientRedis


class TokenBucket:
    """Holds up to `size`, filled at `per_second`; full at first. `clock` gives seconds."""

    def __init__(self, size: float, per_second: float, clock: Callable[[], float]) -> None:
        self.size, self.per_second = size, per_second
        self._clock = clock
        self._level = size
        self._refilled_at = clock()

    def take(self) -> float:
        """Take one, and return 0; where there is none, take nothing and return the seconds until there is one."""
        now = self._clock()
        self._level = min(self.size, self._level + (now - self._refilled_at) * self.per_second)
        self._refilled_at = now
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self.per_second


class LocalRateLimiter:
    """Requests by project, as this process alone has seen them, each in a bucket as large as a minute's worth."""

    def __init__(self, clock: Callable[[], float], max_projects: int = 10_000) -> None:
        self._clock = clock
        self._max_projects = max_projects
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request, or say in how many seconds there is room for it."""
        bucket = self._buckets.get(project_id)
        if bucket is None or bucket.size != per_minute:
            bucket = self._buckets[project_id] = TokenBucket(per_minute, per_minute / 60.0, self._clock)
        self._buckets.move_to_end(project_id)
        while len(self._buckets) > self._max_projects:
            self._buckets.popitem(last=False)
        return bucket.take()

    async def close(self) -> None:
        """Nothing to release."""


RATE_REDIS_TIMEOUT_S = 0.2
"""Seconds that a request waits for Redis to count it."""

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
"""Keeps when a project's bucket is full again, in microseconds. Each request moves that on by its share of a
minute, and one that moves it beyond a minute from now is one too many."""


class RedisRateLimiter:
    """Requests by project, as all processes on this Redis have seen them."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = ResilientRedis(url, RATE_REDIS_TIMEOUT_S, clock)
        self._count = self._redis.client.register_script(_COUNT)
        self._local = LocalRateLimiter(clock)

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request, or say in how many seconds there is room for it."""
        key, each = _PREFIX + project_id, f"{_MINUTE_US / per_minute:.3f}"
        waits = await self._redis.execute(
            lambda: self._count(keys=[key], args=[each, _MINUTE_US]), "rates are counted by this process alone"
        )
        return await self._local.wait_for(project_id, per_minute) if waits is None else float(waits) / 1e6

    async def close(self) -> None:
        """Release the connections; the counts stay for a minute."""
        await self._redis.close()
