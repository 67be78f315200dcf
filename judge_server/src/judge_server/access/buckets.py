"""Token buckets in this process: so many at once, and then so many a second."""

from collections import OrderedDict
from collections.abc import Callable


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
