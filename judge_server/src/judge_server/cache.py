"""Verdict caches in memory and in Redis, chosen by URL.

Verdicts in this process's memory: bounded in number and in bytes, for a time; the least recently read go first.

A Redis that is asked with patience: few at a time, for a moment, and not again for a while where it did not answer.

Knows nothing of what is asked. Who asks does without where there is no answer: no request fails over Redis.

Verdicts in Redis: one round trip to read many, one to write many, each entry with a time to live.

Where Redis does not answer within a second, nothing is known and nothing is kept, which the log says: verdicts cost
judge calls then, but no request fails. It is left alone for a second after that, so that not every request waits.

Verdict caches, chosen by URL: `memory://` or `redis://host:port/db`, each with options of its own.
"""

import asyncio
import json
import logging
import sys
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisSlow

from judge_server.engines.common import UrlOptions
from judge_server.observability.logs import describe_error
from judge_server.ports import JudgeResult, VerdictCache

__all__ = ["cache_from_url", "redis_url_of"]

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


log = logging.getLogger("adjudge")

MAX_CONNECTIONS = 16
"""Of a process at most; who finds none free waits for its turn. Without a bound, one pause of Redis opens as many as
there are requests, which stay, and above a hundred the library's own pool fails."""

_COOLDOWN_S = 1.0
_REDIS_ERRORS = (RedisError, OSError, RuntimeError)
"""What asking may raise: uvloop has a RuntimeError for a connection that Redis has just dropped."""

T = TypeVar("T")


class ResilientRedis:
    """The Redis at a URL, which answers within twice `timeout_s` or not at all. `clock` gives seconds."""

    def __init__(self, url: str, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),  # a connection that a restarted server has dropped
            retry_on_error=[RuntimeError],
        )
        self._semaphore = asyncio.Semaphore(MAX_CONNECTIONS)
        self._clock = clock
        self._cooldown_until = float("-inf")

    async def execute(self, what: Callable[[], Awaitable[T]], failure_message: str) -> T | None:
        """What it answers; None where it does not, which the log says in the words of `otherwise`.

        It is left alone for a second then, so that not every request waits.
        """
        async with self._semaphore:
            if self._clock() < self._cooldown_until:
                return None
            try:
                return await what()
            except _REDIS_ERRORS as error:
                self._cooldown_until = self._clock() + _COOLDOWN_S
                log.warning("%s: %s", failure_message, _safe_reason(error))
                return None

    async def ready(self) -> bool:
        """Whether it answers a ping."""
        try:
            return bool(await self.client.ping())
        except _REDIS_ERRORS:
            return False

    async def close(self) -> None:
        """Release the connections; what is kept there stays."""
        await self.client.aclose()


def _safe_reason(error: Exception) -> str:
    """What went wrong, without what was being stored: an answer of Redis to a command repeats the command."""
    return str(error) if isinstance(error, RedisAway | RedisSlow) else describe_error(error)


_PREFIX = b"adjudge:verdict:1:"
_TIMEOUT_S = 1.0
_COMPRESSED_FROM = 512
_COMPRESSED = b"z"
"""The first byte of a compressed value; JSON begins with a bracket."""
_FIELDS = len(fields(JudgeResult))


class RedisCache:
    """Findings as small JSON arrays under `adjudge:verdict:1:<digest>`, shared by every process on that Redis.

    The raw probability is left out where it equals the probability, as in values of before calibration, so that
    processes of before and after share them. Values of 512 bytes or more, which have long rationales, are compressed.
    `clock` gives seconds.
    """

    def __init__(self, url: str, *, ttl_s: int = 7 * 24 * 3600, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = ResilientRedis(url, _TIMEOUT_S, clock)
        self._ttl_s = ttl_s

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """The findings known for these digests, by one MGET."""
        if not digests:
            return {}
        keys = [_PREFIX + digest for digest in digests]
        values = await self._redis.execute(lambda: self._redis.client.mget(keys), "the verdict cache cannot be read")
        if values is None:
            return {}
        return {d: _decoded(v) for d, v in zip(digests, values, strict=True) if isinstance(v, bytes)}

    async def put_many(self, results: Mapping[bytes, JudgeResult]) -> None:
        """Store findings by one pipeline; SET NX leaves one that is there."""

        async def put() -> list[Any]:
            async with self._redis.client.pipeline(transaction=False) as pipeline:
                for digest, result in results.items():
                    pipeline.set(_PREFIX + digest, _encoded(result), nx=True, ex=self._ttl_s)
                return await pipeline.execute()

        if results:
            await self._redis.execute(put, f"{len(results)} verdicts were not cached")

    async def ready(self) -> bool:
        """Whether Redis answers a ping."""
        return await self._redis.ready()

    async def close(self) -> None:
        """Release the connections; the entries stay."""
        await self._redis.close()


def _encoded(result: JudgeResult) -> bytes:
    values = astuple(result)
    if result.raw_probability == result.probability:
        values = values[:-1]
    value = json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return value if len(value) < _COMPRESSED_FROM else _COMPRESSED + zlib.compress(value)


def _decoded(value: bytes) -> JudgeResult:
    if value.startswith(_COMPRESSED):
        value = zlib.decompress(value[1:])
    values = json.loads(value.decode("utf-8", "surrogatepass"))
    result = JudgeResult(*values)
    return result if len(values) == _FIELDS else replace(result, raw_probability=result.probability)


_WEEK_S = 7 * 24 * 3600


def cache_from_url(url: str) -> VerdictCache:
    """The cache an URL names: `memory://?entries=&bytes=&ttl_s=`, or `redis://HOST:PORT/DB?ttl_s=`.

    Raises:
        ValueError: the scheme is unknown, and the message lists those that are; or an option is.
    """
    parts = urlsplit(url)
    options = UrlOptions(parts)
    ttl_s = options.integer("ttl_s", _WEEK_S)
    if parts.scheme == "memory":
        entries, size = options.integer("entries", 100_000), options.integer("bytes", 64 * 2**20)
        options.reject_unknown()
        return MemoryCache(entries, max_bytes=size, ttl_s=ttl_s)
    redis = redis_url_of(url)
    if redis is not None:
        return RedisCache(redis, ttl_s=ttl_s)
    raise ValueError(f"cache {url!r} is unknown; use memory:// or redis://HOST:PORT/DB")


def redis_url_of(url: str) -> str | None:
    """The URL of the Redis that a cache's URL names, without options of the cache; None where it names none."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        return None
    theirs = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "ttl_s"])
    return parts._replace(query=theirs).geturl()
