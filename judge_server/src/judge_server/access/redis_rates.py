"""Rates in Redis: one count for all processes, by one short script, by the clock of Redis.

Where Redis does not answer at once, this process counts by itself, as if it were alone, and leaves Redis alone for a
second: a limit that is kept by each process for itself is better than requests that wait, or than none.
"""

import time
from collections.abc import Callable

from judge_server.access.buckets import LocalRateLimiter
from judge_server.cache.patient_redis import ResilientRedis

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
