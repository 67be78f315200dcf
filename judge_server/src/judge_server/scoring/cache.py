"""Verdict caches in memory and in Redis, chosen by URL.

`MemoryCache` is bounded in entries and bytes and evicts the least recently read entry. `RedisCache` shares entries
between processes, each with a time to live.

No request fails because of Redis. If Redis does not answer within a second, the cache reports misses, stores nothing
and logs a warning; verdicts then cost judge calls. It does not try Redis again for another second, so that requests
do not all wait for the timeout.
"""

import json
import sys
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import NonNegativeFloat, PositiveInt

from judge_server.ports import JudgeResult, VerdictCache
from judge_server.ports.urls import UrlOptions

__all__ = ["cache_from_url", "redis_url_of"]

_WEEK_S = 7 * 24 * 3600

_ENTRY_BYTES = 350
"""The approximate memory of an entry without its rationale."""

REDIS_TIMEOUT_S = 1.0
"""Timeout for Redis to read or write verdicts; after it, they count as not cached. `?timeout_s=` of the cache URL
changes it. If it is higher, a Redis that hangs slows every request."""

_PREFIX = b"adjudge:verdict:1:"
_COMPRESSED_FROM = 512
_COMPRESSED = b"z"
"""The first byte of a compressed value; JSON begins with a bracket."""
_PUT = """
for place, key in ipairs(KEYS) do
    redis.call("SET", key, ARGV[place + 1], "NX", "EX", ARGV[1])
end
"""
"""Sets each key to its value unless it exists; the first argument is the time to live. As a pipeline, this takes the
client twice as long, and three more iterations of the event loop."""
_FIELDS = ("score", "probability", "choice_mass", "step", "grade", "rationale", "raw_probability")
_values_of = attrgetter(*_FIELDS)  # a fifth of the time of astuple


class _MemoryOptions(UrlOptions):
    ttl_s: PositiveInt = _WEEK_S
    entries: PositiveInt = 100_000
    bytes: PositiveInt = 64 * 2**20


class _RedisOptions(UrlOptions, extra="ignore"):  # the others are the Redis client's
    ttl_s: PositiveInt = _WEEK_S
    timeout_s: NonNegativeFloat = REDIS_TIMEOUT_S


def cache_from_url(url: str) -> VerdictCache:
    """Create the cache for a URL: `memory://?entries=&bytes=&ttl_s=` or `redis://HOST:PORT/DB?ttl_s=&timeout_s=`.

    Raises:
        ValueError: the scheme is unknown, and the message lists the known ones; or an option is unknown.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        memory = _MemoryOptions.of(parts)
        return MemoryCache(memory.entries, max_bytes=memory.bytes, ttl_s=memory.ttl_s)
    redis = redis_url_of(url)
    if redis is not None:
        options = _RedisOptions.of(parts)
        return RedisCache(redis, ttl_s=options.ttl_s, timeout_s=options.timeout_s)
    raise ValueError(f"cache {url!r} is unknown; use memory:// or redis://HOST:PORT/DB")


def redis_url_of(url: str) -> str | None:
    """The Redis URL in a cache's URL, without the cache's options; None if the cache is not in Redis."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        return None
    redis_options = urlencode(
        [(name, value) for name, value in parse_qsl(parts.query) if name not in _RedisOptions.model_fields]
    )
    return parts._replace(query=redis_options).geturl()


class MemoryCache:
    """An in-process cache of up to `max_entries` results and `max_bytes` bytes, each kept for `ttl_s` seconds.

    `clock` returns seconds.
    """

    def __init__(
        self,
        max_entries: int = 100_000,
        *,
        max_bytes: int = 64 * 2**20,
        ttl_s: float = _WEEK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._results: OrderedDict[bytes, JudgeResult] = OrderedDict()
        self._expires: dict[bytes, float] = {}  # separate: a tuple per entry would be work for the garbage collector
        self._max_entries, self._max_bytes, self._ttl_s, self._clock = max_entries, max_bytes, ttl_s, clock
        self._bytes = 0

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """The cached results for these digests; reading marks them as recently used."""
        hits = {}
        now = self._clock()
        for digest in digests:
            result = self._results.get(digest)
            if result is None:
                continue
            if self._expires[digest] <= now:
                self._forget(digest)
                continue
            self._results.move_to_end(digest)
            hits[digest] = result
        return hits

    async def put_many(self, results: Mapping[bytes, JudgeResult]) -> None:
        """Store results; an entry that has not expired is not replaced."""
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
        """Return True: memory is always ready."""
        return True

    async def close(self) -> None:
        """Discard all entries."""
        self._results.clear()
        self._expires.clear()
        self._bytes = 0

    def _forget(self, digest: bytes) -> None:
        del self._expires[digest]
        self._bytes -= _size(self._results.pop(digest))


def _size(result: JudgeResult) -> int:
    return _ENTRY_BYTES + (sys.getsizeof(result.rationale) if result.rationale else 0)


class RedisCache:
    """Results as small JSON arrays under `adjudge:verdict:1:<digest>`, shared by every process on that Redis.

    The raw probability is omitted if it equals the probability, as in values from before calibration, so that older
    and newer processes share entries. Values of 512 bytes or more, which have long rationales, are compressed.
    `clock` returns seconds. A call that takes more than `timeout_s` seconds counts as a miss.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: int = _WEEK_S,
        clock: Callable[[], float] = time.monotonic,
        timeout_s: float = REDIS_TIMEOUT_S,
    ) -> None:
        from judge_server.resilient_redis import ResilientRedis  # slow to import, and needed by this cache only

        self._redis = ResilientRedis(url, timeout_s, clock)
        self._ttl_s = ttl_s

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """The cached results for these digests, read with one MGET."""
        keys = [_PREFIX + digest for digest in digests]
        values = await self._redis.execute(partial(self._redis.client.mget, keys), "the verdict cache cannot be read")
        if values is None:
            return {}
        return {d: _decoded(v) for d, v in zip(digests, values, strict=True) if isinstance(v, bytes)}

    async def put_many(self, results: Mapping[bytes, JudgeResult]) -> None:
        """Store results in one command; existing entries stay as they are."""
        if not results:
            return
        keys = [_PREFIX + digest for digest in results]
        values = [_encoded(result) for result in results.values()]
        put = partial(self._redis.client.eval, _PUT, len(keys), *keys, self._ttl_s, *values)
        await self._redis.execute(put, f"{len(results)} verdicts were not cached")

    async def ready(self) -> bool:
        """Whether Redis answers a ping."""
        return await self._redis.ready()

    async def close(self) -> None:
        """Close the connections; the entries stay."""
        await self._redis.close()


def _encoded(result: JudgeResult) -> bytes:
    values = _values_of(result)
    if result.raw_probability == result.probability:
        values = values[:-1]
    value = json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return value if len(value) < _COMPRESSED_FROM else _COMPRESSED + zlib.compress(value)


def _decoded(value: bytes) -> JudgeResult:
    if value.startswith(_COMPRESSED):
        value = zlib.decompress(value[1:])
    values = json.loads(value.decode("utf-8", "surrogatepass"))
    result = JudgeResult(*values)
    return result if len(values) == len(_FIELDS) else replace(result, raw_probability=result.probability)
