"""Verdicts in this process's memory: bounded in number and in bytes, for a time; the least recently read go first."""

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from judge_server.ports import JudgeResult

_BYTES_EACH = 350
"""About what an entry takes beside its rationale."""


class MemoryCache:
    """Keeps up to `max_entries` findings of up to `max_bytes` together, each for `ttl_s`; `clock` gives seconds."""

    def __init__(
        self,
        max_entries: int = 100_000,
        *,
        max_bytes: int = 64 * 2**20,
        ttl_s: float = 7 * 24 * 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._results: OrderedDict[bytes, JudgeResult] = OrderedDict()
        self._expires: dict[bytes, float] = {}  # beside them, since a pair for each is work for the garbage collector
        self._max_entries, self._max_bytes, self._ttl_s, self._clock = max_entries, max_bytes, ttl_s, clock
        self._bytes = 0

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """The findings known for these digests, which count as just read."""
        found = {}
        now = self._clock()
        for digest in digests:
            result = self._results.get(digest)
            if result is None:
                continue
            if self._expires[digest] <= now:
                self._forget(digest)
                continue
            self._results.move_to_end(digest)
            found[digest] = result
        return found

    async def put_many(self, results: Mapping[bytes, JudgeResult]) -> None:
        """Store findings; one that is there stands until its time is over."""
        now = self._clock()
        expires = now + self._ttl_s
        for digest, result in results.items():
            if digest in self._results:
                if self._expires[digest] > now:
                    continue
                self._forget(digest)
            self._results[digest] = result
            self._expires[digest] = expires
            self._bytes += _size(result)
        while self._results and (len(self._results) > self._max_entries or self._bytes > self._max_bytes):
            self._forget(next(iter(self._results)))

    async def ready(self) -> bool:
        """Always."""
        return True

    async def close(self) -> None:
        """Forget everything."""
        self._results.clear()
        self._expires.clear()
        self._bytes = 0

    def _forget(self, digest: bytes) -> None:
        del self._expires[digest]
        self._bytes -= _size(self._results.pop(digest))


def _size(result: JudgeResult) -> int:
    return _BYTES_EACH + (sys.getsizeof(result.rationale) if result.rationale else 0)
